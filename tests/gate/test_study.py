"""A small part of the study of false alarms and power; ``python -m tests.gate.study`` is the whole."""

from __future__ import annotations

import pytest

from tests.gate.study import MANY, ONE, SAME, SLOWER, WITH_HISTORY, study, upper_bound

PAIRS = 200


@pytest.mark.parametrize("kind", SAME, ids=lambda kind: f"{kind.sides[0]} {kind.run_sd}")
def test_the_same_job_is_seldom_called_slower(kind: object) -> None:
    outcome = study(kind, PAIRS)  # type: ignore[arg-type]
    # At the true rate of 1.1 % more than 7 of 200 come up once in a thousand studies.
    assert outcome.regressed <= 7
    if outcome.kind.sides == MANY:
        assert outcome.cannot_tell <= 0.20 * PAIRS


def test_four_percent_is_caught() -> None:
    assert study(SLOWER, PAIRS).regressed >= 0.91 * PAIRS


def test_one_candidate_passes_nothing_larger_than_it_says() -> None:
    for kind in ONE:
        outcome = study(kind, 60)
        assert outcome.silent == 0
        assert 0.06 < outcome.printed < 0.12  # about 10 %


def test_a_history_brings_it_to_about_four_percent() -> None:
    outcome = study(WITH_HISTORY[0], 60)
    assert 0.035 < outcome.printed < 0.05


def test_the_bound_is_clopper_and_pearsons() -> None:
    # The rule of three: nothing in 300 is at most 3 / 300 (exactly 1 - 0.05 ** (1 / 300)).
    assert upper_bound(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-6)
    # Clopper and Pearson 1934, n = 10, 3 found: the upper end of the two-sided 90 % interval is 0.607.
    assert upper_bound(3, 10) == pytest.approx(0.607, abs=1e-3)
