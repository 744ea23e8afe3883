"""Where did the step time of a training job go, and what would each fix buy?

``steptime.analyze(["traces/"])`` returns a `Report`; `save` and `load` keep it as JSON, and the ``…_table`` functions
give its tables as pandas DataFrames. ``steptime.watch("captures")`` inside a training loop keeps its pace and captures
traces of a job that runs. Names are imported when they are first used, so that ``import steptime`` costs
next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptime.capture.watch import WatchSettings, watch
    from steptime.diff.compare import diff_reports
    from steptime.errors import StepTimeError
    from steptime.model import Report
    from steptime.pipeline import Options, analyze
    from steptime.report.tables import causes_table, kernels_table, leaves_table, steps_table
    from steptime.store import load, save

__version__ = "0.1.0"

_HOME = {
    "Options": "steptime.pipeline",
    "Report": "steptime.model",
    "StepTimeError": "steptime.errors",
    "WatchSettings": "steptime.capture.watch",
    "analyze": "steptime.pipeline",
    "causes_table": "steptime.report.tables",
    "diff_reports": "steptime.diff.compare",
    "kernels_table": "steptime.report.tables",
    "leaves_table": "steptime.report.tables",
    "load": "steptime.store",
    "save": "steptime.store",
    "steps_table": "steptime.report.tables",
    "watch": "steptime.capture.watch",
}

__all__ = [
    "Options",
    "Report",
    "StepTimeError",
    "WatchSettings",
    "__version__",
    "analyze",
    "causes_table",
    "diff_reports",
    "kernels_table",
    "leaves_table",
    "load",
    "save",
    "steps_table",
    "watch",
]

if not TYPE_CHECKING:  # A type checker that saw this would take any misspelt name for an object.

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'steptime' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
