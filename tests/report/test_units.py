"""Each expected text was written by hand from the number beside it."""

from __future__ import annotations

import pytest

from steptime.report import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (0.2, "<1 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (1_000, "1.0 µs"),
        (12_345, "12.3 µs"),
        (450_000, "450 µs"),
        (999_499, "999 µs"),
        (999_960, "1.00 ms"),
        (1_234_567, "1.23 ms"),
        (9_996_000, "10.0 ms"),
        (12_340_000, "12.3 ms"),
        (178_431_000, "178.4 ms"),
        (999_940_000, "999.9 ms"),
        (999_960_000, "1.00 s"),
        (1_250_000_000, "1.25 s"),
        (59_994_000_000, "59.99 s"),
        (123_400_000_000, "123 s"),
        (1_265_000_000_000, "21 min 5 s"),
        (-12_340_000, "-12.3 ms"),
    ],
)
def test_time(ns: float, text: str) -> None:
    assert units.time(ns) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-12, "<0.1 %"),
        (0.000_49, "<0.1 %"),
        (0.000_51, "0.1 %"),
        (0.123, "12.3 %"),
        (0.5, "50.0 %"),
        (0.999_4, "99.9 %"),
        (0.999_6, ">99.9 %"),
        (1 - 1e-12, ">99.9 %"),
        (1.0, "100 %"),
        (1.25, "125.0 %"),
    ],
)
def test_share_never_claims_none_or_all_unless_exact(share: float, text: str) -> None:
    assert units.share(share) == text


@pytest.mark.parametrize(
    ("step_ns", "part_ns", "unit", "text"),
    [
        (250e9, 1_230_000_000, "s", "1.2"),
        (5e9, 1_234_560_000, "ms", "1,234.6"),
        (178e6, 59_300_000, "ms", "59.3"),
        (178e6, 49_000, "ms", "<0.1"),
        (178e6, 0, "ms", "0"),
        (900e3, 12_340, "µs", "12.3"),
        (5e3, 1_200, "ns", "1,200"),
        (5e3, 0.3, "ns", "<1"),
    ],
)
def test_a_column_has_one_unit(step_ns: float, part_ns: float, unit: str, text: str) -> None:
    scale = units.scale_for(step_ns)
    assert (scale.unit, units.scaled(part_ns, scale)) == (unit, text)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([2, 0, 1, 1], "0-2"),
        ([0, 1, 2, 9, 11, 12], "0-2, 9, 11-12"),
        ([0, 8, 16, 24, 32], "0, 8 ... 32"),
        ([1, 3, 5], "1, 3, 5"),
        ([], ""),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert units.ranges(numbers) == text


def test_counts_sizes_and_rates() -> None:
    assert units.count(1_234_567) == "1,234,567"
    assert [units.plural(n, "step") for n in (0, 1, 2_000)] == ["0 steps", "1 step", "2,000 steps"]
    assert units.plural(2, "loss", "losses") == "2 losses"
    assert [units.size(n) for n in (12, 4_500, 56_200_000, 5_100_000_000)] == ["12 B", "4.50 kB", "56.2 MB", "5.10 GB"]
    assert [units.rate(n) for n in (989.4e12, 2.5e15, 19.5e9, 10)] == [
        "989.4 TFLOP/s",
        "2.5 PFLOP/s",
        "19.5 GFLOP/s",
        "10 FLOP/s",
    ]
