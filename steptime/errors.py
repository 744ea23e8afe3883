"""Everything steptime refuses, and the exit codes.

The tree::

    StepTimeError            the base: one line that says file, cause and remedy; exit 2
    ├── UsageError           the request itself is wrong (unknown suffix, no such step)
    ├── TraceError           a trace can't be read or must not be trusted
    │   ├── NotATrace        JSON, but not a profiler trace: skipped inside a folder
    │   └── UnsupportedDevice  a trace of a device that steptime does not analyse yet
    ├── RankError            ranks are doubled, contradictory or unknowable
    ├── ReportError          a report file can't be read
    ├── GraphError           the job's graph can't be replayed: a defect in steptime, never the user's
    ├── LogError             a log of a run can't be read, or does not hold what is asked
    ├── CaptureError     a capture of a running job can't even be asked for
    └── AccountingError      leaves do not add up to the step: a defect in steptime, never the user's

To catch everything steptime raises on purpose: ``except StepTimeError``.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_REGRESSED = 1
EXIT_CANNOT_TELL = 2


class StepTimeError(Exception):
    """Base of all errors that steptime raises on purpose."""

    exit_code = EXIT_CANNOT_TELL


class UsageError(StepTimeError):
    """The request is wrong: an option, a suffix, a step that does not exist."""


class TraceError(StepTimeError):
    """A trace file can't be read, or its numbers could not be trusted."""


class NotATrace(TraceError):
    """The file is valid JSON but not a profiler trace."""


class UnsupportedDevice(TraceError):
    """The trace is of a device whose events steptime does not understand yet."""


class RankError(StepTimeError):
    """Two files claim one rank, or no rank can be told."""


class ReportError(StepTimeError):
    """A saved report can't be read."""


class GraphError(StepTimeError):
    """The graph of a job can't be replayed, or its instants are not those of a replay."""


class LogError(StepTimeError):
    """A log of a run can't be read, or does not hold what is asked of it."""


class CaptureError(StepTimeError):
    """A capture can't even be asked for: no process is meant, or its folder can't be written."""


class AccountingError(StepTimeError):
    """The leaves of a step do not add up to its duration."""
