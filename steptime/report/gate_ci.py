"""A gate's verdict in the forms of CI systems: GitHub annotations, JUnit XML, GitLab's code quality."""

from __future__ import annotations

import hashlib
from xml.etree import ElementTree

import msgspec

from steptime.model.gate import Judged, Verdict
from steptime.report import gate_words
from steptime.report.names import visible

_LEVELS = {"pass": "notice", "regressed": "error", "cannot tell": "warning"}
_SEVERITIES = {"regressed": "major", "cannot tell": "minor"}


def workflow_commands(verdict: Verdict) -> str:
    """Workflow commands of GitHub Actions: the verdict, and one more for each budget that is broken or unknown."""
    lines = [_command(verdict.status, "steptime gate", gate_words.headline(verdict))]
    lines += [
        _command(row.status, f"steptime gate: {row.name}", row.why)
        for row in verdict.judged[1:]
        if row.status != "pass"
    ]
    return "\n".join(lines) + "\n"


def _command(status: str, title: str, message: str) -> str:
    # https://docs.github.com/actions/reference/workflow-commands-for-github-actions: %, CR and LF are escaped, in
    # properties also : and the comma.
    body = visible(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = visible(title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{_LEVELS[status]} title={name}::{body}"


def junit(verdict: Verdict) -> str:
    """JUnit XML: one test case for each thing judged; "cannot tell" is an error, a regression a failure."""
    rows = verdict.judged or [Judged(name="comparable", status=verdict.status, why=verdict.reason)]
    failures = sum(row.status == "regressed" for row in rows)
    errors = sum(row.status == "cannot tell" for row in rows)
    counts = {"tests": str(len(rows)), "failures": str(failures), "errors": str(errors)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "steptime gate", **counts})
    for row in rows:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "steptime.gate", "name": _xml(row.name)})
        if row.status != "pass":
            kind = "failure" if row.status == "regressed" else "error"
            note = ElementTree.SubElement(case, kind, {"message": _xml(row.why), "type": row.status})
            note.text = _xml(_details(verdict))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _details(verdict: Verdict) -> str:
    moved = [" ".join(row) for row in gate_words.moved_rows(verdict)]
    return "\n".join([gate_words.headline(verdict), *([verdict.remedy] if verdict.remedy else []), *moved])


def _xml(text: str) -> str:
    """Text without the characters that XML can't hold."""
    return "\n".join(visible(line) for line in text.split("\n"))


def code_quality(verdict: Verdict, path: str) -> str:
    """GitLab's code quality report: one issue for each thing that did not pass; GitLab wants a file, so `path`."""
    rows = [row for row in verdict.judged if row.status != "pass"]
    if not rows and verdict.status != "pass":
        rows = [Judged(name="comparable", status=verdict.status, why=verdict.reason)]
    issues = [
        {
            "description": visible(gate_words.headline(verdict) if at == 0 else f"{row.name}: {row.why}"),
            "check_name": f"steptime gate: {row.name}",
            "fingerprint": hashlib.sha256(f"steptime gate {row.name}".encode()).hexdigest(),
            "severity": _SEVERITIES[row.status],
            "location": {"path": path, "lines": {"begin": 1}},
        }
        for at, row in enumerate(rows)
    ]
    return msgspec.json.format(msgspec.json.encode(issues), indent=1).decode() + "\n"


def as_json(verdict: Verdict) -> str:
    """The verdict itself, with its first line as ``headline``."""
    whole = {"headline": gate_words.headline(verdict), **msgspec.to_builtins(verdict)}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n"
