"""A pytest fixture, `steptime_gate`, for those who gate inside a test suite.

pytest loads this module by its entry point wherever steptime is installed, so it imports nothing else until the fixture
is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from steptime.model.gate import Verdict

_Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class Gate:
    """Judges a candidate and fails the test unless it passes. folder: where steptime.toml or pyproject.toml is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        candidate: _Paths,
        baseline: _Paths = (),
        *,
        history: _Paths = (),
        limits: Mapping[str, object] | None = None,
        skip_if_cannot_tell: bool = False,
    ) -> Verdict:
        """The verdict on `candidate`.

        Args:
            candidate, baseline, history: reports, trace folders, globs or URLs, as `steptime gate` takes them.
            limits: keys of the settings file, such as ``{"max_step_time": "+2%", "max": {"host": "10ms"}}``.
            skip_if_cannot_tell: skip the test where the runs can't tell, instead of failing it.

        Raises:
            UsageError: a limit or a name is wrong.
        """
        import msgspec

        from steptime.cli.gating import Ask, gate
        from steptime.errors import UsageError
        from steptime.gate.settings import GateTable
        from steptime.report import gate_terminal

        try:
            table = msgspec.convert(dict(limits or {}), GateTable)
        except msgspec.ValidationError as error:
            raise UsageError(f"limits: {error}") from error
        ask = Ask(_words(candidate), _words(baseline), _words(history), limits=table, folder=self._folder)
        verdict = gate(ask).verdict
        if verdict.status == "cannot tell" and skip_if_cannot_tell:
            pytest.skip(gate_terminal.render(verdict))
        if verdict.status != "pass":
            pytest.fail(gate_terminal.render(verdict), pytrace=False)
        return verdict


@pytest.fixture
def steptime_gate(request: pytest.FixtureRequest) -> Gate:
    """Call it with a candidate and a baseline: the test fails if the step became slower, with what moved."""
    return Gate(request.config.rootpath)


def _words(paths: _Paths) -> list[str]:
    several = [paths] if isinstance(paths, (str, PathLike)) else paths
    return [fspath(path) for path in several]
