"""Training logs that were never trained, with spikes at known places.

The loss falls as a power of the step from the loss of an untrained model, after a warm-up in which it barely moves; its
noise is that of batches: a little heavier in its tails than normal (Student's t with 8 degrees of freedom), correlated
from row to row (0.2), larger early on. Where the learning rate is dropped, the loss falls within some tens of steps by
a few hundredths to a quarter. The gradient norm is log-normal and peaks in the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Planted:
    """A spike: the first row, the row where its height has decayed below the noise, and its height."""

    start: int
    end: int
    height: float


@dataclass(frozen=True)
class Curve:
    """One training log."""

    loss: Floats
    grad_norm: Floats
    planted: list[Planted]


def curve(seed: int, rows: int = 6000) -> Curve:
    """A log of `rows` steps with 0 to 5 spikes, none closer to another than 150 rows."""
    rng = np.random.default_rng([8, seed])
    step = np.arange(rows)
    warm_up = rng.integers(100, 800)
    floor, start = rng.uniform(1.6, 2.6), rng.uniform(10.3, 11.8)
    progress = np.where(step < warm_up, step**2 / (2 * warm_up), step - warm_up / 2)
    clean = floor + (start - floor) * (1 + progress / rng.uniform(60, 200)) ** -rng.uniform(0.45, 0.7)
    drop = int(rng.integers(rows // 2, rows - 500))
    clean = clean - rng.uniform(0.03, 0.25) * -np.expm1(-np.maximum(step - drop, 0) / rng.uniform(15, 60))
    sigma = rng.uniform(0.015, 0.05) * (1 + 2 * np.exp(-step / 300))
    raw = rng.standard_t(8, rows) * np.sqrt(6 / 8)
    noise = np.empty(rows)
    noise[0] = raw[0]
    for at in range(1, rows):
        noise[at] = 0.2 * noise[at - 1] + np.sqrt(1 - 0.04) * raw[at]
    added, planted = _spikes(rng, rows, float(sigma[-1]))
    grad = np.exp(rng.normal(0, rng.uniform(0.08, 0.2), rows)) * (0.3 + 2 * np.exp(-((step - warm_up) ** 2) / 2e4))
    return Curve(clean + sigma * noise + added, grad, planted)


def _spikes(rng: np.random.Generator, rows: int, sigma: float) -> tuple[Floats, list[Planted]]:
    """0 to 5 spikes that rise within 1 to 5 rows to 0.25 to 3 nats and decay within 5 to 60 rows."""
    added, planted = np.zeros(rows), []
    wanted = int(rng.integers(0, 6))
    places: list[int] = []
    while len(places) < wanted:
        place = int(rng.integers(250, rows - 100))
        if all(abs(place - other) > 400 for other in places):
            places.append(place)
    for place in sorted(places):
        height, rise, decay = np.exp(rng.uniform(np.log(0.25), np.log(3))), int(rng.integers(1, 6)), rng.uniform(5, 60)
        after = np.arange(rows - place)
        added[place:] += height * np.minimum((after + 1) / rise, 1) * np.exp(-np.maximum(after - rise, 0) / decay)
        over = int(rise + decay * np.log(max(height / sigma, 1)))
        planted.append(Planted(place, place + over, float(height)))
    return added, planted
