"""TensorBoard event files to `Metrics`, read record by record with TensorBoard's own loader.

TensorBoard's `EventAccumulator` is not used: it samples long runs, and where the step goes back it drops what stood
before as orphaned, which is just what a restart looks like.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steptime.errors import LogError
from steptime.goodput.lines import Refused
from steptime.goodput.metrics_file import Metrics

_MARK = "tfevents"
#: A record of an event file: 8 bytes length, 4 of its checksum, the data, 4 of its checksum.
_HEAD_BYTES, _TAIL_BYTES = 12, 4


def read_events(path: str) -> Metrics:
    """Read one event file, or those of one folder as one run, in the order of their first events.

    Values of one file that follow each other with the same step are one row, with the time of the first of them.

    Raises:
        LogError: TensorBoard is not installed, the folder holds several runs or none, or no file holds a scalar.
    """
    files = _files(path)
    refused, notes = Refused(), []
    parts = [(first_s, rows) for file in files if (rows := _rows(file, refused)) for first_s in [rows[0][0]]]
    if not parts:
        said = f" ({refused.examples[0]})" if refused.examples else ""
        raise LogError(f"{path}: no scalar in it{said}: check that it is the folder of the training run")
    rows = [row for _, part in sorted(parts, key=lambda part: part[0]) for row in part]
    if len(parts) > 1:
        notes.append(f"{len(parts)} event files, which is what a run leaves that was started {len(parts)} times")
    names = list(dict.fromkeys(name for _, _, scalars in rows for name in scalars))
    values = {name: np.array([scalars.get(name, np.nan) for _, _, scalars in rows], np.float64) for name in names}
    nan = {name: np.array([np.isnan(scalars.get(name, 0.0)) for _, _, scalars in rows], np.bool_) for name in names}
    # An event holds float64 seconds, which tell microseconds and no more.
    micros = np.array([round(time_s * 1e6) for time_s, _, _ in rows], np.int64)
    return Metrics(
        path=path,
        kind="tensorboard",
        time_ns=micros * 1000,
        step=np.array([step for _, step, _ in rows], np.int64),
        values=values,
        logged_nan={name: mask for name, mask in nan.items() if mask.any()},
        bad_lines=refused.count,
        bad_examples=tuple(refused.examples),
        notes=tuple(notes),
    )


def _files(path: str) -> list[str]:
    if not Path(path).is_dir():
        return [path]
    folders: dict[str, list[str]] = {}
    for folder, _, names in os.walk(path):
        found = sorted(str(Path(folder) / name) for name in names if _MARK in name)
        if found:
            folders[folder] = found
    if path in folders:
        return folders[path]
    if len(folders) == 1:
        return next(iter(folders.values()))
    if not folders:
        raise LogError(f"{path}: a folder without TensorBoard event files: give the log itself")
    raise LogError(f"{path}: holds {len(folders)} runs: give the folder of one, such as {sorted(folders)[0]}")


def _rows(file: str, refused: Refused) -> list[tuple[float, int, dict[str, float]]]:
    """(time in s, step, scalars) of one file; a cut or damaged rest is counted."""
    rows: list[tuple[float, int, dict[str, float]]] = []
    read = 0
    for event in _events(file):
        read += 1
        scalars = _scalars(event)
        if not scalars:
            continue
        if rows and rows[-1][1] == event.step and not rows[-1][2].keys() & scalars.keys():
            rows[-1][2].update(scalars)
        else:
            rows.append((event.wall_time, event.step, scalars))
    whole, cut = _framed(file)
    for at in range(read, whole + cut):
        why = "cut at the end of the file" if cut and at == whole else "damaged, or after a damaged one"
        refused.add(f"{Path(file).name} record {at + 1}", why)
    return rows


def _events(file: str) -> Iterator[Any]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise LogError(f"{file}: reading event files needs TensorBoard: pip install 'steptime[tensorboard]'") from error
    from google.protobuf.message import DecodeError

    try:
        yield from LegacyEventFileLoader(file).Load()
    except (DecodeError, OSError):
        # What is not read is counted by the frames of the file.
        return


def _scalars(event: Any) -> dict[str, float]:
    from tensorboard.util import tensor_util

    found: dict[str, float] = {}
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            found[value.tag] = float(value.simple_value)
        elif kind == "tensor" and value.tensor.dtype and not value.tensor.string_val:
            array = tensor_util.make_ndarray(value.tensor)
            if array.size == 1 and array.dtype.kind in "fiu":
                found[value.tag] = float(array.reshape(-1)[0])
    return found


def _framed(file: str) -> tuple[int, bool]:
    """Whole records in the file by their frames, and whether a cut one follows."""
    size = Path(file).stat().st_size
    at, whole = 0, 0
    with Path(file).open("rb") as stream:
        while at + _HEAD_BYTES <= size:
            stream.seek(at)
            length = int.from_bytes(stream.read(8), "little")
            if at + _HEAD_BYTES + length + _TAIL_BYTES > size:
                break
            at += _HEAD_BYTES + length + _TAIL_BYTES
            whole += 1
    return whole, at < size
