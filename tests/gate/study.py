"""How often the gate is wrong: ``python -m tests.gate.study [PAIRS]``, 2,000 pairs of each kind by default.

Jobs are drawn from a model that shares nothing with the gate: a run effect (normal, of the logarithm), autocorrelated
steps (AR(1), 0.6, sd 0.5 %), each step slow with chance 0.1, by 20 to 100 %; 30 steps a run. Each pair goes through the
whole of `judge`. Exit code 1 if a promise is not kept. The bounds are Clopper and Pearson's.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np

from steptime.gate.judge import Question, judge
from steptime.gate.settings import Settings
from steptime.model.gate import Verdict
from tests.gate.runs import drawn

STEPS = 30
SEED = 2026
TODAY = datetime.date(2026, 12, 1)


@dataclass(frozen=True)
class Kind:
    """A kind of pair. sides: runs of candidate and baseline, one after the other; history: earlier runs."""

    sides: tuple[tuple[int, int], ...]
    run_sd: float
    factor: float = 1.0  # of the candidate's true step time
    history: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came out of the pairs of one kind. printed: median of the size that the verdicts say they would have caught.

    silent: how many passed although the truth was larger than the size printed.
    """

    kind: Kind
    pairs: int
    regressed: int
    cannot_tell: int
    printed: float
    silent: int

    @property
    def line(self) -> str:
        """The outcome in one line."""
        kind = self.kind
        sides = ", ".join(f"{candidate} v {baseline}" for candidate, baseline in kind.sides)
        history = f" and {kind.history} earlier" if kind.history else ""
        return (
            f"{sides}{history}; sd {kind.run_sd:.0%}, truth {kind.factor - 1:+5.1%}: "
            f"regressed {self.regressed / self.pairs:6.2%}, cannot tell {self.cannot_tell / self.pairs:6.2%}, "
            f"printed {self.printed:5.1%}, larger and passed {self.silent / self.pairs:6.2%}"
        )


def study(kind: Kind, pairs: int, seed: int = SEED) -> Outcome:
    """Draw and judge some pairs of a kind."""
    rng = np.random.default_rng([seed, *sum(kind.sides, ()), round(kind.run_sd * 1e4), kind.history])
    settings = Settings()
    verdicts: list[Verdict] = []
    for at in range(pairs):
        candidate, baseline = kind.sides[at % len(kind.sides)]
        question = Question(
            candidate=drawn(rng, candidate, kind.run_sd, STEPS, kind.factor),
            baseline=drawn(rng, baseline, kind.run_sd, STEPS),
            history=drawn(rng, kind.history, kind.run_sd, STEPS),
            accepted=[],
            today=TODAY,
        )
        verdicts.append(judge(question, settings))
    states = Counter(verdict.status for verdict in verdicts)
    printed = [verdict.judged[0].detectable or 0.0 for verdict in verdicts]
    silent = sum(
        verdict.status == "pass" and size < kind.factor - 1.0 for verdict, size in zip(verdicts, printed, strict=True)
    )
    return Outcome(kind, pairs, states["regressed"], states["cannot tell"], float(np.median(printed)), silent)


def upper_bound(count: int, of: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson bound: the rate at which `count` or fewer of `of` have a chance of 1 - confidence."""
    low, high = count / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _at_most(count, of, middle) > 1.0 - confidence else (low, middle)
    return high


def _at_most(count: int, of: int, rate: float) -> float:
    if rate >= 1.0:
        return 0.0
    whole = math.lgamma(of + 1)
    logs = (
        whole - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * math.log(rate) + (of - k) * math.log1p(-rate)
        for k in range(count + 1)
    )
    return sum(math.exp(log) for log in logs)


MANY, SEVERAL = ((3, 3), (3, 5), (5, 5), (4, 3)), ((1, 1), (1, 3), (2, 2), (1, 5))
SAME = [Kind(MANY, 0.01), Kind(MANY, 0.03), Kind(SEVERAL, 0.01), Kind(SEVERAL, 0.03)]
SLOWER = Kind(((3, 5),), 0.01, 1.04)
ONE = [Kind(((1, 3),), 0.01, factor) for factor in (1.0, 1.05, 1.10, 1.15)]
WITH_HISTORY = [Kind(((1, 3),), 0.01, factor, history=20) for factor in (1.0, 1.04)]


def main(arguments: list[str]) -> int:
    """Run the study and print its figures; 1 if a promise is not kept."""
    pairs = int(arguments[0]) if arguments else 2000
    kept = True
    for kind in SAME:
        outcome = study(kind, pairs)
        bound = upper_bound(outcome.regressed, pairs)
        told = kind.sides != MANY or outcome.cannot_tell <= 0.20 * pairs
        kept = kept and told and bound <= 0.02
        print(f"{outcome.line}; upper 95 % bound of false alarms {bound:.2%}", flush=True)  # noqa: T201
    for kind in [SLOWER, *ONE, *WITH_HISTORY]:
        outcome = study(kind, pairs)
        kept = kept and (kind != SLOWER or outcome.regressed >= 0.95 * pairs)
        kept = kept and (kind not in ONE or outcome.silent == 0)
        print(outcome.line, flush=True)  # noqa: T201
    print("every promise is kept" if kept else "a promise is not kept")  # noqa: T201
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
