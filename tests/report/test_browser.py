"""The page in Chromium, from disk, with every request recorded and blocked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from steptime.model import Report, StepTime
from steptime.report.colours import PATH
from steptime.report.html import render
from steptime.report.rank_charts import LONGER, SHORT
from steptime.taxonomy import LEAVES
from tests.chromium import DESK, PHONE, marks
from tests.report.paths import hostile_path, rich_path
from tests.report.pipelines import interleaved, one_f_one_b, piped, uneven
from tests.report.reports import REPORTS, ranks_64
from tests.report.rich_reports import hostile_rich, rich

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def _piped() -> Report:
    return piped(uneven(), slow=3)


SHOWN: dict[str, Callable[[], Report]] = {**REPORTS, "rich": rich, "hostile_rich": hostile_rich, "piped": _piped}
SHOWN |= {"rich_path": rich_path, "hostile_path": hostile_path}
#: The charts of the rich report, with how many marks each must have at least.
MARKS = {
    # Seven bars, pale and solid, with two texts each: the whole, five parts, useful work.
    "waterfall": 4 * 6,
    "roofline": 5,
    "bandwidth": 2,
    "heatmap": 64 * 4,
    "own_time": 64 * 2,
    "timeline-0": 8,
    "timeline-1": 8,
}


@pytest.fixture
def look(page_of: Callable[..., Page]) -> Callable[..., Page]:
    """A function that opens a report's page and waits for its charts."""
    return lambda report, width=DESK, scheme="light": page_of(render(report), width, scheme)


@pytest.mark.parametrize("name", SHOWN)
def test_it_opens_without_an_error_or_a_request_and_draws_every_chart(name: str, look: Callable[..., Page]) -> None:
    page = look(SHOWN[name]())
    charts = page.eval_on_selector_all(".chart", "all => all.map(one => one.id)")
    assert charts or name == "nothing_measured"
    for chart in charts:
        assert marks(page, chart) > 0, chart
        box = page.locator(f"#{chart} svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 40


def test_every_mark_of_a_full_report_is_drawn(look: Callable[..., Page]) -> None:
    page = look(rich())
    drawn = {chart: marks(page, chart) for chart in MARKS}
    assert {chart: count for chart, count in drawn.items() if count < MARKS[chart]} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_phone_scrolls_only_down(name: str, scheme: str, look: Callable[..., Page]) -> None:
    page = look(SHOWN[name](), PHONE, scheme)
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
def test_text_of_page_and_charts_stands_out_in_both_schemes(scheme: str, look: Callable[..., Page]) -> None:
    page = look(rich(), scheme=scheme)
    paper = sum(_channels(page, "body", "backgroundColor"))
    assert (paper < 150) == (scheme == "dark")
    for selector, what in (
        ("body", "color"),
        ("#waterfall svg text", "fill"),
        ("#roofline .role-axis-label text", "fill"),
    ):
        ink = sum(_channels(page, selector, what))
        assert abs(ink - paper) > 450, selector


def test_a_change_of_scheme_reaches_the_charts(look: Callable[..., Page]) -> None:
    page = look(rich())
    light = _channels(page, "#waterfall svg text", "fill")
    page.emulate_media(color_scheme="dark")
    assert _channels(page, "#waterfall svg text", "fill") != light


def test_print_is_dark_on_white_and_has_no_controls(look: Callable[..., Page]) -> None:
    page = look(rich(), scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert _channels(page, "body", "backgroundColor") == [255, 255, 255]
    assert _channels(page, "#waterfall svg text", "fill") == [0, 0, 0]
    assert not page.locator(".controls").first.is_visible()
    assert not page.locator("nav").is_visible()


def test_hostile_names_are_text(look: Callable[..., Page]) -> None:
    page = look(hostile_rich())
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    shown = page.inner_text("body")
    assert "</script><script>alert(1)</script>" in shown
    assert "</script><img src=x onerror=alert(1)>" in shown


def test_hovering_tells_name_length_and_leaf(look: Callable[..., Page]) -> None:
    page = look(rich())
    page.locator("#timeline-0 svg .mark-rect path").first.hover()
    tip = page.wait_for_selector("#vg-tooltip-element.visible")
    assert tip is not None
    text = tip.inner_text()
    for said in ("enumerate(DataLoader)#__next__", "host/data_loader", "12,000.000"):
        assert said in text


def test_hovering_over_a_hostile_name_shows_it_as_text(look: Callable[..., Page]) -> None:
    page = look(hostile_rich())
    marks = page.locator("#timeline-0 svg .mark-rect path")
    texts = set()
    for at in range(marks.count()):
        marks.nth(at).hover(force=True)
        tip = page.wait_for_selector("#vg-tooltip-element.visible")
        assert tip is not None
        texts.add(tip.inner_text())
    assert any("<img src=x onerror=alert(1)>" in text for text in texts)
    assert page.locator("#vg-tooltip-element img").count() == 0


def test_buttons_move_the_timeline(look: Callable[..., Page]) -> None:
    page = look(rich())
    assert "100" in page.locator("#timeline-0 svg .role-axis-label text").all_text_contents()
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function("() => !document.querySelector('#timeline-0').textContent.includes('100')")
    # Half of 100 ms, around the middle.
    ticks = page.locator("#timeline-0 svg .mark-text.role-axis-label text").all_text_contents()
    assert {float(tick) for tick in ticks if tick.replace(".", "").isdigit()} >= {30.0, 70.0}
    page.get_by_role("button", name="Show the whole step").first.click()
    page.wait_for_function("() => document.querySelector('#timeline-0').textContent.includes('100')")


def test_a_plain_wheel_over_a_timeline_scrolls_the_page(look: Callable[..., Page]) -> None:
    page = look(rich())
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


def test_definitions_open_by_a_link(look: Callable[..., Page]) -> None:
    page = look(rich())
    page.locator("a.q[href='#def-exposed_comm-allreduce']").first.click()
    page.wait_for_function("() => location.hash === '#def-exposed_comm-allreduce'")
    box = page.locator("#def-exposed_comm-allreduce").bounding_box()
    assert box is not None


def test_each_rendered_page_prints(look: Callable[..., Page]) -> None:
    pdf = look(rich()).pdf(format="A4")
    assert pdf.startswith(b"%PDF-")


def _bars(page: Page) -> Locator:
    """The passes of the pipeline, without the stages behind them."""
    return page.locator("#pipeline svg g.mark-rect.role-mark").nth(1).locator("path")


def test_a_phone_shows_the_head_of_every_column(look: Callable[..., Page]) -> None:
    shown = ranks_64()
    leaves = {leaf.slice: leaf.key for leaf in LEAVES}
    step = StepTime(step=10, start_ns=0, dur_ns=80, productive_ns=10, leaves_ns=dict.fromkeys(leaves.values(), 10))
    ranks = [msgspec.structs.replace(rank, steps=[step]) for rank in shown.ranks[:2]]
    page = look(msgspec.structs.replace(shown, ranks=ranks), PHONE)
    heads = page.eval_on_selector_all(
        "#heatmap svg .role-axis-label text",
        "all => all.filter(one => getComputedStyle(one).opacity > 0).map(one => one.textContent)",
    )
    assert set(SHORT.values()) <= set(heads)


def _told(page: Page) -> dict[str, str]:
    """What the hint under the pointer says."""
    page.wait_for_selector("#vg-tooltip-element.visible")
    rows: list[list[str]] = page.eval_on_selector_all(
        "#vg-tooltip-element tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {name.strip().removesuffix(":"): value for name, value in rows}


def test_every_pass_of_a_pipeline_is_a_bar_and_hovering_tells_which(look: Callable[..., Page]) -> None:
    page = look(piped(interleaved()))
    assert _bars(page).count() == 2 * 2 * 4 * 2
    _bars(page).first.hover()
    assert _told(page) == {
        "micro-batch": "0",
        "pass": "forward",
        "chunk": "0",
        "stage": "stage 0 · rank 0",
        "ms": "1",
        "from ms": "0",
    }


def _numbers(page: Page) -> list[str]:
    """The numbers in the bars that are visible."""
    shown: list[str] = page.eval_on_selector_all(
        "#pipeline svg g.mark-text.role-mark text",
        "all => all.filter(one => getComputedStyle(one).opacity > 0.5).map(one => one.textContent)",
    )
    return shown


def test_a_bar_bears_its_number_where_there_is_room(look: Callable[..., Page]) -> None:
    wide = look(piped(one_f_one_b()))
    assert sorted(_numbers(wide)) == sorted(str(at) for at in range(8) for _ in range(8))
    narrow = look(piped(uneven()), PHONE)
    few = _numbers(narrow)
    assert len(few) < 64
    for _ in range(3):
        narrow.locator('button[data-chart=pipeline][data-move="in"]').click()
    # Of the eighth in the middle, every bar has room now.
    narrow.wait_for_function(
        """() => [...document.querySelectorAll("#pipeline svg g.mark-text.role-mark text")]
            .every(one => getComputedStyle(one).opacity > 0.5)"""
    )


def test_a_micro_batch_that_is_not_known_bears_no_number(look: Callable[..., Page]) -> None:
    actions = one_f_one_b().actions
    assert actions is not None
    unknown = msgspec.structs.replace(actions, micro_batch=[-1] * len(actions.micro_batch))
    page = look(piped(msgspec.structs.replace(one_f_one_b(), actions=unknown)))
    assert set(_numbers(page)) == {""}
    assert len(set(_bars(page).evaluate_all("all => all.map(one => one.getAttribute('fill'))"))) == 1


def test_hovering_over_a_rank_and_step_tells_why_it_is_odd(look: Callable[..., Page]) -> None:
    page = look(rich())
    page.locator("#own_time svg g.mark-rect.role-mark path").nth(37 * 2 + 1).hover()
    # 39 useful, 36 of kernels and 22 of host, where the others have 1 of host: 97 beside 76 ms.
    assert _told(page) == {
        "rank": "rank 37, node4, device 5",
        "step": "11",
        "own time against its peers": "+27.6 %",
        "own time, ms": "97",
        "median of its peers, ms": "76",
        "most above its peers in": "host/data_loader, +21 ms",
        "waited for others, ms": "0",
        "exposed communication, ms": "3",
        "whole step, ms": "100",
    }


def test_only_the_odd_cells_are_red_and_named_ones_have_a_frame(look: Callable[..., Page]) -> None:
    page = look(rich())
    cells = page.locator("#own_time svg g.mark-rect.role-mark path")
    looks = cells.evaluate_all("all => all.map(one => [one.getAttribute('fill'), one.getAttribute('stroke-width')])")
    odd = {at: tuple(look) for at, look in enumerate(looks) if look[0] == LONGER}
    assert odd == {37 * 2: (LONGER, "0"), 37 * 2 + 1: (LONGER, "1.6")}
    weights = page.eval_on_selector_all(
        "#own_time svg .role-axis-label text",
        "all => all.filter(one => one.getAttribute('font-weight') > 500).map(one => one.textContent)",
    )
    assert weights == ["rank 37 ▸"]


def test_the_critical_path_is_drawn_across_ranks_and_in_the_steps(look: Callable[..., Page]) -> None:
    page = look(rich_path())
    # Step 11: two pieces on rank 37, one on rank 0, and a line from one to the other.
    bars = page.locator("#path svg g.mark-rect.role-mark path")
    assert bars.count() == 3
    assert page.locator("#path svg g.mark-rule.role-mark line").count() == 1
    bars.nth(1).hover()
    assert _told(page) == {
        "rank": "rank 37",
        "where": "stream 7",
        "leaf": "kernels/matmul",
        "what": "sm90_xmma_gemm_bf16",
        "in a row": "1",
        "µs": "40,000.000",
        "from ms": "10.000000",
    }
    for chart, pieces in (("timeline-0", 3), ("timeline-1", 2)):
        assert page.locator(f'#{chart} svg g.mark-rect.role-mark path[fill="{PATH}"]').count() == pieces
        labels = page.locator(f"#{chart} svg .role-axis-label text").all_text_contents()
        assert labels.index("critical path") == labels.index("owner") - 1
    page.locator(f'#timeline-0 svg path[fill="{PATH}"]').first.hover()
    page.wait_for_function("() => document.querySelector('#vg-tooltip-element').textContent.includes('critical path')")


def test_zoom_moves_the_path_with_its_step(look: Callable[..., Page]) -> None:
    page = look(rich_path())
    for chart in ("path", "timeline-0"):
        assert "100" in page.locator(f"#{chart} svg .role-axis-label text").all_text_contents()
        page.locator(f'button[data-chart="{chart}"][data-move="in"]').click()
        page.wait_for_function("chart => !document.querySelector(`#${chart}`).textContent.includes('100')", arg=chart)
