"""Ranks are taken from the best evidence, and never guessed.

Names are those that torch, HTA, Kineto and users give; the ranks beside them are read by eye.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.errors import RankError, UsageError
from steptime.trace.discover import discover
from steptime.trace.rank_order import NAME_PATTERNS, RankAssignment, RankClaim, assign_ranks, rank_in_name


def claim(path: str, rank: int | None = None, world_size: int | None = None, at: int = 0, **rest: object) -> RankClaim:
    """A file recorded from `at` to `at` + 100 ns."""
    steps, has_cpu = rest.get("steps", ()), rest.get("has_cpu", True)
    assert isinstance(steps, tuple)
    return RankClaim(path, rank, world_size, at, at + 100, steps, bool(has_cpu))


def refused(*files: RankClaim, explicit: int | None = None) -> str:
    with pytest.raises(RankError) as error:
        assign_ranks(files, explicit)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("rank0.pt.trace.json", 0),
        ("rank_12.json.zst", 12),
        ("rank0_trace.json", 0),
        ("sampled_rank-1.json.gz", 1),
        ("mtia_inference_rank_0.json.gz", 0),
        ("Trace_Rank=7.json", 7),
        ("global_rank_5.json", 5),
        ("worker3_step_12.1694128201557.pt.trace.json.gz", 3),
        ("worker0.1623143089861.pt.trace.json.gz", 0),
        ("worker_15.json", 15),
        ("trace_r12.json", 12),
        ("r3.json.gz", 3),
        ("worker1_rank3.json", 3),
        ("rank_3/host_4242.1764.pt.trace.json", 3),
        ("C:\\runs\\rank_4\\host_1.json", 4),
        ("/data/rank_1/rank2.json", 2),
        # Nothing to tell: a pid, a time stamp, an experiment, a rank inside a part of the job, two ranks, another word.
        ("host_4242.1764.pt.trace.json", None),
        ("nodea_4242.1764.pt.trace.json", None),
        ("rank1623143089861.json", None),
        ("worker1623143089861.pt.trace.json", None),
        ("trace_05.json.gz", None),
        ("local_rank_3.json", None),
        ("tp_rank-1.json", None),
        ("pp_rank_0_tp_rank_1.json", None),
        ("node_rank_2.json", None),
        ("rank0_to_rank7.json", None),
        ("crank2.json", None),
        ("num_workers_4.json", None),
        ("num_worker_4.json", None),
        ("num_workers_4/trace.json.gz", None),
        ("worker2/trace.json", None),
        ("8ranks_trace.json", None),
        ("llama_trace_4layers0_with_annotations.json.gz", None),
        ("resnet_act_checkpoint.json.gz", None),
    ],
)
def test_what_a_name_tells(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_each_row_of_the_table_is_reached_by_its_example() -> None:
    for row in NAME_PATTERNS:
        assert [other for other in NAME_PATTERNS if other.pattern.search(row.example)] == [row]
        assert rank_in_name(row.example) == 3


def test_declared_ranks_need_no_word() -> None:
    files = [claim("b.json", 1, 2), claim("a.json", 0, 2)]
    assert assign_ranks(files) == RankAssignment([1, 0], [0, 0], [], 2)


def test_explicit_beats_all_and_says_so() -> None:
    assert assign_ranks([claim("x.json")], 5) == RankAssignment([5], [0], [], None)
    result = assign_ranks([claim("rank2.json", 1)], 5)
    assert result.ranks == [5]
    assert result.warnings == ["rank2.json: the file says rank 1; taken as rank 5, as --rank says"]


def test_explicit_is_for_one_file() -> None:
    with pytest.raises(UsageError, match="--rank .* 2 files"):
        assign_ranks([claim("a.json"), claim("b.json")], 0)


def test_the_file_beats_its_name_and_says_so() -> None:
    result = assign_ranks([claim("rank2.json", 1), claim("rank0.json", 0)])
    assert result.ranks == [1, 0]
    assert result.warnings == ["rank2.json: its name says rank 2, the file says rank 1; taken as rank 1"]


def test_names_where_the_files_are_silent() -> None:
    result = assign_ranks([claim("rank1.json"), claim("rank0.json"), claim("c.json", 2, 3)])
    assert result.ranks == [1, 0, 2]
    assert result.warnings == ["rank1.json, rank0.json: no distributedInfo; rank taken from the name"]


def test_one_silent_file_is_rank_0_and_says_so() -> None:
    result = assign_ranks([claim("host_4242.1764.pt.trace.json")])
    assert result.ranks == [0]
    (warning,) = result.warnings
    assert "host_4242.1764.pt.trace.json" in warning
    assert "rank 0" in warning


def test_several_silent_files_are_refused_by_name_with_the_remedy() -> None:
    message = refused(claim("x/nodea_4242.json"), claim("x/nodeb_5252.json"))
    for word in ("nodea_4242.json", "nodeb_5252.json", "distributedInfo", "--rank", "rename"):
        assert word in message
    assert refused(claim("rank0.json", 0), claim("odd.json")).startswith("odd.json: no rank")


def test_a_long_list_of_silent_files_is_shortened() -> None:
    message = refused(*(claim(f"host_{9000 + 7 * n}.json") for n in range(50)))
    assert "and 44 more" in message


def test_names_that_count_from_0_and_were_recorded_together_are_ranks() -> None:
    files = [claim(f"trace_{n}.json", at=n) for n in (2, 0, 1)]
    result = assign_ranks(files)
    assert result.ranks == [2, 0, 1]
    assert len(result.warnings) == 1
    assert "last number of the name" in result.warnings[0]


@pytest.mark.parametrize(
    "files",
    [
        [claim("trace_04.json"), claim("trace_05.json")],
        [claim("trace_0.json"), claim("trace_2.json")],
        [claim("trace_0.json"), claim("other_1.json")],
        [claim("trace_0.json"), claim("trace_1.json", at=1000)],
        [claim("trace_0.json", world_size=8), claim("trace_1.json", world_size=8)],
        [claim("a/trace_0.json"), claim("b/trace_0.json")],
    ],
)
def test_other_numbers_are_not_ranks(files: list[RankClaim]) -> None:
    assert "no rank can be told" in refused(*files)


def test_two_files_of_one_rank_at_one_time_are_refused() -> None:
    message = refused(claim("a.pt.trace.json", 0, 2), claim("b.pt.trace.json", 0, 2))
    for word in ("a.pt.trace.json", "b.pt.trace.json", "rank 0", "the same recording"):
        assert word in message
    message = refused(claim("a.json", 3), claim("b.json", 3, at=99, has_cpu=False))
    assert "b.json holds no host activity" in message
    # Same name in two folders: then the paths tell them apart.
    message = refused(claim("x/rank0.json"), claim("y/rank0.json", at=50))
    assert "x/rank0.json and y/rank0.json" in message


def test_an_overlap_is_found_whatever_lies_between() -> None:
    long = RankClaim("long.json", 0, None, 0, 1000, (), True)
    message = refused(claim("late.json", 0, at=800), long, claim("early.json", 0, at=100))
    assert "long.json" in message


def test_disjoint_files_of_one_rank_are_captures_in_time_order() -> None:
    # Case A13: steps 2-3, then 12-13 of one rank. An end that is the next start does not overlap.
    later, earlier = claim("x.json", 0, 1, at=100, steps=(12, 13)), claim("y.json", 0, 1, at=0, steps=(2, 3))
    assert assign_ranks([later, earlier]) == RankAssignment([0, 0], [1, 0], [], 1)


def test_captures_that_repeat_a_step_are_kept_and_named() -> None:
    result = assign_ranks(
        [claim("x.json", 0, 1, at=0, steps=(3, 4, 5)), claim("y.json", 0, 1, at=500, steps=(4, 5, 6))]
    )
    assert result.captures == [0, 1]
    assert result.warnings == [
        "x.json, y.json: successive captures of rank 0 that repeat step 4-5; "
        "if they are different runs, analyse one at a time"
    ]


def test_ranks_with_different_numbers_of_captures_are_named() -> None:
    result = assign_ranks([claim("a.json", 0, 2), claim("b.json", 0, 2, at=500), claim("c.json", 1, 2)])
    assert result.captures == [0, 1, 0]
    assert result.warnings == ["rank 1 has 1 capture(s), rank 0 has 2"]


def test_different_world_sizes_are_refused_by_name() -> None:
    message = refused(claim("rank0.pt.trace.json", 0, 2), claim("rank1.pt.trace.json", 1, 8), claim("c.json", 2))
    assert message.startswith("rank0.pt.trace.json says world_size 2 and rank1.pt.trace.json says world_size 8")


def test_a_rank_outside_the_world_is_refused() -> None:
    assert "rank 4 is not possible, its world_size is 4" in refused(claim("a.json", 4, 4))
    assert "rank 9 is not possible" in refused(claim("a.json", None, 4), explicit=9)
    assert "rank -1 is not possible" in refused(claim("a.json"), explicit=-1)


@pytest.mark.parametrize(
    ("ranks", "world_size", "warning"),
    [
        ([0, 1, 3], 4, "rank 2 of world_size 4 has no file (3 of 4 analysed)"),
        ([0], 16, "ranks 1-15 of world_size 16 have no file (1 of 16 analysed)"),
        ([3], 8, "ranks 0-2, 4-7 of world_size 8 have no file (1 of 8 analysed)"),
        (
            list(range(0, 64, 2)),
            64,
            "ranks 1, 3, 5, 7, 9, 11, … (32 in all) of world_size 64 have no file (32 of 64 analysed)",
        ),
        ([0, 1, 3], None, "rank 2 has no file, though rank 3 has (no file states a world_size)"),
    ],
)
def test_missing_ranks_are_named(ranks: list[int], world_size: int | None, warning: str) -> None:
    result = assign_ranks([claim(f"{rank}.json", rank, world_size) for rank in ranks])
    assert result.ranks == ranks
    assert result.warnings == [warning]


@pytest.mark.parametrize(("ranks", "world_size"), [([0, 1], 2), ([5], None), ([0, 1, 2], None)])
def test_nothing_is_said_where_no_rank_is_known_to_be_missing(ranks: list[int], world_size: int | None) -> None:
    assert assign_ranks([claim(f"{rank}.json", rank, world_size) for rank in ranks]).warnings == []


def test_world_size_0_is_ignored() -> None:
    # An uninitialised process group: no world at all.
    assert assign_ranks([claim("a.json", 0, 0)]).world_size is None


def test_case_a12_from_its_own_files(repo: Path) -> None:
    """What the files declare is read here by eye: `no_rank` and `single` nothing, the others as their names say."""
    top = repo.parent / "shared" / "cases" / "A12"
    if not top.is_dir():
        pytest.skip("the shared cases are not beside this checkout")
    declared: dict[str, list[tuple[int | None, int | None]]] = {
        "single": [(None, None)],
        "no_rank": [(None, None), (None, None)],
        "dup_rank": [(0, 2), (0, 2)],
        "missing_rank": [(0, 4), (1, 4), (3, 4)],
        "foreign_json": [(0, 2), (1, 2)],
        "world_mismatch": [(0, 2), (1, 8)],
    }
    claims = {
        folder: [claim(file.path, *said) for file, said in zip(discover([str(top / folder)]).files, says, strict=True)]
        for folder, says in declared.items()
    }
    assert assign_ranks(claims["single"]).ranks == [0]
    assert assign_ranks(claims["foreign_json"]).warnings == []
    missing = assign_ranks(claims["missing_rank"])
    assert missing.ranks == [0, 1, 3]
    assert "rank 2" in missing.warnings[0]
    for folder, words in {
        "no_rank": ("nodea_4242.1764.pt.trace.json", "nodeb_5252.1764.pt.trace.json", "rank"),
        "dup_rank": ("a.pt.trace.json", "b.pt.trace.json", "rank 0"),
        "world_mismatch": ("rank0.pt.trace.json", "rank1.pt.trace.json", "world_size"),
    }.items():
        message = refused(*claims[folder])
        assert all(word in message for word in words)
