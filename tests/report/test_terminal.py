from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest
from rich.cells import cell_len

from steptime.model import Report
from steptime.report.terminal import render
from tests.report.reports import HOSTILE, MS, REPORTS, cpu_only, hostile, job, loader_bound, ranks_64, report


def _slice_points(text: str) -> list[Decimal]:
    """The printed points of the waterfall's slices, whose names begin two columns before those of their leaves."""
    body = text.split("points ", 1)[1].split("\n", 1)[1].split(" total\n", 1)[0]
    name_at = 28 if "can gain" in text else 18
    printed = [line[:6].strip() for line in body.split("\n")[:-1] if line[name_at] != " "]
    bounds = {"<0.1": "0", ">99.9": "100"}
    return [Decimal(bounds.get(points, points)) for points in printed if points not in ("", "?")]


@pytest.mark.parametrize("width", [72, 80, 100, 140])
@pytest.mark.parametrize("build", REPORTS.values(), ids=REPORTS)
def test_lines_fit_and_are_plain(build: Callable[[], Report], width: int) -> None:
    text = render(build(), width=width)
    assert max(cell_len(line) for line in text.split("\n")) <= width
    assert not re.search(r"[ \t]\n", text)


def test_a_width_out_of_range_is_brought_into_it() -> None:
    assert render(loader_bound(), width=1) == render(loader_bound(), width=72)
    assert render(loader_bound(), width=9_999) == render(loader_bound(), width=140)


def test_without_a_width_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert render(loader_bound()) == render(loader_bound(), width=90)


def test_colour_adds_nothing_but_colour() -> None:
    coloured = render(loader_bound(), width=80, color=True)
    assert "\x1b[" in coloured
    plain = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", coloured).split("\n"))
    assert plain == render(loader_bound(), width=80)


def test_plain_stays_plain_where_the_environment_asks_for_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "\x1b" not in render(loader_bound(), width=80)


@pytest.mark.parametrize("build", [loader_bound, ranks_64, cpu_only])
def test_printed_points_add_up(build: Callable[[], Report]) -> None:
    points = _slice_points(render(build(), width=100))
    assert len(points) >= 5
    assert sum(points) == Decimal("100.0")


def test_bars_are_laid_end_to_end() -> None:
    text = render(report(job({"kernels/matmul": 500 * MS, "host/python": 500 * MS})), width=100)
    first, second = (line for line in text.split("\n") if "█" in line)
    assert abs(first.rindex("█") + 1 - second.index("█")) == 0
    assert first.count("█") == pytest.approx(second.count("█"), abs=1)


def test_markup_is_text() -> None:
    text = render(hostile(), width=140)
    assert "[red]markup[/red]" in text
    assert "\\x1b[31mred" in text


def test_every_cause_can_be_told_from_the_others() -> None:
    text = render(hostile(), width=80)
    causes = text.split("10 costliest causes")[1].split("\n\n")[0]
    names = [line[18:] for line in causes.split("\n")[1:] if re.match(r" +\d", line[:17])]
    assert len(set(names)) == len(HOSTILE[:10])


def test_what_cannot_be_told_is_not_a_zero() -> None:
    text = render(loader_bound(), width=80)
    assert "     ?         ?  stragglers: can't tell (needs the files of all ranks)\n" in text


def test_the_evidence_of_a_cause() -> None:
    text = render(loader_bound(), width=100)
    # 355.7 ms of 1,042.35 ms; over six steps.
    assert "  34.1      59.3  enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__\n" in text
    assert "host/data_loader, 6× in 6/6 steps, at train.py:88 main\n" in text


def test_the_order_of_the_sections() -> None:
    text = render(ranks_64(), width=100)
    heads = [
        "Median step",
        "MFU 39.0 %",
        "Where the step goes",
        "2 costliest causes",
        "\nRanks",
        "What the traces",
        "Warn",
    ]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)


def test_one_rank_has_no_strip_and_64_have_their_odd_one() -> None:
    assert "\nRanks" not in render(loader_bound(), width=100)
    strip = render(ranks_64(), width=100).split("\nRanks")[1].split("\n\n")[0]
    # Of 100 ms: 39 useful, 36 kernels, 3 communication, 22 host, in cells of 5.
    assert "rank 37  100.0 ms  UUUUUUUUKKKKKKKCHHHH  matmul 22.0, data_loader 21.0, memory_bound 14.0\n" in strip
    assert strip.endswith("62 more ranks like rank 63.")


def test_it_fits_a_screen() -> None:
    until_causes = render(loader_bound(), width=80).split("costliest causes")[0]
    assert until_causes.count("\n") <= 26
