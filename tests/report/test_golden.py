"""What is shown, letter by letter, for reports written by hand.

When a view changes on purpose, look at the difference and accept it:

    STEPTIME_ACCEPT=1 pytest tests/report/test_golden.py && git diff tests/report/golden
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steptime.report import FORMATS
from tests.report.reports import REPORTS

GOLDEN = Path(__file__).parent / "golden"
#: 64 ranks as JSON are 200 kB that would be read by nobody; a page is 1 MB, and its tests are in test_html.
SHOWN = {
    f"{report}{FORMATS[name].suffix}": (report, name)
    for report in ("loader_bound", "ranks_64")
    for name in FORMATS
    if (report, name) not in (("ranks_64", "json"), ("ranks_64", "perfetto")) and name != "html"
}


@pytest.mark.parametrize("file", SHOWN)
def test_shown_as_accepted(file: str) -> None:
    report, name = SHOWN[file]
    text = FORMATS[name].render(REPORTS[report]())
    path = GOLDEN / file
    if os.environ.get("STEPTIME_ACCEPT") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.exists(), f"{path} is missing: accept it with STEPTIME_ACCEPT=1"
    assert text == path.read_text(encoding="utf-8"), "changed: if that is meant, accept it with STEPTIME_ACCEPT=1"


def test_no_golden_file_without_a_test() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(SHOWN)
