"""The vocabulary of a comparison with HTA (HolisticTraceAnalysis); all times are int ns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

#: Figures of both tools this close are the same, as a share of steptime's.
AGREEMENT = 0.005


class Kind(IntEnum):
    """What a device event does. `OTHER` is a kind of HTA only: busy, and in no other figure."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    OTHER = 3


#: The figures compared, with the kinds that each is made of. `overlap`: communication while a compute kernel runs;
#: `non_compute`: busy, but in no compute kernel.
FIGURES: dict[str, tuple[Kind, ...]] = {
    "compute": (Kind.COMPUTE,),
    "communication": (Kind.COMMUNICATION,),
    "copy": (Kind.COPY,),
    "overlap": (Kind.COMPUTE, Kind.COMMUNICATION),
    "idle": tuple(Kind),
    "non_compute": tuple(Kind),
}


class Cause(Enum):
    """A difference in definition: what HTA 0.5.0 does and steptime does not, and where HTA does it."""

    DEVICES = "one timeline for all devices of the file"  # analyzers/breakdown_analysis.py: devices are not told apart
    KINDS = "the kind told by the event's name"  # utils/utils.py: get_kernel_type
    UNLAUNCHED = "events not launched in the recorded steps left out"  # common/trace.py: _filter_irrelevant_gpu_kernels
    NOT_WORK = "records with a stream counted as work"  # analyzers/breakdown_analysis.py: trace_df["stream"].ne(-1)
    CLEANED = "impossible events counted"  # nothing in HTA corresponds to steptime.trace.cleaning
    ROUNDING = "events cut to whole microseconds"  # common/trace_parser.py: round_down_time_stamps
    FLOATS = "times as floating-point microseconds"  # common/trace_parser.py: the JSON numbers as they are
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Example:
    """An event that a cause is about, and its kind to both tools (None: not an event of the device)."""

    name: str
    steptime: Kind | None
    hta: Kind | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one cause adds to a figure of steptime's, how many events it is about, and the costliest of them."""

    cause: Cause
    ns: int
    count: int
    example: Example | None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both tools. The effects add up to the difference."""

    figure: str
    hta_ns: int
    steptime_ns: int
    effects: tuple[Effect, ...]

    @property
    def difference_ns(self) -> int:
        """HTA's figure less steptime's."""
        return self.hta_ns - self.steptime_ns

    @property
    def agrees(self) -> bool:
        """Whether both figures are the same within `AGREEMENT`."""
        return abs(self.difference_ns) <= AGREEMENT * self.steptime_ns

    @property
    def explained(self) -> bool:
        """Whether the figures agree, or would but for causes that are known."""
        unknown_ns = sum(effect.ns for effect in self.effects if effect.cause is Cause.UNKNOWN)
        return self.agrees or abs(unknown_ns) <= AGREEMENT * self.steptime_ns


@dataclass(frozen=True, slots=True)
class Crosscheck:
    """Both tools on one file, over `interval_ns` from the first to the last event that HTA takes for device work."""

    path: str
    hta_version: str
    interval_ns: int
    rows: tuple[Row, ...]
