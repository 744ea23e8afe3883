"""Random numbers that depend only on what they are for.

Every draw is a hash of (seed, what it is for, rank). So a job simulated again without its fault sees the very same
jitter on every kernel that both have, and the difference of the two is the fault's doing.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

# Constants of SplitMix64 (Steele, Lea, Flood 2014), the usual mixer for counters.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mixed(state: U64) -> U64:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


class Noise:
    """A source of random numbers for one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _hash(self, what: tuple[object, ...]) -> np.uint64:
        digest = hashlib.blake2b(repr((self.seed, what)).encode(), digest_size=8).digest()
        return np.uint64(int.from_bytes(digest, "little"))

    def uniform(self, what: tuple[object, ...], ranks: U64) -> F64:
        """Uniform in (0, 1), one a rank; float64 [n]."""
        with np.errstate(over="ignore"):
            mixed = _mixed(self._hash(what) + (ranks + np.uint64(1)) * _GOLDEN)
        result: F64 = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return result

    def one(self, *what: object) -> float:
        """One uniform number in (0, 1)."""
        return float(self.uniform(what, np.zeros(1, np.uint64))[0])

    def normal(self, what: tuple[object, ...], ranks: U64) -> F64:
        """Standard normal (Box and Muller), one a rank; float64 [n]."""
        radius = np.sqrt(-2.0 * np.log(self.uniform((*what, 0), ranks)))
        result: F64 = radius * np.cos(2.0 * np.pi * self.uniform((*what, 1), ranks))
        return result

    def factor(self, sigma: float, what: tuple[object, ...], ranks: U64) -> F64 | float:
        """Log-normal factors around 1, one a rank; 1.0 where `sigma` is 0."""
        if not sigma:
            return 1.0
        result: F64 = np.exp(sigma * self.normal(what, ranks))
        return result
