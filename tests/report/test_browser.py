"""The page in Chromium, from disk, with every request recorded and blocked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from steptime.model import Report
from steptime.report.html import render
from tests.report.reports import REPORTS
from tests.report.rich_reports import hostile_rich, rich

CHROMIUM = "/usr/bin/chromium"
if not os.access(CHROMIUM, os.X_OK):
    pytest.skip(f"{CHROMIUM} is not installed", allow_module_level=True)
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, Route, sync_playwright  # noqa: E402

SHOWN = {**REPORTS, "rich": rich, "hostile_rich": hostile_rich}
PHONE, DESK = 390, 1200
#: The charts of the rich report, with how many marks each must have at least.
MARKS = {
    # Seven bars, pale and solid, with two texts each: the whole, five parts, useful work.
    "waterfall": 4 * 6,
    "roofline": 5,
    "bandwidth": 2,
    "heatmap": 64 * 4,
    "timeline-0": 8,
    "timeline-1": 8,
}


@dataclass
class Opened:
    """A page, and what it tried."""

    page: Page
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # A container has no user namespaces, and little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def look(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """A function that opens a report's page and waits for its charts."""
    contexts = []

    def opened(report: Report, width: int = DESK, scheme: str = "light") -> Opened:
        file = tmp_path / "report.html"
        file.write_text(render(report), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        contexts.append(context)
        seen = Opened(context.new_page())

        def route(asked: Route) -> None:
            seen.requests.append(asked.request.url)
            if asked.request.url == file.as_uri():
                asked.continue_()
            else:
                asked.abort()

        context.route("**/*", route)
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.goto(file.as_uri())
        seen.page.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=30_000)
        assert set(seen.requests) == {file.as_uri()}
        assert seen.console == []
        assert seen.errors == []
        return seen

    yield opened
    for context in contexts:
        context.close()


def _marks(page: Page, chart: str) -> int:
    """The shapes and texts that a chart drew inside its marks, without axes and grids."""
    count: int = page.evaluate(
        """chart => [...document.querySelectorAll(`#${chart} svg g[class*="mark-"][class*="role-mark"]`)]
            .reduce((sum, group) => sum + group.querySelectorAll("path, text, line, rect").length, 0)""",
        chart,
    )
    return count


@pytest.mark.parametrize("name", SHOWN)
def test_it_opens_without_an_error_or_a_request_and_draws_every_chart(name: str, look: Callable[..., Opened]) -> None:
    page = look(SHOWN[name]()).page
    charts = page.eval_on_selector_all(".chart", "all => all.map(one => one.id)")
    assert charts or name == "nothing_measured"
    for chart in charts:
        assert _marks(page, chart) > 0, chart
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 40


def test_every_mark_of_a_full_report_is_drawn(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    drawn = {chart: _marks(page, chart) for chart in MARKS}
    assert {chart: count for chart, count in drawn.items() if count < MARKS[chart]} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_phone_scrolls_only_down(name: str, scheme: str, look: Callable[..., Opened]) -> None:
    page = look(SHOWN[name](), PHONE, scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    page.evaluate("window.scrollTo(10000, 0)")
    assert page.evaluate("window.scrollX") == 0
    for chart in page.eval_on_selector_all(".chart", "all => all.map(one => one.id)"):
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE, chart


def _channels(page: Page, selector: str, what: str) -> list[int]:
    """A computed colour as red, green, blue."""
    channels: list[int] = page.eval_on_selector(
        selector, "(one, what) => getComputedStyle(one)[what].match(/[0-9]+/g).slice(0, 3).map(Number)", what
    )
    return channels


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_page_and_charts_stands_out_in_both_schemes(scheme: str, look: Callable[..., Opened]) -> None:
    page = look(rich(), scheme=scheme).page
    paper = sum(_channels(page, "body", "backgroundColor"))
    assert (paper < 150) == (scheme == "dark")
    for selector, what in (
        ("body", "color"),
        ("#waterfall svg text", "fill"),
        ("#roofline .role-axis-label text", "fill"),
    ):
        ink = sum(_channels(page, selector, what))
        assert abs(ink - paper) > 450, selector


def test_a_change_of_scheme_reaches_the_charts(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    light = _channels(page, "#waterfall svg text", "fill")
    page.emulate_media(color_scheme="dark")
    assert _channels(page, "#waterfall svg text", "fill") != light


def test_print_is_dark_on_white_and_has_no_controls(look: Callable[..., Opened]) -> None:
    page = look(rich(), scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert _channels(page, "body", "backgroundColor") == [255, 255, 255]
    assert _channels(page, "#waterfall svg text", "fill") == [0, 0, 0]
    assert not page.locator(".controls").first.is_visible()
    assert not page.locator("nav").is_visible()


def test_hostile_names_are_text(look: Callable[..., Opened]) -> None:
    page = look(hostile_rich()).page
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    shown = page.inner_text("body")
    assert "</script><script>alert(1)</script>" in shown
    assert "</script><img src=x onerror=alert(1)>" in shown


def test_hovering_tells_name_length_and_leaf(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    page.locator("#timeline-0 svg .mark-rect path").first.hover()
    tip = page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None
    text = tip.inner_text()
    for said in ("enumerate(DataLoader)#__next__", "host/data_loader", "12,000.000"):
        assert said in text


def test_hovering_over_a_hostile_name_shows_it_as_text(look: Callable[..., Opened]) -> None:
    page = look(hostile_rich()).page
    marks = page.locator("#timeline-0 svg .mark-rect path")
    texts = set()
    for at in range(marks.count()):
        marks.nth(at).hover(force=True)
        tip = page.wait_for_selector("#vg-tooltip-element.visible")
        assert tip is not None
        texts.add(tip.inner_text())
    assert any("<img src=x onerror=alert(1)>" in text for text in texts)
    assert page.locator("#vg-tooltip-element img").count() == 0


def test_buttons_move_the_timeline(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    assert "100" in page.locator("#timeline-0 svg .role-axis-label text").all_text_contents()
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function("() => !document.querySelector('#timeline-0').textContent.includes('100')")
    # Half of 100 ms, around the middle.
    ticks = page.locator("#timeline-0 svg .mark-text.role-axis-label text").all_text_contents()
    assert {float(tick) for tick in ticks if tick.replace(".", "").isdigit()} >= {30.0, 70.0}
    page.get_by_role("button", name="Show the whole step").first.click()
    page.wait_for_function("() => document.querySelector('#timeline-0').textContent.includes('100')")


def test_a_plain_wheel_over_a_timeline_scrolls_the_page(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    chart = page.locator("#timeline-0 svg")
    chart.scroll_into_view_if_needed()
    before = chart.evaluate("one => one.innerHTML.length")
    chart.hover()
    at = page.evaluate("window.scrollY")
    page.mouse.wheel(0, -120)
    page.wait_for_function("at => window.scrollY < at", arg=at)
    assert chart.evaluate("one => one.innerHTML.length") == before
    chart.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("() => !document.querySelector('#timeline-0').textContent.includes('100')")


def test_definitions_open_by_a_link(look: Callable[..., Opened]) -> None:
    page = look(rich()).page
    page.locator("a.q[href='#def-exposed_comm-allreduce']").first.click()
    page.wait_for_function("() => location.hash === '#def-exposed_comm-allreduce'")
    box = page.locator("#def-exposed_comm-allreduce").bounding_box()
    assert box is not None


def test_each_rendered_page_prints(look: Callable[..., Opened]) -> None:
    pdf = look(rich()).page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
