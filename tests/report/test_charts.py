"""What the charts are given to draw, against hand-made reports; that they are drawn is for the browser to tell."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from steptime.model import Report
from steptime.report import groups
from steptime.report.charts import Spec, timeline, waterfall
from steptime.report.colours import PARTS, leaf_colour, part_colour
from steptime.report.ledger import PRODUCTIVE, ledger
from steptime.report.own_time import in_columns, named_ranks, rank_rows
from steptime.report.pipeline_chart import pipeline
from steptime.report.rank_charts import heatmap, own_time
from steptime.report.roof_charts import bandwidth, rates, roofline
from steptime.taxonomy import LEAVES, SLICES
from tests.report import rich_reports
from tests.report.pipelines import piped, uneven
from tests.report.reports import REPORTS, cpu_only, hostile, loader_bound, nothing_measured, ranks_64
from tests.report.rich_reports import MEMORY_BYTES_PER_S, PEAK_FLOPS, ops, rich


def _values(spec: Spec | None) -> list[dict[str, Any]]:
    """All rows of all data sets of a chart."""
    assert spec is not None
    return [row for rows in spec["datasets"].values() for row in rows]


def _fall(shown: Report) -> list[dict[str, Any]]:
    return sorted(_values(waterfall(ledger(shown.job), shown.job)), key=lambda bar: bar["place"])


def _nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


@pytest.mark.parametrize("build", [loader_bound, ranks_64, cpu_only, hostile, rich])
def test_the_fall_ends_where_nothing_is_left(build: Callable[[], Report]) -> None:
    bars = _fall(build())
    assert (bars[0]["low"], bars[0]["high"]) == (0, 100)
    assert bars[1]["high"] == 100
    for above, below in itertools.pairwise(bars[1:]):
        assert below["high"] == above["low"]
    assert bars[-1]["low"] == 0
    assert sum(bar["high"] - bar["low"] for bar in bars[1:]) == pytest.approx(100, abs=1e-9)


def test_the_fall_to_mfu() -> None:
    bars = _fall(ranks_64())
    assert bars[0]["title"] == "100 % of the step at peak"
    # 39 of 100 ms are useful work.
    assert (bars[-1]["title"], bars[-1]["text"], bars[-1]["high"]) == ("= MFU, useful work", "39.0 % · 39.0 ms", 39.0)
    # 36 ms of kernels, of which 13 can be gained.
    assert (bars[1]["low"], bars[1]["solid"]) == (64.0, 87.0)
    unknown = next(bar for bar in bars if bar["title"] == "stragglers")
    assert (unknown["text"], unknown["low"]) == ("can't tell", unknown["high"])


def test_without_mfu_the_fall_ends_on_the_kernels() -> None:
    bars = _fall(loader_bound())
    assert bars[0]["title"] == "100 % of the step"
    assert bars[-1]["title"] == "= kernels, useful work in them"


def test_charts_without_data_are_none() -> None:
    empty = nothing_measured()
    assert waterfall(ledger(empty.job), empty.job) is None
    assert roofline([], empty.job, None) is None
    assert bandwidth([], empty.job, None) is None
    bare = msgspec.structs.replace(
        rich_reports.timeline(), track=[], start_ns=[], segment_ns=[], leaf=[], name=[], dropped=7
    )
    assert timeline(bare, 100) == (None, 7)


def test_the_roofline_has_every_call_with_flops_under_both_roofs() -> None:
    spec = roofline(ops(), rich().job, MEMORY_BYTES_PER_S)
    rows = _values(spec)
    assert sorted(row["rate"] for row in rows if "op" in row) == [40e12, 90e12, 240e12, 420e12, 610e12]
    ends = {row["kind"]: row for row in rows if "kind" in row and row["intensity"] not in (1, 1e4)}
    # The roofs meet where intensity times bandwidth is the peak.
    for kind in ("compute", "memory"):
        assert ends[kind]["intensity"] == pytest.approx(PEAK_FLOPS / MEMORY_BYTES_PER_S)
        assert ends[kind]["rate"] == pytest.approx(PEAK_FLOPS)


def test_roofs_that_are_not_known_are_not_drawn() -> None:
    without = msgspec.structs.replace(rich().job, peak_flops=None)
    assert [row for row in _values(roofline(ops(), without, MEMORY_BYTES_PER_S)) if "kind" in row] == []
    flat = [row for row in _values(roofline(ops(), rich().job, None)) if "kind" in row]
    assert {row["rate"] for row in flat} == {PEAK_FLOPS}


def test_calls_without_flops_are_placed_by_bandwidth() -> None:
    rows = [row for row in _values(bandwidth(ops(), rich().job, MEMORY_BYTES_PER_S)) if "op" in row]
    # 2.9 TB/s for 2.6 ms over 64 calls; 0.9 TB/s for 1.3 ms.
    assert {round(row["size"]) for row in rows} == {round(2.9e12 * 2.6e-3 / 64), round(0.9e12 * 1.3e-3 / 64)}


def test_rates_as_text() -> None:
    by_name = {(one.op, one.owned_ns): rates(one) for one in ops()}
    assert by_name["aten::mm", 9_000_000] == ("610.0 TFLOP/s", "521.0 GB/s")
    assert by_name["aten::add_", 2_600_000] == ("", "2,900.0 GB/s")
    assert by_name["custom::op", 90_000] == ("", "")


def test_a_timeline_draws_its_longest_pieces_and_counts_the_others() -> None:
    drawn = rich_reports.timeline("slowest")
    spec, left_out = timeline(drawn, 5)
    assert left_out == 12 + 3
    columns = next(row for row in _values(spec) if "s" in row)
    lengths = sorted(round((end - start) * 1e6) for start, end in zip(columns["s"], columns["e"], strict=True))
    assert lengths == sorted(sorted(drawn.segment_ns, reverse=True)[:5])
    _, nothing = timeline(drawn, 100)
    assert nothing == 12


def test_equal_names_of_rows_stay_two_rows() -> None:
    drawn = msgspec.structs.replace(rich_reports.timeline(), tracks=["owner", "stream 7", "stream 7"])
    rows = [row["row"] for row in _values(timeline(drawn, 100)[0]) if "row" in row]
    assert rows == ["owner", "2: stream 7", "3: stream 7"]


@pytest.mark.parametrize("build", [*REPORTS.values(), rich, rich_reports.hostile_rich, lambda: piped(uneven())])
def test_specifications_are_json_name_no_host_and_repeat(build: Callable[[], Report]) -> None:
    shown = build()

    def specs() -> list[Spec | None]:
        job = shown.job
        drawn = [timeline(one, 1_000)[0] for one in shown.timelines]
        fall = waterfall(ledger(job), job) if job.rank_steps else None
        roofs = [roofline(shown.roofline, job, 1e12), bandwidth(shown.roofline, job, 1e12)]
        rows = rank_rows(shown)
        beside = [own_time(rows, in_columns(rows, 100)[0]), heatmap(groups.rank_lines(shown), named_ranks(shown))]
        actions = None if shown.pipeline is None else shown.pipeline.actions
        return [fall, *beside, None if actions is None else pipeline(actions)[0], *roofs, *drawn]

    first = specs()
    text = json.dumps(first, allow_nan=False)
    assert text == json.dumps(specs(), allow_nan=False)
    for node in _nodes(first):
        assert "url" not in node
        assert "$schema" not in node


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_each_part_has_one_colour_that_is_seen_on_white_and_on_black() -> None:
    assert set(PARTS) == {PRODUCTIVE, *(part.id for part in SLICES)}
    assert len(set(PARTS.values())) == len(PARTS)
    for colour in PARTS.values():
        assert 1.05 / (_luminance(colour) + 0.05) >= 2.9
        assert (_luminance(colour) + 0.05) / 0.05 >= 2.9


def test_leaves_have_shades_of_their_own() -> None:
    shades = {leaf.key: leaf_colour(leaf.key) for leaf in LEAVES}
    assert len(set(shades.values())) == len(LEAVES)
    assert leaf_colour("host/from_the_future") == part_colour("host")
    assert leaf_colour("</script>/x") == part_colour("unexplained")
