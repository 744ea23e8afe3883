"""An op-level recording as arrays: ``trace-NAME.parquet`` with one row for each op, ``meta-NAME.yaml`` with the sizes.

Times are float seconds from the start of their step; an op's end is the sum of its start and duration in the
precision of the file, as its authors add them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.errors import TraceError, UsageError
from steptime.trace.events import I64
from steptime.whatif.oplevel.ops import NAMES

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = ("dp_rank", "stage", "step", "seq_id")
_TIMES = ("start_ts", "duration")
_SIZES = ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "world_size")
#: No step lasts so long; what does is in another unit than seconds.
_LONGEST_S = 1e4
#: Steps that begin before their own zero by more than this have another clock (the earliest op is at 0).
_EARLIEST_S = -1.0


class Layout(msgspec.Struct, frozen=True):
    """The sizes of a job: dp_size data-parallel ranks times pp_size stages are recorded, each a worker.

    A worker stands for ``tp_size * dsp_size`` ranks that run alike.
    """

    name: str
    dp_size: int
    pp_size: int
    tp_size: int
    dsp_size: int

    @property
    def workers(self) -> int:
        """How many workers are recorded."""
        return self.dp_size * self.pp_size

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self.workers * self.tp_size * self.dsp_size

    def rank(self, dp_rank: int, stage: int) -> int:
        """The global rank of a worker's recording."""
        return (stage * self.dp_size + dp_rank) * self.tp_size * self.dsp_size


class Recording(msgspec.Struct, frozen=True):
    """The rows of the file, length r, in its order.

    op int8 (`ops.Op`); dp_rank, stage, step, seq int64; start_ns, end_ns, dur_ns int64 from the zero of the op's step.
    """

    path: str
    layout: Layout
    op: NDArray[np.int8]
    dp_rank: I64
    stage: I64
    step: I64
    seq: I64
    start_ns: I64
    end_ns: I64
    dur_ns: I64


def read(path: Path) -> Recording:
    """Read `path` and the sizes beside it.

    Raises:
        UsageError: pyarrow is not installed.
        TraceError: a file is missing, can't be read, or holds what is no op-level recording.
    """
    frame = _frame(path)
    layout = _layout(_beside(path))
    whole = {name: _whole(path, frame[name]) for name in _WHOLE}
    for name, size in (("dp_rank", layout.dp_size), ("stage", layout.pp_size)):
        if whole[name].min() < 0 or whole[name].max() >= size:
            raise TraceError(
                f"{path}: {name} goes from {whole[name].min()} to {whole[name].max()}, but {_beside(path).name} says "
                f"{size}: is it the file of another job?"
            )
    if whole["seq_id"].min() < 0:
        raise TraceError(f"{path}: seq_id is negative in some rows, so ops of one type can't be told apart")
    start, duration = (_seconds(path, frame[name]) for name in _TIMES)
    if (duration < 0).any():
        raise TraceError(f"{path}: {int((duration < 0).sum()):,} ops have a negative duration: record the job again")
    if start.min() < _EARLIEST_S:
        raise TraceError(f"{path}: an op starts {-start.min():.3g} s before the zero of its step: record the job again")
    return Recording(
        path=str(path),
        layout=layout,
        op=_ops(path, frame["optype"]),
        dp_rank=whole["dp_rank"],
        stage=whole["stage"],
        step=whole["step"],
        seq=whole["seq_id"],
        start_ns=_ns(start),
        end_ns=_ns(start + duration),
        dur_ns=_ns(duration),
    )


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise UsageError(f"{path}: reading Parquet files needs pyarrow: pip install 'steptime[oplevel]'") from error
    except (OSError, ValueError, NotImplementedError) as error:
        # What pyarrow raises is a ValueError or an OSError, its first line says what it stumbled over.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise TraceError(f"{path}: can't be read as Parquet ({reason}): copy or record it again") from error
    missing = [name for name in (*_WHOLE, "optype", *_TIMES) if name not in frame.columns]
    if missing:
        raise TraceError(f"{path}: no column {', '.join(missing)}: this is not an op-level recording")
    if frame.empty:
        raise TraceError(f"{path}: holds no ops")
    return frame


def _beside(path: Path) -> Path:
    return path.with_name(f"meta-{path.stem.removeprefix('trace-')}.yaml")


def _layout(path: Path) -> Layout:
    """The sizes in `path`: a flat YAML mapping, ``name: value`` a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; it holds the sizes of the job (dp_size, pp_size, ...)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: can't be read ({error})") from error
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        name, colon, value = text.partition(":")
        if not colon:
            raise TraceError(f"{path}: line {number} is not of the form `name: value`")
        values[name.strip()] = value.strip().strip("\"'")
    sizes = {name: _size(path, values, name) for name in _SIZES}
    if sizes["vpp_size"] != 1:
        raise TraceError(
            f"{path}: vpp_size is {sizes['vpp_size']}: only jobs with one model chunk a stage can be replayed"
        )
    layout = Layout(
        name=values.get("trial_name") or path.stem.removeprefix("meta-"),
        **{name: sizes[name] for name in ("dp_size", "pp_size", "tp_size", "dsp_size")},
    )
    if layout.world_size != sizes["world_size"]:
        raise TraceError(
            f"{path}: world_size is {sizes['world_size']}, but dp_size x pp_size x tp_size x dsp_size is "
            f"{layout.world_size}: correct the one that is wrong"
        )
    return layout


def _size(path: Path, values: dict[str, str], name: str) -> int:
    text = values.get(name)
    if text is None:
        raise TraceError(f"{path}: says no {name}: add a line `{name}: N`")
    if not text.isdecimal() or int(text) < 1:
        raise TraceError(f"{path}: {name} is {text[:20]!r}, not a whole number from 1 on")
    return int(text)


def _whole(path: Path, column: pd.Series[Any]) -> I64:
    _refuse_empty(path, column)
    if column.dtype.kind not in "iu":
        raise TraceError(f"{path}: column {column.name} holds {column.dtype}, not whole numbers")
    return column.to_numpy(np.int64)


def _seconds(path: Path, column: pd.Series[Any]) -> NDArray[Any]:
    """The column in its own precision."""
    _refuse_empty(path, column)
    if column.dtype.kind != "f":
        raise TraceError(f"{path}: column {column.name} holds {column.dtype}, not seconds as floating-point numbers")
    values = column.to_numpy()
    if not (np.abs(values) < _LONGEST_S).all():
        raise TraceError(
            f"{path}: column {column.name} reaches {np.abs(values).max():.3g}, but holds seconds from each step's zero"
        )
    return values


def _refuse_empty(path: Path, column: pd.Series[Any]) -> None:
    empty = int(column.isna().sum())
    if empty:
        raise TraceError(f"{path}: column {column.name} is empty or NaN in {empty:,} of {len(column):,} rows")


def _ops(path: Path, column: pd.Series[Any]) -> NDArray[np.int8]:
    import pandas as pd

    _refuse_empty(path, column)
    codes = pd.Index(NAMES).get_indexer(pd.Index(column.astype(object)))
    if (codes < 0).any():
        name = str(column.iloc[int(np.argmax(codes < 0))])
        raise TraceError(f"{path}: ops of type {name[:60]!r}, and what they wait for is not known")
    return codes.astype(np.int8)


def _ns(seconds: NDArray[Any]) -> I64:
    # float32 keeps 24 bits: the product must be taken in float64.
    ns: I64 = np.rint(seconds.astype(np.float64) * 1e9).astype(np.int64)
    return ns
