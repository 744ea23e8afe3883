"""Texts of a ledger: each distinct name gets one int32 code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steptime.trace.events import I32

#: The code of "nothing to say".
NONE = -1


class Labels:
    """Interns the names of causes and places. `texts[code]` is the text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def text(self, text: str) -> int:
        """Code of one text."""
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code

    def names(self, names: Sequence[str], index: I32) -> I32:
        """Codes of `names[index[i]]`, int32 [len(index)]; a negative index stays `NONE`."""
        used, which = np.unique(index, return_inverse=True)
        codes = [self.text(names[at]) if at >= 0 else NONE for at in used.tolist()]
        return np.array(codes, np.int32)[which.ravel()] if len(codes) else np.empty(0, np.int32)

    def used(self, codes: I32) -> tuple[I32, list[str]]:
        """The texts that `codes` name, and the codes as indices into these, int32 [len(codes)]."""
        known, which = np.unique(codes[codes >= 0], return_inverse=True)
        index = np.full(len(codes), NONE, np.int32)
        index[codes >= 0] = which.ravel()
        return index, [self.texts[code] for code in known.tolist()]
