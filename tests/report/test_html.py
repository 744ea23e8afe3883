"""The page as text: order, sums, escaping, size. What a browser makes of it is in test_browser.py."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from decimal import Decimal
from html import unescape
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from steptime.model import Report
from steptime.report.html import MAX_BYTES, render
from steptime.report.words import verdict
from steptime.taxonomy import LEAVES, SLICES
from tests.report.paths import hostile_path, rich_path
from tests.report.pipelines import interleaved, piped, uneven, unsplit
from tests.report.reports import REPORTS, cpu_only, loader_bound, nothing_measured, ranks_64
from tests.report.rich_reports import UGLY, hostile_rich, monstrous, rich

ALL = {
    **REPORTS,
    "rich": rich,
    "hostile_rich": hostile_rich,
    "piped": lambda: piped(uneven(), slow=3),
    "unsplit": lambda: piped(unsplit()),
    "rich_path": rich_path,
    "hostile_path": hostile_path,
}
#: Elements that end by themselves.
VOID = {"meta", "br"}
TAGS = {
    # fmt: off
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "p",
    "h1",
    "h2",
    "h3",
    "h4",
    "div",
    "b",
    "span",
    "nav",
    "a",
    "noscript",
    "main",
    "section",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "figure",
    "figcaption",
    "ul",
    "li",
    "code",
    "article",
    "br",
    "button",
    "dl",
    "dt",
    "dd",
    "footer",
    "script",
    # fmt: on
}
ATTRIBUTES = {
    # fmt: off
    "lang",
    "charset",
    "http-equiv",
    "content",
    "name",
    "class",
    "id",
    "href",
    "title",
    "aria-label",
    "role",
    "tabindex",
    "style",
    "scope",
    "data-steered",
    "data-chart",
    "data-move",
    "type",
    "open",
    # fmt: on
}


class _Page(HTMLParser):
    """The page as a browser's parser sees it: elements, attributes, and text by the section it stands in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.texts: dict[str, str] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        assert [tag for tag, _ in self._open] == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag not in VOID:
            self._open.append((tag, given.get("id")))
        if tag == "script":
            self.scripts.append((given, ""))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"{opened} is closed by {tag}"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "script":
            given, text = self.scripts.pop()
            self.scripts.append((given, text + data))
            return
        if self._open and self._open[-1][0] == "style":
            return
        section = next((name for tag, name in reversed(self._open) if tag == "section" and name), "")
        self.texts[section] = self.texts.get(section, "") + data

    @property
    def specs(self) -> dict[str, Any]:
        """The charts."""
        text = next(text for given, text in self.scripts if given.get("id") == "specs")
        loaded: dict[str, Any] = json.loads(text)
        return loaded


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_the_page_is_well_formed_and_only_ours(build: Callable[[], Report]) -> None:
    page = _Page(render(build()))
    assert {tag for tag, _ in page.tags} <= TAGS
    assert {name for _, given in page.tags for name in given} <= ATTRIBUTES
    assert len(page.ids) == len(set(page.ids))
    links = {given["href"] for tag, given in page.tags if tag == "a"}
    assert links
    assert {f"#{name}" for name in page.ids} >= links
    charts = {given["id"] for _, given in page.tags if given.get("class") == "chart"}
    assert charts == set(page.specs)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_it_is_small_names_no_host_and_repeats(build: Callable[[], Report]) -> None:
    html = render(build())
    assert len(html.encode()) <= MAX_BYTES == 3_000_000
    assert "url(" not in html.split("</style>")[0]
    assert "@import" not in html.split("</style>")[0]
    for _, given in _Page(html).tags:
        assert (given.get("href") or "#").startswith("#")
        assert "url" not in (given.get("style") or "")
    assert html == render(build())


def test_whatever_the_report_holds_the_page_stays_small() -> None:
    html = render(monstrous())
    assert len(html.encode()) <= MAX_BYTES
    page = _Page(html)
    assert {"waterfall", "heatmap", "own_time", "roofline", "timeline-0", "timeline-1"} <= set(page.specs)


def test_only_the_two_scripts_of_the_file_may_run() -> None:
    page = _Page(render(rich()))
    policy = next(given["content"] for tag, given in page.tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    running = [text for given, text in page.scripts if given.get("type") is None]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert len(digests) == 2
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert directives["default-src"] == "'none'"
    assert "unsafe-eval" not in policy


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_the_verdict_is_the_headline(build: Callable[[], Report]) -> None:
    report = build()
    (headline,) = re.findall(r"<h1>(.*?)</h1>", render(report), flags=re.DOTALL)
    assert unescape(headline).replace("\u00a0", " ") == verdict(report)


def test_the_sections_are_in_the_order_of_the_walkthrough() -> None:
    page = _Page(render(rich()))
    assert [name for name in page.ids if name in page.texts] == [
        "number",
        "recompute",
        "signatures",
        "kernels",
        "findings",
        "ranks",
        "timeline",
        "other",
        "checklist",
        "quality",
        "definitions",
    ]
    signatures = page.texts["signatures"]
    heads = ["Gaps between kernels", "Communication that nothing hides", "Bubbles", "One rank later than the others"]
    places = [signatures.index(head) for head in heads]
    assert places == sorted(places)


@pytest.mark.parametrize("build", [loader_bound, ranks_64, cpu_only, rich])
def test_the_points_on_the_page_add_up(build: Callable[[], Report]) -> None:
    html = render(build())
    points = re.findall(r'<tr class="slice"><td class="n">([\d.]+)</td>', html)
    assert len(points) >= 5
    assert sum(map(Decimal, points)) == Decimal("100.0")
    bars = next(iter(_Page(html).specs["waterfall"]["datasets"].values()))
    fall = [Decimal(re.findall(r"[\d.]+", bar["text"])[0]) for bar in bars[1:] if bar["text"] != "can't tell"]
    assert sum(fall) == Decimal("100.0")


def test_each_number_is_one_click_from_its_definition() -> None:
    page = _Page(render(rich()))
    assert {f"def-{leaf.key.replace('/', '-')}" for leaf in LEAVES} <= set(page.ids)
    assert {f"def-{part.id}" for part in SLICES} <= set(page.ids)
    rows = re.findall(r'<tr class="(?:slice|leaf)">.*?</tr>', render(rich()))
    assert len(rows) > len(SLICES)
    assert [row for row in rows if 'href="#def-' not in row] == []


def test_what_the_page_says_of_a_full_report() -> None:
    texts = _Page(render(rich())).texts
    for said in ("MFU 39.0 % of 989.4 TFLOP/s dense bf16", "MFU as torchtitan counts", "41.2 %", "FLOPs from"):
        assert said in texts["number"]
    # 2,900 ms over 128 rank-steps.
    for said in (
        "Gradients are reduced after",
        "22.7 ms a step, 22.7 points",
        "45.2 % (upper bound)",
        "86.0 ms (upper bound)",
        "high",
        "rank 3, step 10, at 1711964646205456.789 µs, for 15.0 ms, ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ):
        assert said in texts["findings"]
    assert "✓ pass" in texts["checklist"]
    assert "✗ fail" in texts["checklist"]
    assert "? cannot tell" in texts["checklist"]
    assert "Typical step: step 10 of rank 0, device 0, 100.0 ms" in texts["timeline"]
    assert "Slowest step: step 11 of rank 37, device 5, 100.0 ms" in texts["timeline"]
    assert "allocator-reserved" in texts["quality"]
    assert "rank 37" in texts["ranks"]
    assert "alignment" in texts["kernels"]


def test_what_is_missing_is_said() -> None:
    page = _Page(render(nothing_measured()))
    assert page.specs == {}
    assert "nothing to split" in page.texts["number"]
    assert "record_shapes" in page.texts["kernels"]
    assert "No rules were evaluated" in page.texts["findings"]
    assert "no step in time order" in page.texts["timeline"]
    assert "no checklist" in page.texts["checklist"]
    assert "No file was read" in page.texts["quality"]
    assert "ranks" not in page.texts


def test_roofs_that_are_not_known_are_said_to_be_missing() -> None:
    without = msgspec.structs.replace(rich(), facts={})
    assert "The memory peak of this device is not known" in _Page(render(without)).texts["kernels"]


def test_one_rank_has_no_heatmap() -> None:
    page = _Page(render(loader_bound()))
    assert "ranks" not in page.texts
    assert "heatmap" not in page.specs
    assert "own_time" not in page.specs


def test_what_the_page_says_of_a_pipeline() -> None:
    page = _Page(render(piped(interleaved())))
    said = page.texts["signatures"]
    for text in ("2 chunks of the model on each", "(2-1)/(2×4+2-1) gives 11.1 %", "Figures: micro-batch.chunk."):
        assert text in said
    assert "no two do the same work" in page.texts["ranks"]
    unknown = _Page(render(piped(unsplit())))
    assert "rank 5, whose file is not there" in unknown.texts["signatures"]
    assert "pipeline" not in unknown.specs


def test_who_is_out_of_line_is_said_for_those_who_see_no_picture() -> None:
    text = _Page(render(rich())).texts["ranks"]
    assert "rank 37+27.6 %; " in text
    assert "▸ and frames: named under" in text
    assert "Peers: all ranks." in text
    assert "named under" not in _Page(render(piped(uneven(), slow=3))).texts["ranks"]


def test_hostile_text_stands_on_the_page_as_text() -> None:
    html = render(hostile_rich())
    page = _Page(html)
    everything = " ".join(page.texts.values())
    assert "</script><script>alert(1)</script>" in everything
    assert "</script><img src=x onerror=alert(1)>" in everything
    # Jinja would have made 49 of it.
    assert "${7*7}{{7*7}}" in everything
    assert "\\x1b[2J" in everything
    assert len([1 for given, _ in page.scripts if given.get("type") is None]) == 2
    assert max(len(word) for word in everything.split()) < 1_000
    assert any(len(text) == 5_000 for text in UGLY)


def test_charts_hold_hostile_text_in_json_that_no_element_ends() -> None:
    html = render(hostile_rich())
    block = html.split('<script type="application/json" id="specs">')[1].split("</script>")[0]
    assert re.fullmatch(r"[\x20-\x7e]+", block)
    assert not set(block) & set("<>&")
    names = {
        row["what"] for rows in json.loads(block)["timeline-0"]["datasets"].values() for row in rows if "what" in row
    }
    assert "</script><img src=x onerror=alert(1)>" in names
