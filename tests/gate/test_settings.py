"""Limits, names, settings files and the file of acceptances."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.gate.accepted import Accepted, read_accepted, write_accepted
from steptime.gate.limits import find_name, parse_growth, parse_limit
from steptime.gate.settings import GateTable, Settings, read_table, settings

MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "growth", "share", "value"),
    [
        ("+2%", True, True, 0.02),
        ("+3ms", True, False, 3 * MS),
        ("12 ms", False, False, 12 * MS),
        ("8.5%", False, True, 0.085),
        ("+450us", True, False, 450_000),
        ("1.5s", False, False, 1500 * MS),
    ],
)
def test_limits_are_read(text: str, growth: bool, share: bool, value: float) -> None:
    limit = parse_limit(text, "x")
    assert (limit.growth, limit.share) == (growth, share)
    assert limit.value == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "2", "-2%", "+2 %%", "2 hours", "nan%", "+ms"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max host: .* is no limit: write \+2% or \+3ms"):
        parse_limit(text, "--max host")


def test_a_growth_is_a_percentage() -> None:
    assert parse_growth("+2%", "x") == parse_growth("2%", "x") == pytest.approx(0.02)
    with pytest.raises(UsageError, match="no percentage"):
        parse_growth("+2ms", "--max-step-time")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("data_lodaer", "data_loader"),
        ("host/dataloader", "host/data_loader"),
        ("hosts", "host"),
        ("recompte", "recompute"),
        ("loader-in-proces", "loader-in-process"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {right}"):
        find_name(wrong, ["loader-in-process"], "--max")


def test_names() -> None:
    assert find_name("host/gc", [], "").leaves == find_name("gc", [], "").leaves == ("host/gc",)
    assert "host/gc" in find_name("host", [], "").leaves
    assert find_name("recompute", [], "").id == "recompute"
    assert find_name("x", ["x"], "").kind == "finding"


TABLE = """
max_step_time = "+2%"
min_mfu = 0.38
min_steps = 8
[{0}max]
"host/data_loader" = "+10%"
exposed_comm = "40ms"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steptime.toml", "[gate]" + TABLE.format("gate.")),
        ("pyproject.toml", "[project]\nname = 'x'\n[tool.steptime.gate]" + TABLE.format("tool.steptime.gate.")),
    ],
)
def test_both_settings_files_are_read_and_the_command_line_comes_first(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    table, where = read_table(tmp_path)
    found = settings(table, where, GateTable(min_mfu=0.4, max={"host/data_loader": "5ms"}), [])
    assert (found.max_step_time, found.min_mfu, found.min_steps) == (0.02, 0.4, 8)
    assert [(name.id, limit.text) for name, limit in found.budgets] == [
        ("host/data_loader", "5ms"),
        ("exposed_comm", "40ms"),
    ]


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings(*read_table(tmp_path), GateTable(), []) == Settings()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[gate]\nmax_steptime = '+2%'\n", "max_steptime.*it knows max_step_time"),
        ("[gate]\nmin_mfu = 'a lot'\n", "min_mfu"),
        ("[gate\n", "not valid TOML"),
    ],
)
def test_a_wrong_settings_file_is_one_line(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "steptime.toml").write_text(text)
    with pytest.raises(UsageError, match=what):
        read_table(tmp_path)
    with pytest.raises(UsageError, match="min_mfu 38 is not between"):
        settings(GateTable(min_mfu=38.0), "steptime.toml", GateTable(), [])


ENTRY = Accepted(
    name="host/data_loader",
    why='decoding moved to the host, "for now"\n\x7f ☃ \\',
    on=datetime.date(2026, 12, 1),
    until=datetime.date(2026, 12, 31),
    leaves={"host/data_loader": 4 * MS},
    baseline={"host/data_loader": 0},
)


def test_acceptances_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "steptime-accepted.toml"
    assert read_accepted(path) == []
    write_accepted(path, [ENTRY])
    assert read_accepted(path) == [ENTRY]
    later = Accepted(name="recompute", why="w", on=ENTRY.on, until=ENTRY.until, leaves={}, baseline={})
    write_accepted(path, [ENTRY, later, ENTRY])
    assert read_accepted(path) == [ENTRY, later]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_damaged_file_of_acceptances_stops_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "steptime-accepted.toml"
    path.write_text("[[accepted]]\nname = 'host'\n")
    with pytest.raises(UsageError, match="not a file of accepted regressions"):
        read_accepted(path)
