"""What all HTML pages have in common: the templates, and a policy under which only their own scripts may run."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources

import jinja2

_TEMPLATES = "templates"


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates; what they are given is escaped, and what they are not given is an error."""
    loader = jinja2.FunctionLoader(asset)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def asset(name: str) -> str:
    """The text of a file beside the templates."""
    return (resources.files(__package__) / _TEMPLATES / name).read_text(encoding="utf-8")


def policy(*scripts: str) -> str:
    """The Content-Security-Policy of a page with these scripts: it may ask nobody for anything."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    # Vega sets styles on what it draws.
    scripts_from = f"script-src {hashes}; " if scripts else ""
    return f"default-src 'none'; {scripts_from}style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
