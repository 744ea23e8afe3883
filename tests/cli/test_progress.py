"""When a bar appears, and when not."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from steptime.cli import progress as progress_module
from steptime.cli.progress import Tick, progress


class _Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was written, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())


@contextmanager
def _on(stream: io.StringIO, quiet: bool = False, verbose: bool = False) -> Iterator[Tick]:
    """The tick of a progress whose stderr is `stream`, where it must give one."""
    with redirect_stderr(stream), progress(quiet, verbose) as tick:
        assert tick is not None
        yield tick


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return _Terminal()


def test_one_quick_file_shows_no_bar(terminal: _Terminal) -> None:
    with _on(terminal) as tick:
        tick(0, 1, "a.json")
        tick(1, 1, "a.json")
    assert terminal.getvalue() == ""


def test_the_second_file_shows_the_bar(terminal: _Terminal) -> None:
    with _on(terminal) as tick:
        tick(0, 3, "a.json")
        assert terminal.getvalue() == ""
        tick(1, 3, "a.json")
        assert "1/3 files" in terminal.text


def test_the_second_second_shows_the_bar(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.02)
    with _on(terminal) as tick:
        tick(0, 1, "a.json")
        give_up = time.monotonic() + 10
        while "0/1 files" not in terminal.text and time.monotonic() < give_up:
            time.sleep(0.01)
    assert "0/1 files" in terminal.text


def test_quiet_and_a_pipe_show_nothing(terminal: _Terminal) -> None:
    with redirect_stderr(terminal), progress(quiet=True, verbose=False) as tick:
        assert tick is None
    with redirect_stderr(io.StringIO()), progress(quiet=False, verbose=False) as tick:
        assert tick is None
    assert terminal.getvalue() == ""


def test_verbose_names_the_files(terminal: _Terminal) -> None:
    with _on(terminal, verbose=True) as tick:
        tick(1, 2, "a.json")
    assert terminal.getvalue() == "steptime: 1 of 2 files read: a.json\n"
