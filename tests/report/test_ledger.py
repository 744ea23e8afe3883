from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.model import Job
from steptime.report.ledger import WHOLE, Row, apportion, ledger
from tests.report.reports import job


def test_three_equal_parts() -> None:
    # 333.3 each; the seat that is left goes to the first.
    assert apportion([1, 1, 1], 1000) == [334, 333, 333]


@pytest.mark.parametrize("parts", [[], [0, 0]])
def test_nothing_to_apportion(parts: list[int]) -> None:
    assert apportion(parts, 1000) == [0] * len(parts)


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=12).filter(any), st.integers(0, 1000))
def test_apportioned_adds_up_and_is_within_one(parts: list[int], seats: int) -> None:
    got = apportion(parts, seats)
    assert sum(got) == seats
    assert all(abs(seat - Fraction(part * seats, sum(parts))) < 1 for seat, part in zip(got, parts, strict=True))


def _rows(the_job: Job) -> dict[str, Row]:
    return {row.key: row for row in ledger(the_job)}


@given(
    st.fixed_dictionaries(
        {
            key: st.integers(0, 10**11)
            for key in (
                "kernels/matmul",
                "kernels/optimizer",
                "host/data_loader",
                "host/python",
                "exposed_comm/barrier",
            )
        }
    ),
    st.integers(0, 10**11),
)
def test_slices_add_up_to_the_step_and_leaves_to_their_slice(leaves_ns: dict[str, int], productive_ns: int) -> None:
    rows = ledger(job(dict(leaves_ns), productive_ns=productive_ns, mfu=0.5))
    parts = [row for row in rows if not row.is_leaf]
    assert sum(row.tenths for row in parts) == (WHOLE if any(leaves_ns.values()) or productive_ns else 0)
    for part in parts:
        leaves = [row for row in rows if row.is_leaf and row.key.startswith(f"{part.key}/")]
        assert sum(row.tenths for row in leaves) in (part.tenths, 0)
        assert bool(leaves) == bool(part.ns and part.key not in ("productive", "unexplained"))


def test_little_is_not_none_and_nearly_all_is_not_all() -> None:
    rows = _rows(job({"kernels/matmul": 10**9 - 7, "host/python": 7}))
    assert (rows["kernels"].points, rows["host"].points, rows["exposed_comm"].points) == (">99.9", "<0.1", "0")


def test_all_is_all() -> None:
    assert _rows(job({"kernels/matmul": 5}))["kernels"].points == "100"


def test_kernels_are_called_inseparable_when_useful_work_is_not_known() -> None:
    unknown, known = job({"kernels/matmul": 5}), job({"kernels/matmul": 5}, productive_ns=5, mfu=0.5)
    assert _rows(unknown)["kernels"].title == "kernels (useful work not separable)"
    assert "productive" not in _rows(unknown)
    assert _rows(known)["kernels"].title == "kernels below the roof"
    assert _rows(known)["productive"].points == "50.0"


def test_what_is_not_measured_has_a_reason_and_no_zero() -> None:
    row = _rows(job({"kernels/matmul": 5, "stragglers/wait_for_rank": None}))["stragglers"]
    assert (row.points, row.ns, row.why) == ("?", None, "needs the files of all ranks")


def test_one_leaf_in_a_slice_that_cannot_be_told() -> None:
    row = _rows(job({"kernels/matmul": 5, "host/python": 3, "host/gc": None}))["host/gc"]
    assert (row.points, row.why) == ("?", "not measurable from these traces")
