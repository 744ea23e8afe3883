"""What HTML pages with charts carry besides `pages`: the library that draws them, and their data."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import altair as alt
import vl_convert

_LIBRARY = "window.vegaEmbed = vegaEmbed;"


@lru_cache(maxsize=1)
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, printable throughout, in the version that Altair writes for."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    text = vl_convert.javascript_bundle(_LIBRARY, vl_version=wanted if wanted in known else known[-1])
    text = text.replace("\t", " ").replace("\r\n", "\n")
    # Inside strings and patterns an escape means the same; nothing else of a script needs such characters.
    text = re.sub(r"[^\n\x20-\x7e]", lambda found: "".join(f"\\u{unit:04x}" for unit in _utf16(found[0])), text)
    return re.sub(r"<(/script|!--)", r"<\\\1", text, flags=re.IGNORECASE)


def _utf16(char: str) -> list[int]:
    raw = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def json_text(specs: dict[str, Any]) -> str:
    """JSON that can stand in an HTML element: no character of it is markup, none is out of ASCII."""
    text = json.dumps(specs, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
