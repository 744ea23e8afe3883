"""What every test shares: the checkout, and hypothesis without a clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.chromium import DESK, chromium, missing, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A deadline per example measures the machine, not the code.
settings.register_profile("steptime", deadline=None)
settings.load_profile("steptime")

_REPO = Path(__file__).parent.parent

#: Modules whose tests start jobs of their own: one job at a time, whatever else runs.
_REAL_PROCESSES = ("tests/capture/", "tests/cli/test_capture.py", "tests/cli/test_diagnose_attach.py")
#: Modules whose tests measure such jobs: other load would be a straggler like any other. They are marked `alone`.
_ALONE = ("tests/gate/test_real_runs.py", "tests/ranks/test_real_", "tests/real_run/")


def pytest_configure() -> None:
    """A worker of xdist claims a terminal of 80 columns, a pytest without one does not."""
    os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``-n`` and ``--dist loadgroup`` a module stays with one worker, and all real jobs with the same one."""
    parallel = config.pluginmanager.hasplugin("xdist")
    for item in items:
        module = item.path.relative_to(_REPO).as_posix()
        if module.startswith(_ALONE):
            item.add_marker(pytest.mark.alone)
        if parallel:
            group = "real processes" if module.startswith((*_REAL_PROCESSES, *_ALONE)) else module
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return _REPO


@pytest.fixture(scope="session")
def sample(repo: Path) -> Path:
    """The sample job: two gloo ranks on the CPU."""
    return repo / "traces" / "gloo_ddp_2ranks"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; the test is skipped where there is none."""
    why = missing()
    if why:
        pytest.skip(why)
    with chromium() as started:
        yield started


@pytest.fixture
def page_of(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """A function that opens HTML in Chromium: its text, then a width and a scheme. See `tests.chromium.open_page`."""
    opened: list[Page] = []

    def show(html: str, width: int = DESK, scheme: str = "light", *, charts: bool = True) -> Page:
        file = tmp_path / f"page{len(opened)}.html"
        file.write_text(html, encoding="utf-8")
        opened.append(open_page(browser, file, width, scheme, charts=charts))
        return opened[-1]

    yield show
    for page in opened:
        page.context.close()
