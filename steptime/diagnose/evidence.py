"""Where a finding can be looked up: rank, step, start and name of an event, from the report's own lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import median

from steptime.diagnose.link_metrics import bandwidth_text, link_evidence
from steptime.diagnose.metrics import METRICS
from steptime.diagnose.reading import Reading, Value
from steptime.diagnose.roof_metrics import has_check, leaf_of
from steptime.diagnose.rules import Rule
from steptime.diagnose.say import number_text, plural, share_text, time_text
from steptime.diagnose.time_metrics import rank_means_ns
from steptime.model import Cause, Collective, Evidence, OpRoof, Straggler

#: Rows of one list that a finding shows.
_MOST = 3
#: Messages below this are all latency: their size says nothing.
_SIZE_SAID = 1e5
#: Texts that name a reason and no event: then the place is the event to look for.
_NO_EVENT = re.compile(
    r"^(?:gap between|launch call|slow launch|first use|queued work|launch of a|launch was|device events|no host|waited"
    r"|the queue|dispatching ops|Python between)"
)
_DRAINED = " drained the queue"


def evidence_of(rule: Rule, reading: Reading, values: Mapping[str, Value]) -> list[Evidence]:
    """What a rule shows for its finding: numbers first, then what can be looked up."""
    shown = rule.evidence
    found = [_numbers(shown.metrics, values)] if shown.metrics else []
    found += _causes(reading, shown.causes, shown.named)
    found += [item for check in shown.roofline for item in _roof_rows(reading, check)]
    found += [item for kind in shown.collectives for item in _collectives(reading, kind)]
    found += [item for slice_id in shown.ranks for item in _odd_rank(reading, slice_id)]
    found += _slowest_step(reading) if shown.steps else []
    found += link_evidence(reading.report, shown.links)
    if all(item.rank is None for item in found):
        found += _largest_leaf(rule, reading, values)
    return found


def _largest_leaf(rule: Rule, reading: Reading, values: Mapping[str, Value]) -> list[Evidence]:
    """The leaf that holds most of a rule's time, where the report lists no cause of it."""
    name = rule.saves or rule.costs
    largest = max(values[name].parts if name else (), key=lambda part: part.ns, default=None)
    if largest is None:
        return []
    text = f"{largest.leaf}: {time_text(largest.ns / max(reading.rank_steps, 1))} a step"
    return [_placed(reading, text, largest.leaf, None, "")]


def _numbers(names: list[str], values: Mapping[str, Value]) -> Evidence:
    texts = []
    for name in names:
        number = values[name].number
        texts.append(f"{name} {number_text(number, METRICS[name].unit)}" if number is not None else f"{name} not known")
    return Evidence(text=", ".join(texts))


def _causes(reading: Reading, leaves: list[str], named: str) -> list[Evidence]:
    causes = [cause for leaf in leaves for _, cause in reading.causes(leaf, named)]
    causes.sort(key=lambda cause: -cause.ns)
    return [_cause(reading, cause) for cause in causes[:_MOST]]


def _cause(reading: Reading, cause: Cause) -> Evidence:
    where = f" in {cause.where}" if cause.where else ""
    per_step = time_text(cause.ns / max(reading.rank_steps, 1))
    often = f", {plural(cause.count, 'time')} in {plural(cause.rank_steps, 'step')}" if cause.count else ""
    event = cause.what.removesuffix(_DRAINED)
    # What is called a collective here has the host's name in the trace.
    named = cause.where if _NO_EVENT.match(event) or cause.leaf.startswith("exposed_comm/") else event
    text = f"{cause.what}{where}: {per_step} a step ({share_text(cause.share)}){often}"
    return _placed(reading, text, cause.leaf, named, cause.what)


def _roof_rows(reading: Reading, check: str) -> list[Evidence]:
    rows = sorted((row for row in reading.report.roofline if has_check(row, check)), key=lambda row: -row.owned_ns)
    return [_placed(reading, _roof_text(reading, row), leaf_of(row), row.kernel, row.kernel) for row in rows[:_MOST]]


def _roof_text(reading: Reading, row: OpRoof) -> str:
    text = f"{row.op} {row.shapes} {row.dtype or 'of unknown dtype'}: {plural(row.count, 'call')}"
    text += f", {time_text(row.owned_ns / max(reading.rank_steps, 1))} a step"
    if row.peak_share is not None:
        text += f", {share_text(row.peak_share)} of the {row.bound or 'compute'} peak"
    return f"{text} ({', '.join(row.checks)})"


def _collectives(reading: Reading, kind: str) -> list[Evidence]:
    found = [one for one in reading.report.collectives if one.kind == kind and one.exposed_ns]
    return [_collective(reading, one) for one in found[:_MOST]]


def _collective(reading: Reading, one: Collective) -> Evidence:
    group = f" ({one.group})" if one.group else ""
    text = f"{one.kind}{group}: {plural(one.count, 'collective')}, {time_text(one.dur_ns / max(one.count, 1))} each"
    text += f", {time_text(one.exposed_ns / max(reading.rank_steps, 1))} a step exposed"
    if one.bytes is not None and one.bytes >= _SIZE_SAID * one.measured > 0:
        text += f"; {one.bytes / one.measured / 1e6:,.1f} MB on average"
    bandwidth = bandwidth_text(one)
    text += f"; {bandwidth}" if bandwidth else ""
    leaf, what = f"exposed_comm/{one.kind}", f"{one.kind}{group}"
    event = next((cause.where for _, cause in reading.causes(leaf) if cause.what == what), None)
    return _placed(reading, text, leaf, event, what)


def _odd_rank(reading: Reading, slice_id: str) -> list[Evidence]:
    """Who held up the others with it; without a verdict the rank that spends most time in it, in its worst step."""
    named = [one for one in reading.report.stragglers if one.rank is not None and (one.leaf or "").startswith(slice_id)]
    if named:
        return [_held_up(reading, one) for one in named[:_MOST]]
    means = rank_means_ns(reading, slice_id)
    if not means:
        return []
    odd = max(means, key=lambda rank: means[rank])
    steps = [step for rank, step in reading.counted if rank.rank == odd]
    worst = max(steps, key=lambda step: sum(ns for key, ns in step.leaves_ns.items() if key.startswith(slice_id)))
    most = max(worst.leaves_ns, key=lambda key: worst.leaves_ns[key] if key.startswith(slice_id) else -1, default="")
    text = f"rank {odd} spends {time_text(means[odd])} a step in {slice_id}, the median rank"
    text += f" {time_text(median(means.values()))}; most of it in {most}"
    return [Evidence(text=text, rank=odd, step=worst.step, start_ns=worst.start_ns, dur_ns=worst.dur_ns)]


def _held_up(reading: Reading, one: Straggler) -> Evidence:
    """A verdict on one rank, and of its steps the one with most of what it was late with."""
    each = time_text(one.lost_ns / max(len(one.steps), 1))
    text = f"rank {one.rank} costs each other rank {each} a step, in {plural(len(one.steps), 'step')}"
    text += f": {one.cause} ({one.leaf})"
    own = [step for rank in reading.report.ranks if rank.rank == one.rank for step in rank.steps]
    late = [step for step in own if step.step in one.steps]
    worst = max(late, key=lambda step: step.leaves_ns.get(one.leaf or "", 0), default=None)
    if worst is None:
        return Evidence(text=text, rank=one.rank)
    return Evidence(text=text, rank=one.rank, step=worst.step, start_ns=worst.start_ns, dur_ns=worst.dur_ns)


def _slowest_step(reading: Reading) -> list[Evidence]:
    if not reading.counted:
        return []
    rank, step = max(reading.counted, key=lambda pair: pair[1].dur_ns)
    most = max(step.leaves_ns, key=lambda key: step.leaves_ns[key], default="")
    text = f"the slowest step took {time_text(step.dur_ns)}, most of it in {most or 'useful work'}"
    return [Evidence(text=text, rank=rank.rank, step=step.step, start_ns=step.start_ns, dur_ns=step.dur_ns)]


def _placed(reading: Reading, text: str, leaf: str, event: str | None, what: str) -> Evidence:
    """The longest recorded occurrence; without a timeline, the start of the step where the leaf costs most."""
    found = _segment(reading, leaf, {what, event})
    if found is not None:
        rank, step, start_ns, dur_ns = found
        return Evidence(text=text, rank=rank, step=step, start_ns=start_ns, dur_ns=dur_ns, event=event)
    pairs = [(rank, step) for rank, step in reading.counted if step.leaves_ns.get(leaf)]
    if not pairs:
        return Evidence(text=text, event=event)
    owner, worst = max(pairs, key=lambda pair: pair[1].leaves_ns[leaf])
    return Evidence(text=text, rank=owner.rank, step=worst.step, start_ns=worst.start_ns, event=event)


def _segment(reading: Reading, leaf: str, names: set[str | None]) -> tuple[int, int, int, int] | None:
    """(rank, step, start, length) of the longest timeline segment of a leaf, by preference one with such a name."""
    best: tuple[tuple[bool, int], tuple[int, int, int, int]] | None = None
    for line in reading.report.timelines:
        if leaf not in line.leaves:
            continue
        wanted = line.leaves.index(leaf)
        for at in [at for at, code in enumerate(line.leaf) if code == wanted]:
            length, start = line.segment_ns[at], line.step_start_ns + line.start_ns[at]
            rank = (line.names[line.name[at]] in names if 0 <= line.name[at] < len(line.names) else False, length)
            if best is None or rank > best[0]:
                best = (rank, (line.rank, line.step, start, length))
    return best[1] if best is not None else None
