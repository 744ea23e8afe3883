"""The detectors on curves with known spikes, and that none of them looks ahead."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.goodput.spikes import Event, drops, spikes
from steptime.goodput.trailing import Window, trailing_median, usual
from steptime.goodput.watching import _WINDOWS
from tests.goodput.curves import Curve, curve

LOSS, GRADIENT, RATE = _WINDOWS["loss"], _WINDOWS["grad_norm"], _WINDOWS["throughput"]
CURVES = 100


def _matched(made: Curve, events: list[Event]) -> tuple[int, int]:
    """How many planted spikes had an alert while they lasted, and how many alerts belong to none."""
    hit = {at for one in made.planted for at, event in enumerate(events) if one.start <= event.alert <= one.end}
    found = sum(any(one.start <= event.alert <= one.end for event in events) for one in made.planted)
    return found, len(events) - len(hit)


def test_recall_and_false_alarms_on_a_hundred_curves() -> None:
    """0 to 5 planted spikes, noise, warm-up, a drop of the learning rate: `curves`. Each number of spikes occurs."""
    found = planted = false = rows = 0
    counts = set()
    for seed in range(CURVES):
        made = curve(seed)
        hit, wrong = _matched(made, spikes(made.loss, LOSS)[0])
        found, planted, false, rows = found + hit, planted + len(made.planted), false + wrong, rows + len(made.loss)
        counts.add(len(made.planted))
    assert counts == {0, 1, 2, 3, 4, 5}
    assert planted > 200
    assert found / planted >= 0.95
    assert false <= rows / 10_000


def test_gradient_norms_without_spikes_give_no_alarm() -> None:
    """At most one in 10,000 rows, warm-up peak included."""
    logs = [np.log(curve(seed, 4000).grad_norm) for seed in range(25)]
    assert sum(len(spikes(one, GRADIENT)[0]) for one in logs) <= 25 * 4000 / 10_000


@pytest.mark.parametrize("seed", [1, 4, 11])
def test_an_alert_never_looks_ahead(seed: int) -> None:
    """The log cut after any row gives the same alerts up to there: what is known later changes none of them."""
    made = curve(seed, 3000)
    whole, before = spikes(made.loss, LOSS)
    assert whole
    for cut in [*range(200, 3000, 331), *(event.alert + more for event in whole for more in (1, 2, 9))]:
        part, known = spikes(made.loss[:cut], LOSS)
        assert [one.alert for one in part] == [one.alert for one in whole if one.alert < cut]
        assert [one.start for one in part] == [one.start for one in whole if one.alert < cut]
        np.testing.assert_array_equal(known.level, before.level[:cut])
        np.testing.assert_array_equal(known.noise, before.noise[:cut])


def _flat(rows: int = 1200, sigma: float = 0.02, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(2.0, sigma, rows)


def test_a_spike_has_a_start_a_peak_and_an_end() -> None:
    """By hand: +0.2, +0.5, +1.0, +0.6, +0.3 from row 600 on, noise 0.02: each is at least 10 of the noise."""
    loss = _flat()
    loss[600:605] += [0.2, 0.5, 1.0, 0.6, 0.3]
    (event,) = spikes(loss, LOSS)[0]
    assert (event.start, event.peak, event.end) == (600, 602, 605)
    assert event.alert in (600, 601)
    assert event.level == pytest.approx(2.0, abs=0.02)
    assert event.noise == pytest.approx(0.02, rel=0.3)


def test_one_bad_row_is_a_spike_only_if_nothing_normal_is_that_far() -> None:
    far, near = _flat(), _flat()
    far[700] += 0.6
    near[700] += 0.13
    assert [event.alert for event in spikes(far, LOSS)[0]] == [700]
    assert spikes(near, LOSS)[0] == []


def test_two_spikes_are_two_and_the_first_does_not_hide_the_second() -> None:
    loss = _flat()
    loss[600:640] += 1.0
    loss[660:665] += 0.5
    events, _ = spikes(loss, LOSS)
    assert [(event.start, event.end) for event in events] == [(600, 640), (660, 665)]


def test_a_level_that_stays_is_one_event_without_an_end_and_then_usual() -> None:
    loss = _flat(2000)
    loss[600:] += 1.0
    loss[1500:1505] += 1.0
    events, _ = spikes(loss, LOSS)
    assert [(event.start, event.end is None) for event in events] == [(600, True), (1500, False)]
    assert events[0].until < 900


def test_a_loss_that_falls_is_no_spike() -> None:
    """At once by a nat, as when the sequences become shorter, and slowly, with the end of the fall."""
    loss = _flat(2000)
    loss[:700] += 1.0
    assert spikes(loss, LOSS)[0] == []
    slow = _flat(2000) + np.maximum(900 - np.arange(2000), 0) * 0.005
    assert spikes(slow, LOSS)[0] == []


def test_numbers_that_are_rounded_give_no_alarm() -> None:
    """Two decimals: most rows are equal, the noise by their spread would be 0."""
    loss = np.round(_flat(3000, 0.004), 2)
    assert spikes(loss, LOSS)[0] == []


def test_too_few_rows_are_not_judged() -> None:
    loss = _flat(LOSS.first)
    loss[-1] = 50
    events, before = spikes(loss, LOSS)
    assert events == []
    assert np.isnan(before.noise).all()
    more = _flat(LOSS.first + 1)
    more[-1] = 50
    assert [event.alert for event in spikes(more, LOSS)[0]] == [LOSS.first]
    assert spikes(np.empty(0), LOSS)[0] == []


def test_a_rate_that_drops_and_comes_back() -> None:
    rate = np.log(np.random.default_rng(2).normal(1000, 8, 3000))
    rate[1000:1200] += np.log(0.8)
    (event,) = drops(rate, RATE)[0]
    assert (event.start, event.alert, event.end) == (1000, 1007, 1200)
    assert np.exp(event.level) == pytest.approx(1000, rel=0.01)


def test_single_slow_rows_are_no_drop() -> None:
    """A checkpoint or an evaluation every 50 rows."""
    rate = np.log(np.random.default_rng(3).normal(1000, 8, 3000))
    rate[::50] += np.log(0.3)
    assert drops(rate, RATE)[0] == []


def test_a_drop_of_less_than_a_twentieth_is_none() -> None:
    rate = np.log(np.random.default_rng(4).normal(1000, 2, 3000))
    rate[1000:1500] += np.log(0.96)
    assert drops(rate, RATE)[0] == []


def test_trailing_medians_are_those_of_the_rows_before() -> None:
    """Row by row."""
    values = np.random.default_rng(6).normal(size=300)
    medians = trailing_median(values, 7, 3)
    assert np.isnan(medians[:2]).all()
    assert medians[2:].tolist() == [float(np.median(values[max(at - 6, 0) : at + 1])) for at in range(2, 300)]
    assert np.isnan(trailing_median(values[:6], 7)).all()


def test_what_is_usual_is_made_of_the_rows_before() -> None:
    """By hand, without a trend: 1, 2, 3, then 2, 9, 2 with a level of 3 rows and noise of 4 (from 1 on)."""
    found = usual(np.array([1.0, 2, 3, 2, 2, 2]), Window(level=3, noise=4, floor=0.5))
    assert found.level[4:].tolist() == [2, 2]
    assert np.isnan(found.level[:4]).all()
    assert found.noise[4:].tolist() == [0.5, 0.5]
