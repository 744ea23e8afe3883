"""Whether a rank has become slower than it was: a change point in the median duration of its steps.

The last `RECENT` steps are held against the rank's own earlier ones. It has slowed down when the median of the recent
ones lies above the median of the earlier ones by the share that was asked for *and* by `SIGMAS` standard errors of a
median of `RECENT` values, as the spread of the earlier ones tells. Up to three long steps in seven, such as
checkpoints, never move it.
"""

from __future__ import annotations

from statistics import median

#: Steps kept; a power of two.
KEPT = 256
RECENT = 7
#: The baseline is the median of so many steps before the recent ones, and is unknown below the lesser number.
BASELINE, ENOUGH = 128, 24
#: The first steps of a job (or after a capture) load kernels, compile and fill caches.
SETTLING = 5
#: Steps between two looks at the baseline, which take tens of microseconds: the lesser number while it is young.
SOON, LATER = 16, 64
SIGMAS = 5.0
#: Steps that tell roughly how long one takes.
FEW = 3

# Standard deviation of normal values from their median absolute deviation: 1 / Φ⁻¹(3/4). And that of the median of
# seven standard normal values: the root of the variance 0.2104 of their fourth order statistic (Teichroew 1956).
_SIGMA_OF_MAD, _SD_OF_MEDIAN = 1.4826, 0.4587
_NEVER = 1 << 62
_DAY_S = 86_400.0


class Pace:
    """Keeps the durations of the last steps. slower: the share by which the pace must fall to count, 0.25 for 25 %."""

    def __init__(self, slower: float) -> None:
        self._slower = slower
        self._ring = [0] * KEPT  # 0: not to be counted
        self._count = 0
        self._since = SETTLING  # older steps are not to be compared with
        self._look_at = SETTLING + ENOUGH
        self._limit_ns = _NEVER
        self.baseline_ns: int | None = None

    def add(self, took_ns: int) -> bool:
        """Note a step that ended; True if the pace has fallen with it."""
        count = self._count
        self._ring[count & (KEPT - 1)] = took_ns
        self._count = count + 1
        if count >= self._look_at:
            self._look()
        return took_ns > self._limit_ns and self._has_fallen()

    def forget_last(self) -> None:
        """Don't count the last step: it was recorded, and recording slows a step down."""
        self._ring[(self._count - 1) & (KEPT - 1)] = 0

    def start_over(self) -> None:
        """The pace from now on is the usual one: it was captured as it is."""
        self._since = self._count + SETTLING
        self._look_at = self._since + ENOUGH
        self._limit_ns = _NEVER
        self.baseline_ns = None

    def last_ns(self, most: int) -> list[int]:
        """Durations of up to `most` last steps that count, oldest first."""
        return self.told(most)[1]

    def told(self, most: int) -> tuple[int, list[int]]:
        """How many steps have ended, and the durations of up to `most` last ones that count; on any thread."""
        count = self._count
        return count, self._between(max(0, count - most), count)

    def typical_ns(self) -> int | None:
        """Median of the last steps; None before there are any."""
        found = self.last_ns(SOON)
        return int(median(found)) if found else None

    def quick_ns(self) -> int | None:
        """A short one of the last steps, their lower quartile; None before there are enough to tell."""
        found = sorted(self.last_ns(SOON))
        return max(found[len(found) // 4], 1) if len(found) >= FEW else None

    def _look(self) -> None:
        end = self._count - RECENT
        earlier = self._between(max(self._since, end - BASELINE), end)
        self._look_at = self._count + (LATER if len(earlier) == BASELINE else SOON)
        if len(earlier) < ENOUGH - RECENT:
            return
        usual = median(earlier)
        sigma = _SIGMA_OF_MAD * median(abs(took - usual) for took in earlier)
        self.baseline_ns = int(usual)
        self._limit_ns = int(usual + max(self._slower * usual, SIGMAS * _SD_OF_MEDIAN * sigma))

    def _has_fallen(self) -> bool:
        recent = self._between(max(self._since, self._count - RECENT), self._count)
        return len(recent) == RECENT and median(recent) > self._limit_ns

    def _between(self, first: int, end: int) -> list[int]:
        first = max(first, self._count - KEPT, 0)
        return [took for index in range(first, end) if (took := self._ring[index & (KEPT - 1)])]


class Budget:
    """How often a job may capture itself: `a_day` times in any 24 hours, and not within `cooldown_s` of the last time.

    Times are in seconds of a clock that never jumps.
    """

    def __init__(self, cooldown_s: float, a_day: int) -> None:
        self._cooldown_s, self._a_day = cooldown_s, a_day
        self._spent_at: list[float] = []

    def allows(self, now_s: float) -> bool:
        """Whether there may be one now."""
        if self._spent_at and now_s - self._spent_at[-1] < self._cooldown_s:
            return False
        return sum(now_s - at < _DAY_S for at in self._spent_at) < self._a_day

    def spend(self, now_s: float) -> None:
        """There is one."""
        self._spent_at = [at for at in self._spent_at if now_s - at < _DAY_S] + [now_s]
