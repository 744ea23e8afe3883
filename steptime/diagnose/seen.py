"""What a verdict rests on, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.model import Report
from steptime.model.on_call import Pace, Suspect


@dataclass(frozen=True, slots=True)
class Seen:
    """A report and what was found in it, most costly first.

    baseline: None if there is none that it can be compared with. pace: a slow-down in the hook's step times, if there
    was one. missed: whether processes could not be traced.
    """

    report: Report
    found: list[Suspect]
    baseline: Report | None = None
    pace: Pace | None = None
    missed: bool = False
