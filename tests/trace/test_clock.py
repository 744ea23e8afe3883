"""Microseconds as text become exact nanoseconds. The judge is `decimal.Decimal`, at unlimited precision.

Whatever path the code under test takes for a list of numbers, each must come out as it does alone.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from steptime.trace.clock import UNKNOWN_NS, nanoseconds

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)

#: What integers of a trace look like: lengths, offsets, microseconds since 1970, and anything.
wholes = st.one_of(st.integers(0, 10_000), st.integers(0, 2 * 10**15), st.integers(-(10**18), 10**18))
signs = st.sampled_from(["", "", "", "-"])


def decimals(digits: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    fraction = digits.flatmap(lambda count: st.text("0123456789", min_size=count, max_size=count))
    magnitude = st.one_of(st.integers(0, 10_000), st.integers(0, 2 * 10**15), st.integers(0, 10**18))
    return st.builds(lambda sign, whole, part: f"{sign}{whole}.{part}", signs, magnitude, fraction)


integers = wholes.map(str)
kineto = decimals(st.just(3))
any_length = decimals(st.integers(1, 15))
long_ones = decimals(st.integers(1, 40))
exponents = st.builds(
    lambda mantissa, e, power: f"{mantissa}{e}{power}",
    st.one_of(wholes.map(str), any_length),
    st.sampled_from(["e", "E", "e+", "E-", "e-"]),
    st.integers(0, 12).map(str),
)


def exact(token: str) -> int:
    value = int(_EXACT.multiply(Decimal(token), Decimal(1000)).to_integral_value(ROUND_HALF_EVEN, _EXACT))
    return max(min(value, INT64_MAX), INT64_MIN + 1)


def read(tokens: list[str]) -> list[int]:
    found = nanoseconds([token.encode() for token in tokens])
    assert found.dtype == "int64"
    return [int(value) for value in found]


@pytest.mark.parametrize(
    ("token", "ns"),
    [
        ("0", 0),
        ("1", 1_000),
        ("-1", -1_000),
        ("1.5", 1_500),
        ("0.001", 1),
        ("-0.001", -1),
        ("-0.5", -500),
        ("12.345", 12_345),
        ("5111842086750.001", 5_111_842_086_750_001),
        ("1623143089861234", 1_623_143_089_861_234_000),
        ("1694128201545000.125", 1_694_128_201_545_000_125),
        # Half to even at the fourth digit.
        ("0.0005", 0),
        ("0.0015", 2),
        ("0.0025", 2),
        ("0.00250000000000001", 3),
        ("-0.0015", -2),
        ("1e3", 1_000_000),
        ("1.5E-3", 2),
        ("4203669600000.0", 4_203_669_600_000_000),
        # The ends of int64 in ns: 9,223,372,036,854,775.807 us.
        ("9223372036854775.807", INT64_MAX),
        ("9223372036854775.808", INT64_MAX),
        ("9223372036854775807", INT64_MAX),
        ("9223372036854776", INT64_MAX),
        ("-9223372036854775.807", -INT64_MAX),
        ("99999999999999999999", INT64_MAX),
        ("1e300", INT64_MAX),
        ("-1e300", INT64_MIN + 1),
        # Not a time.
        ("null", UNKNOWN_NS),
        ("true", UNKNOWN_NS),
        ('"abc"', UNKNOWN_NS),
        ('""', UNKNOWN_NS),
        # Some writers quote numbers.
        ('"12.5"', 12_500),
    ],
)
@pytest.mark.parametrize("beside", [[], ["7"], ["7.125"], ["7", "7.125"], ["null"], ["1e1"]])
def test_literals_alone_and_beside_others(token: str, ns: int, beside: list[str]) -> None:
    assert read([token, *beside])[0] == ns
    assert read([*beside, token])[-1] == ns


def test_unknown_is_never_a_time() -> None:
    assert UNKNOWN_NS == INT64_MIN


def test_nothing() -> None:
    assert nanoseconds([]).tolist() == []


def test_raw_tokens_as_the_decoder_gives_them() -> None:
    assert nanoseconds([Raw(b"1.5"), Raw(b"2")]).tolist() == [1_500, 2_000]


@given(st.lists(integers, min_size=1, max_size=20))
def test_integers(tokens: list[str]) -> None:
    assert read(tokens) == [exact(token) for token in tokens]


@given(st.lists(kineto, min_size=1, max_size=20))
@example(["1795968868086750.001", "0.000", "-1.001"])
def test_three_decimals(tokens: list[str]) -> None:
    assert read(tokens) == [exact(token) for token in tokens]


@given(st.lists(any_length, min_size=1, max_size=20))
def test_decimals(tokens: list[str]) -> None:
    assert read(tokens) == [exact(token) for token in tokens]


@given(st.lists(long_ones, min_size=1, max_size=20))
def test_decimals_of_any_length(tokens: list[str]) -> None:
    assert read(tokens) == [exact(token) for token in tokens]


@given(st.lists(st.one_of(integers, kineto, any_length), min_size=1, max_size=20))
def test_integers_and_decimals_mixed(tokens: list[str]) -> None:
    assert read(tokens) == [exact(token) for token in tokens]


@given(st.lists(st.one_of(integers, long_ones, exponents, st.just("null")), min_size=1, max_size=20))
def test_exponents_and_nulls_among_others(tokens: list[str]) -> None:
    assert read(tokens) == [UNKNOWN_NS if token == "null" else exact(token) for token in tokens]


@given(st.lists(st.integers(2**63 // 1000 - 3, 2**63 // 1000 + 3), min_size=1), st.sampled_from(["", ".5", ".807"]))
def test_around_the_end_of_int64(values: list[int], tail: str) -> None:
    tokens = [f"{sign}{value}{tail}" for value in values for sign in ("", "-")]
    assert read(tokens) == [exact(token) for token in tokens]
