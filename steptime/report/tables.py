"""A report's tables as pandas DataFrames, to filter, join and plot.

Times are int64 nanoseconds (columns end in ``_ns``), shares are 0 to 1; a missing value means "can't be told from these
traces", never zero. Frames of an empty report have the same columns and dtypes and no rows. pandas loads on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steptime.model import Report
from steptime.taxonomy import LEAVES

if TYPE_CHECKING:
    import pandas as pd


def steps_table(report: Report) -> pd.DataFrame:
    """One row for each rank, device and step.

    Columns: ``rank`` int64; ``device`` Int64 (missing: CPU); ``host`` string; ``step`` int64; ``class`` string;
    ``edge`` bool; ``start_ns``, ``dur_ns``, ``productive_ns`` int64; then one int64 column of nanoseconds for each
    leaf that any step has, named ``slice/leaf``, 0 where a step has none. In each row ``productive_ns`` and the leaf
    columns add up to ``dur_ns``.
    """
    steps = [(rank, step) for rank in report.ranks for step in rank.steps]
    present = {key for _, step in steps for key in step.leaves_ns}
    known = [leaf.key for leaf in LEAVES if leaf.key in present]
    leaves = known + sorted(present.difference(known))
    rows = (
        (rank.rank, rank.device, rank.host, step.step, step.class_, step.edge, step.start_ns, step.dur_ns)
        + (step.productive_ns, *(step.leaves_ns.get(key, 0) for key in leaves))
        for rank, step in steps
    )
    dtypes = {
        "rank": "int64",
        "device": "Int64",
        "host": "string",
        "step": "int64",
        "class": "string",
        "edge": "bool",
        "start_ns": "int64",
        "dur_ns": "int64",
        "productive_ns": "int64",
    }
    return _frame(dtypes | dict.fromkeys(leaves, "int64"), rows)


def leaves_table(report: Report) -> pd.DataFrame:
    """One row for each leaf of the job, in the order of the report.

    Columns: ``slice``, ``leaf`` string; ``ns`` Int64, total over the counted (rank, step) pairs; ``share`` Float64 of
    the total; ``per_step_ns`` Float64, mean per pair; ``recoverable_ns`` Int64; ``mfu_if_removed`` Float64.
    """
    pairs = max(report.job.rank_steps, 1)
    rows = (
        (part.id, leaf.id, leaf.ns, leaf.share, None if leaf.ns is None else leaf.ns / pairs)
        + (leaf.recoverable_ns, leaf.mfu_if_removed)
        for part in report.job.slices
        for leaf in part.leaves
    )
    dtypes = {
        "slice": "string",
        "leaf": "string",
        "ns": "Int64",
        "share": "Float64",
        "per_step_ns": "Float64",
        "recoverable_ns": "Int64",
        "mfu_if_removed": "Float64",
    }
    return _frame(dtypes, rows)


def causes_table(report: Report) -> pd.DataFrame:
    """One row for each named cause, costliest first.

    Columns: ``leaf`` (``slice/leaf``), ``what``, ``where`` string; ``ns`` int64, total over the counted (rank, step)
    pairs; ``share`` float64 of the job's total; ``per_step_ns`` float64, mean per pair; ``count`` int64 occurrences;
    ``rank_steps`` int64 pairs in which it occurred.
    """
    pairs = max(report.job.rank_steps, 1)
    rows = (
        (one.leaf, one.what, one.where, one.ns, one.share, one.ns / pairs, one.count, one.rank_steps)
        for one in sorted(report.causes, key=lambda cause: -cause.ns)
    )
    dtypes = {
        "leaf": "string",
        "what": "string",
        "where": "string",
        "ns": "int64",
        "share": "float64",
        "per_step_ns": "float64",
        "count": "int64",
        "rank_steps": "int64",
    }
    return _frame(dtypes, rows)


def kernels_table(report: Report) -> pd.DataFrame:
    """One row for each kernel name in each leaf, in the order of the report.

    Columns: ``name``, ``leaf`` (``slice/leaf``) string; ``count`` int64 launches over the counted (rank, step) pairs;
    ``dur_ns`` int64, their durations together; ``owned_ns`` int64, the part of that no other kernel owned.
    """
    dtypes = {"name": "string", "leaf": "string", "count": "int64", "dur_ns": "int64", "owned_ns": "int64"}
    return _frame(dtypes, ((one.name, one.leaf, one.count, one.dur_ns, one.owned_ns) for one in report.kernels))


def _frame(dtypes: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    import pandas as pd

    columns = list(zip(*rows, strict=True)) or [()] * len(dtypes)
    # Typed column by column: through one object frame, int64 with missing values would become float and lose digits.
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=pd.api.types.pandas_dtype(dtype))
            for (name, dtype), values in zip(dtypes.items(), columns, strict=True)
        }
    )
