"""Make big inputs out of a real trace: the same events over and over, later and with new ids; or the same for N ranks.

Only numbers change. Times move by whole copies of the recording, ids by more than the largest id, step marks by the
number of steps, so a copy looks like the next stretch of the same job. Everything is streamed to disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Raw
from zlib_ng import zlib_ng

from benchmarks.baseline import GZIP, inflate

#: The numbers of an event that say when and which. "id" is that of a flow.
_NUMBER = re.compile(
    rb'"(?P<key>ts|correlation|[Ee]xternal id|id|Ev Idx|Sequence number|Python id|Python parent id|Python module id|'
    rb'wait_on_cuda_event_record_corr_id)"\s*:\s*(?P<value>-?\d+(?:\.\d{1,3})?)(?=\s*[,}])'
    rb'|(?P<step>"ProfilerStep#)(?P<number>\d+)(?=")'
)
_GAP_NS = 50_000  # between the end of one copy and the start of the next


class _Span(msgspec.Struct, gc=False):
    ph: str = ""
    ts: Raw = Raw(b"0")
    dur: Raw = Raw(b"0")


class _Slot(NamedTuple):
    """A number inside the text: where it goes and by how much it grows with each copy."""

    value: int
    growth: int
    decimals: int


@dataclass(frozen=True)
class Template:
    """A trace as text with slots: `texts[i]` comes before `slots[i]`, the last text ends the events."""

    head: bytes
    texts: list[bytes]
    slots: list[_Slot]
    bytes_a_copy: int

    def copy(self, number: int) -> Iterator[bytes]:
        """The text of copy `number` (0 is the original)."""
        for text, slot in zip(self.texts, self.slots, strict=False):
            yield text
            value = slot.value + number * slot.growth
            if slot.decimals:
                yield b"%d.%03d" % divmod(value, 1000)
            else:
                yield b"%d" % value
        yield self.texts[-1]


def repeat_to_size(source: Path, target: Path, size_bytes: int) -> int:
    """Write a plain ``.json`` of at least `size_bytes` by repeating `source`; return its size."""
    template = _read_template(source)
    copies = max(1, -(-size_bytes // template.bytes_a_copy))
    with target.open("wb") as out:
        out.write(template.head + b'"traceEvents": [\n')
        for number in range(copies):
            out.write(b",\n" if number else b"")
            out.write(b"".join(template.copy(number)))
        out.write(b"\n]}\n")
    return target.stat().st_size


def copy_for_ranks(source: Path, folder: Path, ranks: int) -> int:
    """Write `ranks` gzip files, `source` with a rank of its own in each; return the bytes of JSON of one."""
    content: dict[str, Raw] = msgspec.json.decode(inflate(source), type=dict[str, Raw])
    written = 0
    for rank in range(ranks):
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        content["distributedInfo"] = Raw(msgspec.json.encode(info))
        text = msgspec.json.encode(content)
        written = len(text)
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(zlib_ng.compress(text, 1, GZIP))
    return written


def _read_template(source: Path) -> Template:
    content: dict[str, Raw] = msgspec.json.decode(inflate(source), type=dict[str, Raw])
    events: list[Raw] = msgspec.json.decode(content.pop("traceEvents"), type=list[Raw])
    text = b",\n".join(map(bytes, events))
    head = b"".join(msgspec.json.encode(key) + b": " + bytes(value) + b", " for key, value in content.items())
    found = list(_NUMBER.finditer(text))
    growths = _Growths.of(text, found)
    texts, slots, end = [], [], 0
    for match in found:
        group = "number" if match["step"] else "value"
        if growths.leaves(match):
            continue
        texts.append(text[end : match.start(group)])
        slots.append(growths.slot(match))
        end = match.end(group)
    texts.append(text[end:])
    return Template(b"{" + head, texts, slots, len(text))


@dataclass(frozen=True)
class _Growths:
    """How far each kind of number moves from one copy to the next. `decimals`: times are written with three."""

    span_ns: int
    ids: int
    steps: int
    decimals: bool

    @classmethod
    def of(cls, text: bytes, found: list[re.Match[bytes]]) -> _Growths:
        spans = msgspec.json.decode(b"[" + text + b"]", type=list[_Span])
        timed = [(bytes(span.ts), bytes(span.dur)) for span in spans if span.ph == "X"]
        starts = [_thousandths(ts) for ts, _ in timed]
        ends = [_thousandths(ts) + _thousandths(dur) for ts, dur in timed]
        decimals = any(b"." in ts for ts, _ in timed)
        # Whole microseconds, so that the integer dialect stays exact.
        span_ns = -(-(max(ends) - min(starts) + _GAP_NS) // 1000) * 1000
        ids = [int(match["value"]) for match in found if match["key"] and match["key"] != b"ts"]
        marks = [int(match["number"]) for match in found if match["step"]]
        return cls(span_ns, max(ids, default=0) + 1, max(marks, default=0) - min(marks, default=0) + 1, decimals)

    def leaves(self, match: re.Match[bytes]) -> bool:
        """Whether a number means "none" or "unlinked" and stays what it is."""
        return bool(match["key"]) and match["key"] != b"ts" and int(match["value"]) <= 0

    def slot(self, match: re.Match[bytes]) -> _Slot:
        if match["step"]:
            return _Slot(int(match["number"]), self.steps, 0)
        if match["key"] != b"ts":
            return _Slot(int(match["value"]), self.ids, 0)
        if self.decimals:
            return _Slot(_thousandths(match["value"]), self.span_ns, 3)
        return _Slot(int(match["value"]), self.span_ns // 1000, 0)


def _thousandths(text: bytes) -> int:
    """Decimal microseconds to integer nanoseconds."""
    whole, _, rest = text.partition(b".")
    return int(whole) * 1000 + int(rest.ljust(3, b"0")[:3] or 0)
