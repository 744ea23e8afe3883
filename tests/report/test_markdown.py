from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest

from steptime.model import Cause, Input, OtherStep, Report
from steptime.report.markdown import MAX_BYTES, render
from tests.report.reports import MS, REPORTS, cpu_only, hostile, job, loader_bound, quality, ranks_64, report


@pytest.mark.parametrize("build", REPORTS.values(), ids=REPORTS)
def test_every_row_of_a_table_has_the_cells_of_its_head(build: Callable[[], Report]) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", render(build()), re.MULTILINE):
        # GFM: a pipe ends a cell unless a backslash stands before it.
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(cells) == 1


@pytest.mark.parametrize("build", REPORTS.values(), ids=REPORTS)
def test_no_text_from_a_trace_becomes_markup(build: Callable[[], Report]) -> None:
    outside_code = re.sub(r"`[^`\n]+`", "", render(build()))
    tags = set(re.findall(r"</?[a-zA-Z!][^>]*>", outside_code))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>", "<!-- -->"}
    assert not re.search(r"@(?!<!-- -->)\w", outside_code)
    assert not re.search(r"(?<!\\)\]\(", outside_code)


@pytest.mark.parametrize("build", [loader_bound, ranks_64, cpu_only])
def test_printed_points_add_up(build: Callable[[], Report]) -> None:
    parts = re.findall(r"^\| ([\d.]+) \|.*\| \*\*", render(build()), re.MULTILINE)
    assert len(parts) >= 5
    assert sum(map(Decimal, parts)) == Decimal("100.0")


def test_it_always_fits_into_a_comment() -> None:
    long = "`|<&>@_*" * 500
    shown = report(
        job({"kernels/matmul": 60 * MS, "host/python": 40 * MS}),
        inputs=[
            Input(
                path=f"/d/{n}{long}",
                rank=n,
                bytes=1,
                events=1,
                quality=quality(dialect=f"{n}{long}"),
                warnings=[f"{n}{long}"],
            )
            for n in range(3_000)
        ],
        causes=[
            Cause(leaf="host/python", what=f"{long}{n}", where=f"{long}{n}", ns=1, share=0.1, count=1, rank_steps=1)
            for n in range(500)
        ],
        other_steps=[OtherStep(rank=0, step=n, dur_ns=1, reason=f"{long}{n}") for n in range(500)],
        warnings=[f"{long}{n}" for n in range(3_000)],
    )
    text = render(shown)
    assert len(text.encode()) <= MAX_BYTES
    assert text.count("<details>") == text.count("</details>")
    assert "The rest is left out" in text


def test_what_is_left_out_is_counted() -> None:
    shown = report(job({"kernels/matmul": 1}), warnings=[f"warning {n}" for n in range(45)])
    assert "- warning 39\n- and 5 more: see the JSON report\n" in render(shown)


def test_names_stay_readable() -> None:
    text = render(loader_bound())
    assert "| 34.1 | 59.3 | `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__` | host/data_loader" in text
    assert "&emsp;launch_bound: launching kernels too slowly |" in text


def test_a_name_with_a_pipe_or_a_tick_is_written_in_entities() -> None:
    assert "<code>pipe &#124; tick &#96; both &#96;&#96; and &#92;&#124; backslash</code>" in render(hostile())
