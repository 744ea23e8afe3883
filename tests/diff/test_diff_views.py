"""What a diff shows: the first sentence, the split, and nothing that a name could do to a view."""

from __future__ import annotations

import html as html_module
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from steptime.diff.compare import diff_reports
from steptime.model import Cause, ConfigChange, Diff, Kernel, OpRoof, Report, Straggler
from steptime.report import DIFF_FORMATS
from steptime.report.diff_words import first_line, rows, signed
from steptime.report.markdown import MAX_BYTES
from tests.chromium import DESK, PHONE
from tests.report.reports import HOSTILE, MS, REPORTS, cpu_only, hostile, job, loader_bound, ranks_64, report

if TYPE_CHECKING:
    from playwright.sync_api import Page

_MEASURED = [name for name in REPORTS if name != "nothing_measured"]


def _slower_loader() -> Diff:
    """Ten steps of 100 ms, of which the loader takes 5, against as many of 150 with 55: its class is another one."""
    before = report(
        job({"kernels/matmul": 950 * MS, "host/data_loader": 50 * MS}, rank_steps=10),
        causes=[_cause("host/data_loader", "next of four workers", 50 * MS)],
        kernels=[Kernel(name="gemm", leaf="kernels/matmul", count=100, dur_ns=950 * MS, owned_ns=950 * MS)],
    )
    after = report(
        job({"kernels/matmul": 950 * MS, "host/data_loader": 550 * MS}, rank_steps=10),
        causes=[_cause("host/data_loader", "next in the process", 550 * MS)],
        kernels=[Kernel(name="gemm", leaf="kernels/matmul", count=200, dur_ns=950 * MS, owned_ns=950 * MS)],
    )
    return diff_reports(before, after, names=("main", "this change"))


def _cause(leaf: str, what: str, ns: int) -> Cause:
    return Cause(leaf=leaf, what=what, where=None, ns=ns, share=0.0, count=10, rank_steps=10)


def test_the_first_sentence_says_how_much_and_why() -> None:
    assert first_line(_slower_loader()) == (
        "Step time +50.0 ms, +50.0 % (100.0 ms → 150.0 ms): host/data_loader +50.0 ms (next in the process: new)."
    )


def test_turned_around_it_says_less() -> None:
    diff = _slower_loader()
    back = diff_reports(_report_of(diff, "after"), _report_of(diff, "before"))
    assert first_line(back).startswith("Step time −50.0 ms, −33.3 % (150.0 ms → 100.0 ms): host/data_loader −50.0 ms")


def _report_of(diff: Diff, side: str) -> Report:
    """A report with the leaves of one side."""
    leaves = {part.key: getattr(part, f"{side}_units") for part in diff.leaves if "/" in part.key}
    return report(job(leaves, rank_steps=10))


def test_no_change_is_said_in_one_sentence() -> None:
    assert first_line(diff_reports(loader_bound(), loader_bound())) == "Step time unchanged, 173.7 ms."


def test_a_late_rank_is_named_with_its_reason() -> None:
    clean = report(job({"kernels/matmul": 400 * MS, "stragglers/wait_for_rank": 0}), stragglers=[])
    late = Straggler(
        kind="straggler",
        rank=3,
        ranks=[3],
        host="h",
        cause="slower kernels",
        leaf="kernels/matmul",
        steps=[5, 6, 7, 8],
        lost_ns=120 * MS,
        share=0.3,
    )
    slow = report(job({"kernels/matmul": 400 * MS, "stragglers/wait_for_rank": 120 * MS}), stragglers=[late])
    diff = diff_reports(clean, slow)
    assert "stragglers/wait_for_rank +30.0 ms (rank 3: slower kernels)" in first_line(diff)
    assert "new: rank 3, straggler, slower kernels (+30.0 ms a step to each other rank)" in _text("terminal", diff)
    back = diff_reports(slow, clean)
    assert "stragglers/wait_for_rank −30.0 ms (rank 3: slower kernels)" in first_line(back)


def _text(name: str, diff: Diff) -> str:
    return DIFF_FORMATS[name].render(diff)


def test_the_rows_shown_add_up() -> None:
    """Level by level, as far as the rows of a level are shown at all."""
    for first in _MEASURED:
        diff = diff_reports(REPORTS[first](), ranks_64())
        shown = rows(diff)
        slices = [row.change_ns for row in shown if row.level == 0]
        assert sum(slices) == pytest.approx(diff.ns(diff.whole.change_units), abs=1e-3)
        for at, row in enumerate(shown):
            if row.level == 2:
                continue
            below = []
            for other in shown[at + 1 :]:
                if other.level <= row.level:
                    break
                below.append(other)
            level = min((other.level for other in below), default=0)
            if below:
                inside = sum(other.change_ns for other in below if other.level == level)
                assert inside == pytest.approx(row.change_ns, abs=1e-3), row.key


def test_calls_kernels_and_shapes_that_changed_are_named() -> None:
    def roof(shapes: str, owned_ns: int) -> OpRoof:
        return OpRoof(
            op="aten::mm",
            shapes=shapes,
            dtype="bf16",
            kind="matmul",
            direction="forward",
            count=4,
            kernels=4,
            kernel="gemm",
            dur_ns=owned_ns,
            owned_ns=owned_ns,
            flops=None,
            model_flops=None,
            bytes=None,
        )

    kernel = Kernel(name="gemm", leaf="kernels/matmul", count=4, dur_ns=40 * MS, owned_ns=40 * MS)
    twice = Kernel(name="gemm", leaf="kernels/matmul", count=8, dur_ns=100 * MS, owned_ns=80 * MS)
    a = report(job({"kernels/matmul": 40 * MS}), kernels=[kernel], roofline=[roof("[[8, 8], [8, 8]]", 40 * MS)])
    b = report(job({"kernels/matmul": 80 * MS}), kernels=[twice], roofline=[roof("[[8, 9], [9, 8]]", 80 * MS)])
    diff = diff_reports(a, b)
    assert [(one.shapes, one.status, one.changed) for one in diff.ops] == [
        ("[[8, 9], [9, 8]]", "appeared", ["shape"]),
        ("[[8, 8], [8, 8]]", "vanished", ["shape"]),
    ]
    (gemm,) = next(part for part in diff.leaves if part.key == "kernels/matmul").parts
    assert gemm.changed == ["calls", "duration", "overlap"]
    text = _text("terminal", diff)
    assert "1× → 2× a step; 10.0 ms → 12.5 ms each; 0 % → 20.0 % under other work" in " ".join(text.split())


def test_what_the_runs_differ_in() -> None:
    diff = diff_reports(loader_bound(), ranks_64())
    assert ConfigChange(name="gpu", before="Tesla V100-SXM2-32GB", after="NVIDIA H100 80GB HBM3") in diff.config
    assert ConfigChange(name="world_size", before="1", after="64") in diff.config
    assert "- GPU: Tesla V100-SXM2-32GB → NVIDIA H100 80GB HBM3" in _text("terminal", diff)


@pytest.mark.parametrize("name", DIFF_FORMATS)
@pytest.mark.parametrize("first", _MEASURED)
@pytest.mark.parametrize("second", ["hostile", "ranks_64", "cpu_only"])
def test_every_format_shows_every_pair(name: str, first: str, second: str) -> None:
    text = _text(name, diff_reports(REPORTS[first](), REPORTS[second]()))
    assert text.endswith("\n")
    assert "\x1b" not in text
    assert "\u202e" not in text or name == "json"


@pytest.mark.parametrize("diff", [diff_reports(cpu_only(), hostile()), diff_reports(hostile(), cpu_only())])
def test_names_do_nothing_to_a_view(diff: Diff) -> None:
    page = _text("html", diff)
    assert "<script" not in page.lower()
    assert "default-src 'none'; style-src" in html_module.unescape(page)
    comment = _text("markdown", diff)
    assert len(comment.encode()) < MAX_BYTES
    assert "<script" not in comment
    assert "@octocat" not in comment
    width = max(len(line) for line in _text("terminal", diff).splitlines())
    assert width <= 100 + max(map(len, HOSTILE[8:10]))


def test_json_keeps_exact_amounts() -> None:
    diff = _slower_loader()
    assert msgspec.json.decode(_text("json", diff), type=Diff) == diff


def test_signed() -> None:
    assert [signed(ns) for ns in (0, 52_300_000, -450_000)] == ["0", "+52.3 ms", "−450 µs"]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_opens_without_a_script_or_a_request(page_of: Callable[..., Page], width: int) -> None:
    diff = diff_reports(cpu_only(), hostile())
    page = page_of(_text("html", diff), width, charts=False)
    assert page.locator("h1").inner_text().replace("\xa0", " ") == html_module.unescape(first_line(diff))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("tr.sum").count() == 1
