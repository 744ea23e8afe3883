"""Lines through the ends of collectives: offset and drift of each clock, kept inside what causality allows.

Arithmetic on one table of ends by match and clock; what the clocks belong to is `clocks`' business.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I64

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Clocks of computers drift by tens of parts per million (quartz: 20 to 50, temperature included).
DRIFT_SCALE = 30e-6
#: No offset is known better than this: time stamps of devices are good to about a microsecond.
LEAST_ERROR_NS = 1_000
#: Members further off the fit than this many spreads say nothing about causality: they may be matched wrongly.
FAR_SPREADS, FAR_NS = 10.0, 200_000

#: Of the ends of a match, the quantile that stands for its end.
EARLY = 0.25

_FIT_ROUNDS, _SOLVE_ROUNDS, _PUSH_ROUNDS = 12, 200, 60
#: Fewer ends than this of a clock are few. Student's t (97.5 %) over the normal distribution's 1.96, by degrees of
#: freedom.
_FEW = 32
_DEGREES, _WIDER = (1, 2, 3, 4, 5, 7, 10, 30), (6.48, 2.20, 1.62, 1.42, 1.31, 1.21, 1.14, 1.04)


class Ends(msgspec.Struct, frozen=True):
    """Barrier collectives by clock, one entry for each (match, clock) of matches that several clocks share.

    match, clock int64 [n]; end_ns float64 [n]: middle of the ends of the clock's members; least_ns, latest_ns float64
    [n]: their first end and last start; all less the clock's coarse offset and `zero_ns`. tau float64 [n]: the match's
    mean end scaled to [-1, 1]: ``(mean - middle_ns) / half_ns``. firm bool [n]: of a collective with barrier semantics;
    the others end together as a rule, but causality binds them on one side only.
    """

    match: I64
    clock: I64
    end_ns: F64
    least_ns: F64
    latest_ns: F64
    tau: F64
    firm: Mask
    clocks: int
    zero_ns: int
    middle_ns: float
    half_ns: float


class Lines(msgspec.Struct, frozen=True):
    """What to take from a clock's time: offset + slope * tau, float64 [clocks] each, in ns."""

    offset: F64
    slope: F64

    def at(self, ends: Ends) -> F64:
        """The distance at each entry, float64 [n]."""
        result: F64 = self.offset[ends.clock] + self.slope[ends.clock] * ends.tau
        return result


def fit_lines(ends: Ends) -> Lines:
    """Lines that minimise a sum of absolute differences of ends, by least squares with weights 1 / difference.

    What delays an end is only ever late, so the early ends of a match are the steady ones, as the fastest replies are
    for NTP's clock filter (RFC 5905, section 10): an end is compared with the quantile `EARLY` of its match, and being
    early weighs more than being late.
    """
    lines = Lines(np.zeros(ends.clocks), np.zeros(ends.clocks))
    scale = DRIFT_SCALE * ends.half_ns
    weight = np.ones(len(ends.match))
    for _ in range(_FIT_ROUNDS):
        corrected = ends.end_ns - lines.at(ends)
        late = corrected - (np.bincount(ends.match, weight * corrected) / np.bincount(ends.match, weight))[ends.match]
        spread = max(1.4826 * float(np.median(np.abs(late))), 100.0)
        side = np.where(late >= 0, EARLY, 1.0 - EARLY) / 0.5
        weight = side * spread / np.maximum(np.abs(late), 0.1 * spread)
        lines = _solve(ends, weight, spread / scale**2, lines)
    return lines


def _differences(ends: Ends, lines: Lines) -> F64:
    """Each corrected end less the mean of the other clocks' ends of its match, float64 [n]."""
    corrected = ends.end_ns - lines.at(ends)
    count = np.bincount(ends.match)[ends.match]
    mean = np.bincount(ends.match, corrected)[ends.match] / count
    result: F64 = (corrected - mean) * count / (count - 1)
    return result


def _solve(ends: Ends, weight: F64, ridge: float, start: Lines) -> Lines:
    """Weighted least squares with free ends of the matches, by conjugate gradients on the normal equations.

    ridge: weight of the drift's own expectation, that it is 0. What is common to all clocks stays undetermined.
    """
    clocks = ends.clocks
    per_match = np.bincount(ends.match, weight)

    def centred(values: F64) -> F64:
        mean = np.bincount(ends.match, weight * values) / per_match
        result: F64 = weight * (values - mean[ends.match])
        return result

    def gathered(values: F64) -> F64:
        return np.concatenate(
            [
                np.bincount(ends.clock, values, minlength=clocks),
                np.bincount(ends.clock, values * ends.tau, minlength=clocks),
            ]
        )

    def normal(x: F64) -> F64:
        result = gathered(centred(x[:clocks][ends.clock] + x[clocks:][ends.clock] * ends.tau))
        result[clocks:] += ridge * x[clocks:]
        return result

    diagonal = gathered(weight)
    diagonal[clocks:] = np.bincount(ends.clock, weight * ends.tau**2, minlength=clocks) + ridge
    scale = 1.0 / np.maximum(diagonal, 1e-12)
    x = np.concatenate([start.offset, start.slope])
    rest = gathered(centred(ends.end_ns)) - normal(x)
    toward = scale * rest
    power = float(rest @ toward)
    for _ in range(_SOLVE_ROUNDS):
        if power <= 1e-6 * clocks:
            break
        image = normal(toward)
        step = power / max(float(toward @ image), 1e-30)
        x = x + step * toward
        rest = rest - step * image
        before, power = power, float(rest @ (scale * rest))
        toward = scale * rest + (power / before) * toward
    return Lines(x[:clocks], x[clocks:])


def anchored(lines: Lines, component: I64) -> Lines:
    """The same distances with the first clock of each part of the job at 0."""
    return Lines(lines.offset - lines.offset[component], lines.slope - lines.slope[component])


def inside_bounds(ends: Ends, lines: Lines) -> Lines:
    """Move offsets until no collective ends on one clock before all have started on the others.

    Each round moves the two clocks of a match's earliest end and latest start apart by what is missing, half each.
    """
    near = _near(ends, lines)
    offset = lines.offset.copy()
    for _ in range(_PUSH_ROUNDS):
        missing, late, early = _violations(ends, Lines(offset, lines.slope), near)
        if not len(missing) or missing.max() < 1.0:
            break
        push = np.zeros((2, ends.clocks))
        np.maximum.at(push[0], late, missing)
        np.maximum.at(push[1], early, missing)
        offset = offset + (push[0] - push[1]) / 2
    return Lines(offset, lines.slope)


def _near(ends: Ends, lines: Lines) -> Mask:
    """Entries of barriers whose ends all lie near the fit."""
    difference = np.abs(_differences(ends, lines))
    limit = max(FAR_SPREADS * 1.4826 * float(np.median(difference)), FAR_NS)
    worst = np.zeros(int(ends.match.max()) + 1)
    np.maximum.at(worst, ends.match, difference)
    result: Mask = (worst <= limit)[ends.match] & ends.firm
    return result


def _violations(ends: Ends, lines: Lines, near: Mask) -> tuple[F64, I64, I64]:
    """Matches that end too early: by how much, the clock of the latest start and that of the earliest end."""
    which = np.flatnonzero(near)
    if not len(which):
        return np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
    distance = lines.at(ends)[which]
    first_end = ends.least_ns[which] - distance
    last_start = ends.latest_ns[which] - distance
    match = ends.match[which]
    head = np.flatnonzero(np.append(True, match[1:] != match[:-1]))
    by_end = which[np.lexsort((first_end, match))][head]
    by_start = which[np.lexsort((last_start, match))][np.append(head[1:], len(which)) - 1]
    missing = np.maximum.reduceat(last_start, head) - np.minimum.reduceat(first_end, head)
    late, early = ends.clock[by_start], ends.clock[by_end]
    broken = (missing > 0) & (late != early)
    return missing[broken], late[broken], early[broken]


def errors(ends: Ends, lines: Lines) -> F64:
    """How far each clock may be off: the spread of its ends against the others', or what causality leaves open.

    With few collectives a spread says little: then (nearly) the largest difference counts, by as much more as an
    interval from so few is wider (Student's t), a line having taken two of them.
    """
    difference = np.abs(_differences(ends, lines))
    count = np.bincount(ends.clock, minlength=ends.clocks)
    known = count > 0
    # Where messages join parts of the job, a clock is not known better than either kind of end tells.
    spread = np.maximum(*(_spread(difference[kind], ends.clock[kind], ends.clocks) for kind in (ends.firm, ~ends.firm)))
    open_ns = _slack(ends, lines)
    open_ns = np.where(np.isfinite(open_ns), open_ns, spread)
    missing, late, early = _violations(ends, lines, _near(ends, lines))
    error = np.where(count < 3, open_ns, np.minimum(spread, np.maximum(open_ns, LEAST_ERROR_NS)))
    for clock in (late, early):
        np.maximum.at(error, clock, missing)
    return np.where(known, np.maximum(error, LEAST_ERROR_NS), 0.0)


def _spread(difference: F64, clock: I64, clocks: int) -> F64:
    """How far the ends of each clock differ from the others', float64 [clocks]; 0 for clocks without any."""
    order = np.lexsort((difference, clock))
    count = np.bincount(clock, minlength=clocks)
    first = np.cumsum(count) - count
    known = count > 0
    few = count < _FEW
    at = np.where(few, count - 1 - count // 8, count // 2)
    wider = np.where(few, np.interp(count - 2, _DEGREES, _WIDER), 1.4826)
    spread = np.zeros(clocks)
    spread[known] = difference[order][(first + at)[known]] * wider[known]
    return spread


def _slack(ends: Ends, lines: Lines) -> F64:
    """How far each clock could be moved against the others before a collective ended too early, float64 [clocks]."""
    distance = lines.at(ends)
    first_end, last_start = ends.least_ns - distance, ends.latest_ns - distance
    matches = int(ends.match.max()) + 1
    near = _near(ends, lines)
    ends_least, starts_latest = (
        _without_own(first_end, ends.match, matches, -1.0),
        _without_own(last_start, ends.match, matches, 1.0),
    )
    earlier = np.full(ends.clocks, np.inf)
    later = np.full(ends.clocks, np.inf)
    np.minimum.at(earlier, ends.clock[near], np.maximum(first_end - starts_latest, 0.0)[near])
    np.minimum.at(later, ends.clock[near], np.maximum(ends_least - last_start, 0.0)[near])
    result: F64 = np.maximum(earlier, later)
    return result


def _without_own(values: F64, match: I64, matches: int, sign: float) -> F64:
    """Over the other entries of each entry's match: the largest value (sign 1) or the least (sign -1)."""
    signed = sign * values
    order = np.lexsort((signed, match))
    last = np.append(np.flatnonzero(np.diff(match[order])), len(order) - 1)
    best, second = order[last], order[np.maximum(last - 1, 0)]
    top, next_ = np.zeros(matches), np.zeros(matches)
    top[match[best]], next_[match[best]] = signed[best], signed[second]
    is_best = np.zeros(len(values), np.bool_)
    is_best[best] = True
    result: F64 = sign * np.where(is_best, next_[match], top[match])
    return result
