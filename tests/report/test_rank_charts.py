"""The ranks beside each other: own time by step, and parts by rank, against hand-made reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from steptime.model import RankSteps, Report, StepTime
from steptime.report import groups
from steptime.report.charts import Spec
from steptime.report.own_time import in_columns, named_ranks, peers, rank_rows, why_not, worth_a_row
from steptime.report.rank_charts import MAX_CELLS, MAX_ROWS, NUMBERED, full_percent, heatmap, own_time
from tests.report.pipelines import interleaved, one_f_one_b, piped
from tests.report.reports import MS, job, loader_bound, ranks_64, report
from tests.report.rich_reports import rich


def values(spec: Spec | None) -> list[dict[str, Any]]:
    """All rows of all data sets of a chart."""
    assert spec is not None
    return [row for rows in spec["datasets"].values() for row in rows]


def labels(spec: Spec | None) -> list[str]:
    """The rows of a chart from the top, those without a printed label too."""
    assert spec is not None
    found: list[str] = spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    return found


def _step(number: int, own_ms: int, leaf: str = "kernels/matmul", **waits_ms: int) -> StepTime:
    waits = {
        "late": "stragglers/wait_for_rank",
        "bubble": "pipeline_bubble/steady",
        "comm": "exposed_comm/allreduce",
        "skew": "unexplained/capture_skew",
        "missing": "unexplained/events_missing",
    }
    leaves = {"kernels/memory_bound": 10 * MS, leaf: (own_ms - 10) * MS}
    leaves |= {waits[what]: ms * MS for what, ms in waits_ms.items()}
    return StepTime(step=number, start_ns=number, dur_ns=sum(leaves.values()), leaves_ns=leaves)


def _of(steps: dict[int, list[StepTime]], hosts: dict[int, str | None] | None = None, **more: object) -> Report:
    numbers = sorted({step.step for own in steps.values() for step in own})
    ranks = [
        RankSteps(rank=rank, host=(hosts or {}).get(rank, "node0"), device=0, steps=own) for rank, own in steps.items()
    ]
    return report(job({"kernels/matmul": 1}, steps=numbers), ranks=ranks, **more)


def test_own_time_is_what_is_left_without_waits_and_exposed_communication() -> None:
    shown = _of(
        {
            0: [_step(5, 50, late=50)],
            1: [_step(5, 60, bubble=10, comm=30)],
            2: [_step(5, 100)],
            3: [_step(5, 40, skew=60)],
        }
    )
    found = {row.rank: row.cells[5] for row in rank_rows(shown)}
    # The median of 40, 50, 60 and 100 ms is 55 ms.
    assert {rank: round(cell.percent, 3) for rank, cell in found.items()} == {
        0: -9.091,
        1: 9.091,
        2: 81.818,
        3: -27.273,
    }
    assert (found[1].waited_ns, found[1].comm_ns, found[1].step_ns) == (10 * MS, 30 * MS, 100 * MS)
    # 90 ms of matmul beside 30, 40, 50 and 90: 45 more than the median.
    assert (found[2].leaf, found[2].excess_ns) == ("kernels/matmul", 45 * MS)


def test_a_leaf_that_only_the_odd_rank_has_is_the_one_that_it_exceeds_its_peers_in() -> None:
    shown = _of({rank: [_step(5, 90, "host/data_loader" if rank == 2 else "kernels/matmul")] for rank in range(4)})
    odd = rank_rows(shown)[2].cells[5]
    assert (odd.leaf, odd.excess_ns, odd.percent) == ("host/data_loader", 80 * MS, 0)


def test_useful_work_is_own_time() -> None:
    slow = msgspec.structs.replace(_step(5, 50), dur_ns=80 * MS, productive_ns=30 * MS)
    cell = rank_rows(_of({0: [_step(5, 50)], 1: [_step(5, 50)], 2: [slow]}))[2].cells[5]
    assert (cell.own_ns, cell.leaf, round(cell.percent, 6)) == (80 * MS, "productive", 60)


def test_a_step_from_which_events_are_missing_is_compared_with_nobody() -> None:
    shown = _of(
        {0: [_step(5, 50), _step(6, 50)], 1: [_step(5, 50), _step(6, 50)], 2: [_step(5, 50, missing=5), _step(6, 50)]}
    )
    assert [sorted(row.cells) for row in rank_rows(shown)] == [[5, 6], [5, 6], [6]]


def test_peers_are_the_ranks_of_the_same_stage() -> None:
    shown = piped(one_f_one_b(), slow=3)
    found = {row.rank: round(row.usual_percent, 3) for row in rank_rows(shown)}
    # Rank 3 takes 84 ms, rank 2 beside it 70: 77 in the middle. The stages' own differences are not seen.
    assert found == {0: 0, 1: 0, 2: -9.091, 3: 9.091, 4: 0, 5: 0, 6: 0, 7: 0}
    assert [row.stage for row in rank_rows(shown)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert peers(shown) == "Peers: the ranks of the same pipeline stage."


def test_without_the_stages_all_are_compared_and_it_is_said_what_that_means() -> None:
    shown = msgspec.structs.replace(piped(one_f_one_b()), pipeline=None)
    # 60 and 90 ms beside a median of 75.
    assert {row.rank: round(row.usual_percent, 3) for row in rank_rows(shown)}[6] == 20
    assert peers(shown) == "Peers: all ranks."
    sends = _of({0: [_step(5, 50, "exposed_comm/p2p_transfer")], 1: [_step(5, 50)]})
    assert "a stage with more work looks slow" in peers(sends)


def test_a_rank_that_is_alone_in_its_stage_is_compared_with_nobody() -> None:
    alone = piped(interleaved())
    assert rank_rows(alone) == []
    assert "no two do the same work" in why_not(alone)
    partly = msgspec.structs.replace(interleaved(), stages=[[0], [1, 2]])
    assert [row.rank for row in rank_rows(piped(partly))] == [1, 2]
    assert "Left out, each alone in its stage: rank 0." in peers(piped(partly))
    assert "No step was recorded whole on two ranks" in why_not(loader_bound())


def test_rows_are_in_the_order_of_hosts_and_say_where_one_begins() -> None:
    hosts = {0: "node10", 1: "node2", 2: "node10", 3: "node2", 4: None, 5: "node2"}
    shown = _of({rank: [_step(5, 50)] for rank in range(6)}, hosts)
    expected = ["node10 · rank 0", "rank 2", "node2 · rank 1", "rank 3", "rank 5", "rank 4"]
    assert [row.rank for row in rank_rows(shown)] == [0, 2, 1, 3, 5, 4]
    spec = own_time(rank_rows(shown), [[5]])
    assert labels(spec) == expected
    assert labels(heatmap(groups.by_host(groups.rank_lines(shown)))) == expected
    assert spec is not None
    # A line above node2 and above the rank whose host is not known.
    lines = {row["rank"] for row in values(spec) if set(row) == {"rank"}}
    assert lines == {"node2 · rank 1", "rank 4"}


def test_ranks_that_the_report_names_are_marked_and_their_steps_have_a_frame() -> None:
    shown = rich()
    assert named_ranks(shown) == {37}
    rows = rank_rows(shown)
    spec = own_time(rows, [[10], [11]])
    assert [label for label in labels(spec) if "▸" in label] == ["rank 37 ▸"]
    cells = next(row for row in values(spec) if "d" in row)
    framed = [(at, step) for at, step, late in zip(cells["r"], cells["n"], cells["l"], strict=True) if late]
    # The report names it for steps 11 and 12, of which 11 was recorded.
    assert framed == [(37, 11)]
    # 97 ms of its own beside 76.
    odd = cells["d"][37 * 2]
    assert round(odd, 1) == 27.6
    assert "rank 37 ▸" in labels(heatmap(groups.rank_lines(shown), named_ranks(shown)))


def test_every_printed_label_has_room_and_the_named_are_among_them() -> None:
    shown = rich()
    steps = shown.ranks[0].steps
    ranks = [RankSteps(rank=at, host=f"node{at // 8}", device=at % 8, steps=steps) for at in range(MAX_ROWS)]
    spec = own_time(rank_rows(msgspec.structs.replace(shown, ranks=ranks)), [[10], [11]])
    assert spec is not None
    printed = spec["layer"][0]["encoding"]["y"]["axis"]["values"]
    assert "rank 37 ▸" in printed
    assert "node0 · rank 0" in printed
    places = [labels(spec).index(label) for label in printed]
    pixels = spec["height"] / len(ranks)
    assert min(after - before for before, after in zip(places, places[1:], strict=False)) * pixels >= 13
    assert spec["height"] <= 700


def test_one_odd_step_does_not_make_a_slow_rank_pale() -> None:
    steps = {rank: [_step(number, 100) for number in range(9)] for rank in range(5)}
    steps[1] = [_step(number, 112) for number in range(9)]
    steps[2][4] = _step(4, 900)
    rows = rank_rows(_of(steps))
    # The colour is full at 15 %: 12 % is the usual distance of rank 1, 800 % is one step of rank 2.
    assert full_percent(rows) == 15
    assert full_percent([row for row in rows if row.rank not in (1, 2)]) == 5


def _many(ranks: int, steps: int) -> Report:
    """Ranks of which one is slow and one has a single odd step."""
    own = {
        rank: [_step(number, 100 + 20 * (rank == 77) + 50 * (rank == 500 and number == 1)) for number in range(steps)]
        for rank in range(ranks)
    }
    late = msgspec.structs.replace(rich().stragglers[0], rank=900, ranks=[900], steps=[0])
    return _of(own, {rank: f"node{rank // 8}" for rank in range(ranks)}, stragglers=[late])


def test_of_a_thousand_ranks_the_odd_ones_are_kept_and_it_is_said() -> None:
    everyone = rank_rows(_many(1_024, 3))
    rows, note = worth_a_row(everyone, MAX_ROWS)
    assert len(rows) == MAX_ROWS // 2
    assert {77, 500, 900} <= {row.rank for row in rows}
    assert [row.rank for row in rows] == sorted(row.rank for row in rows)
    # The others are spread over the whole job.
    assert len({row.rank // 128 for row in rows}) == 8
    assert note == "48 of 1,024 ranks shown: the 24 farthest from their peers, and 24 evenly spaced."
    assert worth_a_row(everyone[:MAX_ROWS], MAX_ROWS) == (everyone[:MAX_ROWS], "")


def test_of_many_steps_each_column_shows_the_one_farthest_from_the_peers() -> None:
    odd = {(1, 7): 150}
    rows = rank_rows(_of({rank: [_step(n, odd.get((rank, n), 100)) for n in range(10)] for rank in range(3)}))
    columns, note = in_columns(rows, 4)
    assert columns == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert note == "A column holds 3 steps: the one farthest from the peers is shown."
    cells = next(row for row in values(own_time(rows, columns)) if "d" in row)
    assert max(zip(cells["d"], cells["r"], cells["c"], cells["n"], strict=True)) == (50, 1, 2, 7)
    assert in_columns(rows, 10) == ([[step] for step in range(10)], "")


def test_eight_ranks_by_two_hundred_steps_are_shown_whole_and_no_picture_has_more_cells_than_a_browser_likes() -> None:
    rows = rank_rows(_many(8, 200))
    columns, note = in_columns(rows, MAX_CELLS // len(rows))
    assert (len(columns), note) == (200, "")
    rows = rank_rows(_many(MAX_ROWS, 200))
    columns, _ = in_columns(rows, MAX_CELLS // len(rows))
    cells = next(row for row in values(own_time(rows, columns)) if "d" in row)
    assert MAX_CELLS / 2 < len(cells["d"]) <= MAX_CELLS


def test_one_rank_has_no_picture() -> None:
    assert own_time(rank_rows(loader_bound()), []) is None
    assert heatmap(groups.rank_lines(loader_bound())) is None


def test_the_heatmap_has_a_cell_for_each_rank_and_part() -> None:
    spec = heatmap(groups.rank_lines(ranks_64()))
    cells = [row for row in values(spec) if "part" in row]
    # Useful work, kernels, communication and host are not zero on any rank.
    assert len(cells) == 64 * 4
    late = {cell["part"]: cell["points"] for cell in cells if cell["rank"] == "rank 37"}
    assert late == {"useful": "39.0", "kernels": "36.0", "comm.": "3.0", "host": "22.0"}
    assert {cell["median"] for cell in cells} == {"100.0 ms"}
    deepest = max(cells, key=lambda cell: cell["depth"])
    assert deepest["part"] == "useful"


def test_only_few_ranks_have_numbers() -> None:
    lines = groups.rank_lines(ranks_64())
    texts = []
    for some in (lines[:NUMBERED], lines[: NUMBERED + 1]):
        spec = heatmap(some)
        assert spec is not None
        texts.append([layer for layer in spec["layer"] if layer["mark"]["type"] == "text"])
    assert [len(found) for found in texts] == [1, 0]


def test_names_from_traces_stand_in_no_expression() -> None:
    ugly = "<b>'\"`${1}"
    shown = _of({rank: [_step(5, 50, f"kernels/{ugly}")] for rank in range(2)}, {0: ugly, 1: ugly})
    rows = rank_rows(shown)
    for spec in (own_time(rows, [[5]]), heatmap(groups.rank_lines(shown), frozenset([0]))):
        places = ("calculate", "test", "expr", "filter", "labelExpr")
        found = json.dumps([node[place] for node in nodes(spec) for place in places if place in node])
        assert "datum" in found
        assert "<b>" not in found
        assert any("<b>" in label for label in labels(spec))


def nodes(value: object) -> Iterator[dict[str, Any]]:
    """Every object of a specification."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)
