"""Pages in a real browser, from disk, with every request recorded and all but the page's own blocked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

CHROMIUM = "/usr/bin/chromium"
#: Widths of a phone and of a desk's screen.
PHONE, DESK = 390, 1200


def missing() -> str | None:
    """Why no page can be opened here; None if one can."""
    if not os.access(CHROMIUM, os.X_OK):
        return f"{CHROMIUM} is not installed"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # A container has no user namespaces, and little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


def open_page(browser: Browser, file: Path, width: int, scheme: str, *, charts: bool = True) -> Page:
    """The page in a context of its own once its charts are drawn: it asked for nothing and complained of nothing.

    Args:
        browser: from `chromium`.
        file: the HTML.
        width: of the window, in pixels.
        scheme: ``light`` or ``dark``.
        charts: whether it has any to wait for.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    requests: list[str] = []
    said: list[str] = []

    def route(asked: Route) -> None:
        if asked.request.url == file.as_uri():
            asked.continue_()
        else:
            asked.abort()

    context.route("**/*", route)
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    if charts:
        page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=30_000)
    assert requests == [file.as_uri()]
    assert said == []
    return page


def marks(page: Page, chart: str) -> int:
    """The shapes and texts that a chart drew inside its marks, without axes and grids."""
    count: int = page.evaluate(
        """chart => [...document.querySelectorAll(`#${chart} svg g[class*="mark-"][class*="role-mark"]`)]
            .reduce((sum, group) => sum + group.querySelectorAll("path, text, line, rect").length, 0)""",
        chart,
    )
    return count
