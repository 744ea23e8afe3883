"""The pages of plans and watches in Chromium, from disk, with every request recorded and blocked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from steptime.model.plan import Plan
from steptime.model.watch import Watch
from steptime.report.goodput import FORMATS
from tests.chromium import DESK, PHONE, marks
from tests.report.run_reports import HOSTILE, bare_plan, bare_watch, full_plan, full_watch

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: The charts of each page, with how many marks each must have at least.
CHARTS: dict[str, tuple[Callable[[], Plan | Watch], dict[str, int]]] = {
    # Two areas, two lines, a point for each interval to hover over, two marks with their texts.
    "full_plan": (full_plan, {"curve-chart": 4 + 51 + 4, "split-chart": 10, "memory-chart": 12 * 4 + 1}),
    "bare_plan": (bare_plan, {"curve-chart": 4 + 50 + 2, "split-chart": 4}),
    "full_watch": (
        full_watch,
        {
            "loss-chart": 5,
            "grad_norm-chart": 3,
            "throughput-chart": 2,
            "mfu-chart": 2,
            "update_ratio-chart": 1,
        },
    ),
    "bare_watch": (bare_watch, {"loss-chart": 1}),
    "hostile_plan": (lambda: full_plan(HOSTILE), {}),
    "hostile_watch": (lambda: full_watch(HOSTILE), {}),
}


@pytest.fixture
def look(page_of: Callable[..., Page]) -> Callable[..., Page]:
    """A function that opens a report's page and waits for its charts."""
    return lambda name, width=DESK, scheme="light": page_of(FORMATS["html"].render(CHARTS[name][0]()), width, scheme)


@pytest.mark.parametrize("name", CHARTS)
def test_it_opens_without_an_error_or_a_request_and_draws_every_mark(name: str, look: Callable[..., Page]) -> None:
    page = look(name)
    least = CHARTS[name][1]
    charts = page.eval_on_selector_all(".chart", "all => all.map(one => one.id)")
    assert not least or set(charts) == set(least)
    drawn = {chart: marks(page, chart) for chart in charts}
    assert {chart: count for chart, count in drawn.items() if count < least.get(chart, 1)} == {}
    for chart in charts:
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 40
    # A chart takes its own place and nothing else's.
    assert page.eval_on_selector_all("section h2", "all => all.length") == page.locator("section").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", CHARTS)
def test_a_phone_scrolls_only_down(name: str, scheme: str, look: Callable[..., Page]) -> None:
    page = look(name, PHONE, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for chart in page.eval_on_selector_all(".chart", "all => all.map(one => one.id)"):
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE, chart


@pytest.mark.parametrize("name", ["hostile_plan", "hostile_watch"])
def test_hostile_names_are_text(name: str, look: Callable[..., Page]) -> None:
    page = look(name)
    assert page.locator("img").count() == 0
    assert "<img src=x" in page.locator("body").inner_text()


def test_hovering_over_the_curve_tells_the_figures(look: Callable[..., Page]) -> None:
    page = look("bare_plan")
    points = page.locator("#curve-chart svg g.mark-symbol.role-mark path")
    points.nth(8).hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    told = page.locator("#vg-tooltip-element").inner_text()
    for said in ("interval", "goodput (95 %)", "single runs", "first-order formula"):
        assert said in told


def test_hovering_over_a_spike_tells_where_to_rewind(look: Callable[..., Page]) -> None:
    """The planted one: 1.5 above usual at steps 25,000 to 25,025, checkpoints every 1,000."""
    page = look("full_watch")
    points = page.locator("#loss-chart svg g.mark-symbol.role-mark path")
    texts = set()
    for at in range(points.count()):
        points.nth(at).hover(force=True)
        page.wait_for_selector("#vg-tooltip-element.visible")
        texts.add(" ".join(page.locator("#vg-tooltip-element").inner_text().split()))
    assert any("rewind to 24,000" in text for text in texts), texts


@pytest.mark.parametrize("name", ["full_plan", "full_watch"])
def test_it_prints(name: str, look: Callable[..., Page]) -> None:
    assert look(name).pdf(format="A4").startswith(b"%PDF-")
