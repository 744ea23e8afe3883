"""Posting a summary to a chat channel's webhook. A failure is a warning: the answer on the terminal comes first."""

from __future__ import annotations

import json
import time
from urllib import error, request
from urllib.parse import urlsplit

import click

TIMEOUT_S = 10.0
_PAUSE_S = 1.0
_TOO_MANY = 429


class _NoRedirect(request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body, and look delivered."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none."""


def check_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The URL of an option, or click's usage error; it is not repeated there, as it may hold a secret."""
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or any(char.isspace() or not char.isprintable() for char in value):
        raise click.BadParameter("not an http or https URL", ctx=context, param=parameter)
    return value


def post(url: str, payload: dict[str, object], timeout_s: float = TIMEOUT_S, pause_s: float = _PAUSE_S) -> str | None:
    """Post JSON, once more after a pause if the far end does not answer or is busy.

    Returns:
        None if it was taken, else why not. The path of the URL, which is often a secret, is not in it.
    """
    opener = request.build_opener(_NoRedirect)
    data = json.dumps(payload).encode("utf-8", "backslashreplace")
    headers = {"Content-Type": "application/json", "User-Agent": "steptime"}
    why = ""
    for attempt in range(2):
        if attempt:
            time.sleep(pause_s)
        try:
            with opener.open(request.Request(url, data, headers, method="POST"), timeout=timeout_s):
                return None
        except error.HTTPError as refused:
            with refused:
                why = f"it answers {refused.code}"
                if refused.code < 500 and refused.code != _TOO_MANY:
                    break
        except (OSError, ValueError) as failed:
            # URLError is an OSError; http.client raises ValueErrors of its own for what a proxy mangles.
            why = str(getattr(failed, "reason", None) or failed) or type(failed).__name__
        except Exception as failed:  # noqa: BLE001  (a broken server must not cost the answer)
            why = type(failed).__name__
    return f"webhook at {urlsplit(url).hostname}: {why}; the summary was not delivered"
