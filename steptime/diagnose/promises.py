"""No nanosecond is promised twice: a ledger of what of each leaf and each named item is still free."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.diagnose.reading import Part, Reading


class Promises:
    """What findings may still promise. Who claims first gets it; the next one gets what is left."""

    def __init__(self, reading: Reading) -> None:
        self._left: dict[str, int] = {key: leaf.ns for key, leaf in reading.leaves.items() if leaf.ns}
        self._holders: dict[str, list[str]] = {}

    def claim(self, finding: str, parts: Iterable[Part]) -> tuple[dict[str, int], list[str]]:
        """Promise these parts to a finding.

        Returns:
            ns that were still free by leaf, and the findings that hold the rest.
        """
        parts = list(parts)
        got, holders = dict[str, int](), dict[str, None]()
        # One item (a kernel, say) may stand behind several parts: it has the time of all of them.
        items: dict[str, int] = {}
        for part in parts:
            for key in part.items:
                items[key] = items.get(key, 0) + part.ns
        for key, ns in items.items():
            self._left.setdefault(key, ns)
        for part in parts:
            keys = (part.leaf, *part.items)
            taken = max(min(part.ns, *(self._left.get(key, part.ns) for key in keys)), 0)
            if taken < part.ns:
                # Who holds the item itself is named before who holds the rest of its leaf.
                held = next((self._holders[key] for key in (*part.items, part.leaf) if key in self._holders), [])
                holders |= dict.fromkeys(held)
            for key in keys:
                self._left[key] = self._left.get(key, part.ns) - taken
            got[part.leaf] = got.get(part.leaf, 0) + taken
        self._hold(finding, parts)
        return {leaf: ns for leaf, ns in got.items() if ns}, [holder for holder in holders if holder != finding]

    def _hold(self, finding: str, parts: Iterable[Part]) -> None:
        for part in parts:
            for key in (part.leaf, *part.items):
                known = self._holders.setdefault(key, [])
                if finding not in known:
                    known.append(finding)
