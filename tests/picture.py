"""Remake the README's picture of the demo's page: ``python -m tests.picture`` (needs Chromium and playwright)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import steptime
from steptime.report.html import render
from tests.chromium import chromium

_REPO = Path(__file__).parent.parent
DEMO = _REPO / "traces" / "demo_28_mfu"
PICTURE = _REPO / "traces" / "demo_28_mfu.png"
#: A README's column on GitHub is about 830 pixels wide; at this width the figures at the head stand in one row.
WIDTH = 960
#: What the picture shows of the page, by id of a chart (with its title) or by selector.
SHOWN = ("header .eyebrow", "header h1", "header .figures", "waterfall", "pipeline", "own_time")

#: Hides all that is neither one of the elements nor in or around one of them.
_KEEP = """
(shown) => {
  const kept = new Set(), charts = [];
  const keep = (element) => {
    for (let one = element; one; one = one.parentElement) kept.add(one);
    for (const one of element.querySelectorAll("*")) kept.add(one);
  };
  for (const name of shown) {
    const element = document.getElementById(name) || document.querySelector(name);
    const figure = element.closest("figure") || element;
    keep(figure);
    if (figure !== element) {
      let title = figure.previousElementSibling;
      while (title && !/^H[234]$/.test(title.tagName)) title = title.previousElementSibling;
      if (title) keep(title);
      for (const one of figure.querySelectorAll("button, figcaption")) kept.delete(one);
    }
  }
  for (const one of document.body.querySelectorAll("*")) if (!kept.has(one)) one.style.display = "none";
  for (const one of document.querySelectorAll("section")) Object.assign(one.style, {border: 0, margin: 0, padding: 0});
  document.body.style.paddingBottom = 0;
}
"""


def main() -> None:
    """Analyse the demo and write the picture."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page_file = Path(folder) / "demo.html"
        page_file.write_text(render(steptime.analyze([DEMO])), encoding="utf-8")
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=2, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-charts=drawn]")
        page.evaluate(_KEEP, list(SHOWN))
        page.screenshot(path=PICTURE, full_page=True)
    sys.stdout.write(f"{PICTURE.relative_to(_REPO)}: {PICTURE.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
