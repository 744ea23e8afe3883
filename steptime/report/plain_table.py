"""A table as plain data, which each format sets in its own way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table for the page: the last column takes the rest of the width; `numbers` columns from the left are numbers.

    A cell of the columns named in `codes` is a name from the program and is set as code.
    """

    head: list[str]
    rows: list[list[str]]
    numbers: int = 0
    codes: frozenset[int] = frozenset()
    #: How many rows are left out.
    more: int = 0
