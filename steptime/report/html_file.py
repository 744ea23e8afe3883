"""What every HTML page of steptime is made of: one file that opens from disk and asks no host for anything.

Its Content-Security-Policy lets the scripts run that the file itself carries, told by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from importlib import resources
from typing import Any

import altair as alt
import jinja2
import vl_convert

_TEMPLATES = "templates"
_LIBRARY = "window.vegaEmbed = vegaEmbed;"


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Templates of this room, in which text is escaped and a missing name is an error."""
    loader = jinja2.FunctionLoader(asset)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def asset(name: str) -> str:
    """The text of a template, a style sheet or a script."""
    return (resources.files(__package__) / _TEMPLATES / name).read_text(encoding="utf-8")


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


def policy(*scripts: str) -> str:
    """The Content-Security-Policy under which these scripts may run and nothing else may."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    # Vega sets styles on what it draws.
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
