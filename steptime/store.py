"""A report on disk: the JSON that `show`, `gate` and `goodput` read.

The file is `steptime.model.Report`, field for field. History of `SCHEMA_VERSION`:

====  =======  ==========================================================
 no.  since    what changed
====  =======  ==========================================================
  1   2026-11  first version
====  =======  ==========================================================

A field that only this version lacks is ignored when read, so adding one does not raise the number. Removing a field or
changing what it means does.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from steptime.errors import AccountingError, ReportError
from steptime.model import SCHEMA_VERSION, Report
from steptime.model.goodput import GOODPUT_KIND, GOODPUT_SCHEMA_VERSION, GoodputReport
from steptime.model.plan import PLAN_KIND, PLAN_SCHEMA_VERSION, Plan
from steptime.model.watch import WATCH_KIND, WATCH_SCHEMA_VERSION, Watch

_HEAD_BYTES = 1 << 20
#: First bytes of gzip, zip, zstd: traces are stored so, reports never.
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_TRACE_KEY = re.compile(rb'"traceEvents"|"deviceProperties"|"ph"\s*:\s*"')
_REMEDY_TRACE = "run `steptime analyze` on it first, with -o report.json"


class _Head(msgspec.Struct):
    """The fields that decide whether the rest may be read; a report on steps has no kind."""

    schema_version: int | None = None
    tool: dict[str, object] | None = None
    kind: str | None = None


def dumps(report: msgspec.Struct) -> str:
    """Return the report as indented JSON that ends in a newline; `load` gives it back unchanged.

    Characters that are no valid Unicode (from file names in another encoding) are written as ``\\udcXX`` text.
    """
    try:
        compact = msgspec.json.encode(report)
    except UnicodeEncodeError:
        compact = msgspec.json.encode(_valid_text(msgspec.to_builtins(report)))
    return msgspec.json.format(compact, indent=2).decode("utf-8") + "\n"


def save(report: Report, path: Path | str) -> None:
    """Write the report to `path`.

    Raises:
        ReportError: the file can't be written.
    """
    try:
        Path(path).write_text(dumps(report), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: can't be written ({_reason(error)}): choose another place with -o") from error


def is_report(path: Path | str) -> bool:
    """Whether a local file is written as a report is: not compressed, and with a schema version at its head."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.lstrip().startswith(b"{") and b'"schema_version"' in head and b'"traceEvents"' not in head


def load(path: Path | str) -> Report:
    """Read a report that `save` wrote; unknown fields are ignored.

    Raises:
        ReportError: there is no such file, it is not a report (a trace is recognised), its schema version is not one
            that this version reads, or its parts do not add up.
    """
    data = _read(path)
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError as error:
        raise _not_a_report(path, data) from error
    except (msgspec.DecodeError, RecursionError) as error:
        if _TRACE_KEY.search(data, 0, _HEAD_BYTES):
            raise _not_a_report(path, data) from error
        raise ReportError(f"{path}: not valid JSON ({error}): write it again with `steptime analyze -o`") from error
    _check_version(path, head, data)
    try:
        report = msgspec.json.decode(data, type=Report)
    except msgspec.ValidationError as error:
        raise ReportError(f"{path}: not a valid report ({error}): write it again with `steptime analyze -o`") from error
    _check_sums(path, report)
    return report


def is_of_a_run(path: Path | str) -> bool:
    """Whether a file holds a report that `load_run` reads."""
    return kind_of(path) in _RUN_KINDS


def kind_of(path: Path | str) -> str | None:
    """What kind of report a file holds (``goodput``, ...); None for a report on steps, or for what is no report."""
    try:
        return msgspec.json.decode(_read(path), type=_Head).kind
    except msgspec.DecodeError:
        return None


#: What `steptime goodput` and its verbs write: by kind, the type and the schema version that this version reads.
_RUN_KINDS: dict[str, tuple[type[GoodputReport] | type[Plan] | type[Watch], int]] = {
    GOODPUT_KIND: (GoodputReport, GOODPUT_SCHEMA_VERSION),
    PLAN_KIND: (Plan, PLAN_SCHEMA_VERSION),
    WATCH_KIND: (Watch, WATCH_SCHEMA_VERSION),
}


def load_goodput(path: Path | str) -> GoodputReport:
    """Read a report that `steptime goodput -o` wrote on logs; unknown fields are ignored.

    Raises:
        ReportError: as `load_run`, or it is a plan or a watch.
    """
    report = load_run(path)
    if not isinstance(report, GoodputReport):
        raise ReportError(f"{path}: a report of `steptime {report.kind}`: give one of `steptime goodput` on logs")
    return report


def load_run(path: Path | str) -> GoodputReport | Plan | Watch:
    """Read a report that `steptime goodput`, its plan or its watch wrote with -o; unknown fields are ignored.

    Raises:
        ReportError: there is no such file, it is no goodput report, its schema version is not one that this version
            reads, or its parts do not add up.
    """
    data = _read(path)
    remedy = "write it again with `steptime goodput -o`"
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.DecodeError as error:
        raise ReportError(f"{path}: not a report of `steptime goodput` ({error}): {remedy}") from error
    if head.kind not in _RUN_KINDS:
        raise ReportError(f"{path}: JSON, but not a report of `steptime goodput`: {remedy}")
    form, version = _RUN_KINDS[head.kind]
    if head.schema_version != version:
        raise ReportError(
            f"{path}: {head.kind} report of schema version {head.schema_version}, this steptime reads version "
            f"{version}: {remedy}"
        )
    try:
        report = msgspec.json.decode(data, type=form)
        if isinstance(report, GoodputReport):
            report.check()
    except (msgspec.ValidationError, AccountingError) as error:
        raise ReportError(f"{path}: edited or damaged ({error}): {remedy}") from error
    return report


def _read(path: Path | str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
            # A trace may have gigabytes: it is told by its head, before the rest is read.
            if head.startswith(_COMPRESSED):
                raise ReportError(f"{path}: compressed, so not a report; if it is a trace, {_REMEDY_TRACE}")
            if _TRACE_KEY.search(head) and b'"schema_version"' not in head:
                raise _not_a_report(path, head)
            return head + file.read()
    except IsADirectoryError as error:
        raise ReportError(f"{path}: a folder, not a report; if it holds traces, {_REMEDY_TRACE}") from error
    except FileNotFoundError as error:
        raise ReportError(f"{path}: no such file: check the path") from error
    except OSError as error:
        raise ReportError(f"{path}: can't be read ({_reason(error)}): check the file") from error


def _not_a_report(path: Path | str, data: bytes) -> ReportError:
    if _TRACE_KEY.search(data, 0, _HEAD_BYTES):
        return ReportError(f"{path}: a profiler trace, not a report: {_REMEDY_TRACE}")
    return ReportError(f"{path}: JSON, but not a steptime report: give a file that `steptime analyze -o` wrote")


def _check_version(path: Path | str, head: _Head, data: bytes) -> None:
    if head.schema_version is None:
        raise _not_a_report(path, data)
    if head.schema_version != SCHEMA_VERSION:
        writer = f"steptime {(head.tool or {}).get('version', 'of unknown version')}"
        remedy = "upgrade steptime" if head.schema_version > SCHEMA_VERSION else "analyze the traces again"
        raise ReportError(
            f"{path}: report of schema version {head.schema_version}, written by {writer}; "
            f"this steptime reads version {SCHEMA_VERSION}: {remedy}"
        )


def _check_sums(path: Path | str, report: Report) -> None:
    """Refuse a file whose parts do not add up: it was edited or damaged, and its figures would look plausible.

    Leaves that this version does not know count like any other.
    """
    parts = report.job.productive_ns + sum(part.ns or 0 for part in report.job.slices)
    wrong = f"the job's parts hold {parts} ns of {report.job.total_ns} ns" if parts != report.job.total_ns else ""
    for rank in report.ranks:
        for step in rank.steps:
            spent = step.productive_ns + sum(step.leaves_ns.values())
            if spent != step.dur_ns:
                wrong = wrong or f"rank {rank.rank} step {step.step}: parts hold {spent} ns of {step.dur_ns} ns"
    if wrong:
        raise ReportError(f"{path}: edited or damaged, {wrong}: write it again with `steptime analyze -o`")


def _valid_text(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_valid_text(key): _valid_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_valid_text(item) for item in value]
    return value


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
