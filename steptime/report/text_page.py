"""Lines of styled text for a terminal, wrapped under their own beginning."""

from __future__ import annotations

import io
import shutil

from rich.console import Console
from rich.text import Text

MIN_WIDTH = 72
#: Wider than this a line is harder to read, not easier.
MAX_WIDTH = 140


def fitting(width: int | None) -> int:
    """A usable number of columns; None takes the terminal's, 100 where there is none."""
    columns = shutil.get_terminal_size((100, 40)).columns if width is None else width
    return max(MIN_WIDTH, min(columns, MAX_WIDTH))


class TextPage:
    """Lines of styled text; long ones are wrapped under their own beginning."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = width
        self._console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=color,
            color_system="standard" if color else None,
            legacy_windows=False,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._plain = not color

    def line(self, body: Text | str = "", lead: Text | str = "", style: str = "") -> None:
        """Print `lead` and then `body`; what does not fit goes on below the start of `body`."""
        lead = Text(lead) if isinstance(lead, str) else lead
        body = Text(body, style=style) if isinstance(body, str) else body
        indent = Text(" " * lead.cell_len)
        for at, part in enumerate(body.wrap(self._console, self.width - lead.cell_len) or [Text()]):
            part.rstrip()
            self.fixed((indent if at else lead) + part)

    def fixed(self, text: Text | str, style: str = "") -> None:
        """Print one line exactly as it is: for what is laid out to fit."""
        self._console.print(Text(text, style=style) if isinstance(text, str) else text, soft_wrap=True)

    def heading(self, title: str, after: str = "") -> None:
        """Print a blank line and a heading."""
        self.line()
        self.line(Text.assemble((title, "bold"), after))

    def text(self) -> str:
        """All that was printed."""
        file = self._console.file
        assert isinstance(file, io.StringIO)
        printed = file.getvalue()
        return "\n".join(line.rstrip() for line in printed.split("\n")) if self._plain else printed
