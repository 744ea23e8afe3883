from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.errors import UsageError
from steptime.model import Report
from steptime.report import FORMATS, format_for
from tests.report.reports import REPORTS


@pytest.mark.parametrize("build", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_shows_every_report(name: str, build: Callable[[], Report]) -> None:
    text = FORMATS[name].render(build())
    assert text.strip()
    assert text.endswith("\n")
    assert text == FORMATS[name].render(build())
    text.encode("utf-8")
    # Nothing that a terminal would act on; JSON is for programs and keeps what it was given.
    assert name == "json" or all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("name", FORMATS)
def test_the_suffix_chooses_the_format(name: str) -> None:
    suffix = FORMATS[name].suffix
    assert format_for(f"out/report{suffix}") is FORMATS[name]
    assert format_for(Path(f"REPORT{suffix.upper()}")) is FORMATS[name]


@pytest.mark.parametrize("path", ["report.doc", "report", ".json", "report.json.gz"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        format_for(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert all(form.suffix in str(caught.value) for form in FORMATS.values())


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'rich', 'pandas', 'numpy', 'jinja2', 'altair'}"
    code = f"import sys, steptime.report; sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
