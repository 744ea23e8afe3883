"""One trace file becomes a small summary: steps, ledgers and quality. Only this crosses processes."""

from __future__ import annotations

import msgspec
import numpy as np

from steptime.model import Quality, StepTime, StepTimeline
from steptime.taxonomy import LEAVES
from steptime.timeline.cpu_rank import split_host
from steptime.timeline.dependencies import Dependencies
from steptime.timeline.facts import Facts
from steptime.timeline.host import HostState
from steptime.timeline.instances import Instances
from steptime.timeline.labels import Labels
from steptime.timeline.ledger import Ledger
from steptime.timeline.links import Activities, Threads, activities, blocking_copies, clock_shift_ns, launch_rows
from steptime.timeline.op_groups import OpGroups
from steptime.timeline.partition import DeviceSplit, FileContext, split_device, step_times
from steptime.timeline.passes import Passes
from steptime.timeline.periods import periodic_marks
from steptime.timeline.places import Places
from steptime.timeline.pricing import Pricing, price_calls
from steptime.timeline.segments import chosen, draw
from steptime.timeline.steps import WHOLE_RECORDING, Marks, find_marks, host_windows
from steptime.timeline.totals import Totals, recording_totals
from steptime.timeline.unprofiled import move_overhead
from steptime.timeline.work import Ops, Work, label
from steptime.trace.events import I64, Category, EventTable, TraceMeta

#: A step whose kernel count is further from the typical one is not of its kind (DESIGN 1.1).
KIND_TOLERANCE = 0.2


class Request(msgspec.Struct, frozen=True):
    """What the user asked of one file."""

    step_marker: str | None = None
    unprofiled_step_ns: int | None = None
    pricing: Pricing | None = None
    every_picture: bool = False
    replayed: bool = False


class DeviceTimeline(msgspec.Struct, frozen=True):
    """One rank on one device (None: CPU only). `host_ops` int64 [k]: ops recorded in each step.

    host_ns int64 [k, leaves]: see `host.HostState.spent`; None for CPU ranks and rows that were not read from a trace.
    """

    device: int | None
    name: str | None
    steps: list[StepTime]
    ledger: Ledger
    host_ops: I64
    totals: Totals | None
    groups: OpGroups | None = None
    facts: Facts = msgspec.field(default_factory=dict)
    instances: Instances | None = None
    passes: Passes | None = None
    pictures: list[StepTimeline] = msgspec.field(default_factory=list)
    host_ns: I64 | None = None
    dependencies: Dependencies | None = None

    def with_ledger(self, ledger: Ledger, productive_ns: I64) -> DeviceTimeline:
        """The same steps with the leaves of another ledger, and useful work beside them.

        Args:
            ledger: of the same steps.
            productive_ns: int64 [steps], taken out of the ledger's leaves already.

        Raises:
            AccountingError: both do not add up to the steps.
        """
        leaves = ledger.leaves_ns(len(self.steps), len(LEAVES)).tolist()
        steps = [
            msgspec.structs.replace(
                step,
                leaves_ns={leaf.key: ns for leaf, ns in zip(LEAVES, row, strict=True) if ns},
                productive_ns=useful_ns,
            )
            for step, row, useful_ns in zip(self.steps, leaves, productive_ns.tolist(), strict=True)
        ]
        for step in steps:
            step.check()
        return msgspec.structs.replace(self, ledger=ledger, steps=steps)


class FileSummary(msgspec.Struct, frozen=True):
    """All that the analysis keeps of one file."""

    meta: TraceMeta
    devices: list[DeviceTimeline]
    step_source: str
    quality: Quality
    warnings: list[str]
    start_ns: int
    end_ns: int
    recompute_visible: bool
    unmeasurable_contention_ns: int
    declared_rank: int | None


def summarize(table: EventTable, request: Request) -> FileSummary:
    """Split all steps of one file.

    Raises:
        TraceError: the step marker matches nothing.
    """
    launches = launch_rows(table)
    marks = _marks(table, launches, request)
    threads = Threads(table)
    labels = Labels()
    shift_ns = clock_shift_ns(table, launches)
    blocking = blocking_copies(table, launches, shift_ns)
    state = HostState(table, threads, marks.track, launches, blocking)
    lost = _lost_calls(table, launches)
    places = Places(table, threads, labels)
    context = FileContext(table, threads, marks, state, places, labels, lost, shift_ns, request.replayed)
    ops = Ops(table, threads)
    devices = []
    unmeasurable = 0
    for device in np.unique(table.device.device).tolist():
        work = activities(table, device, launches, shift_ns)
        labelled = label(table, work, ops, labels)
        calls = price_calls(table, work, labelled, threads, request.pricing) if request.pricing else None
        split = split_device(context, work, labelled, calls)
        unmeasurable += split.unmeasurable_contention_ns
        timeline = _timeline(context, request, split, device, recording_totals(table, work, labelled))
        devices.append(
            msgspec.structs.replace(timeline, pictures=_pictures(context, request, timeline, split, (work, labelled)))
        )
    if not devices:
        devices.append(_timeline(context, request, split_host(context, ops), None, None))
    return _summary(context, devices, launches, len(ops.recompute_rows) > 0, unmeasurable)


def _marks(table: EventTable, launches: I64, request: Request) -> Marks:
    marks = find_marks(table, request.step_marker)
    if marks.source == WHOLE_RECORDING:
        return periodic_marks(table, launches) or marks
    return marks


def _lost_calls(table: EventTable, launches: I64) -> I64:
    """Calls without a device event, of names whose calls mostly have one (no list of names, case A34)."""
    calls = table.rows(Category.RUNTIME)
    linked = np.isin(calls, launches)
    names = len(table.names)
    total = np.bincount(table.name[calls], minlength=names)
    with_event = np.bincount(table.name[calls[linked]], minlength=names)
    launching = (with_event * 2 > total)[table.name[calls]]
    return calls[~linked & launching & (table.correlation[calls] > 0)]


def _timeline(
    context: FileContext, request: Request, split: DeviceSplit, device: int | None, totals: Totals | None
) -> DeviceTimeline:
    table, bounds = context.table, split.windows
    ledger = split.ledger
    if request.unprofiled_step_ns is not None:
        excess = np.maximum(np.diff(bounds) - request.unprofiled_step_ns, 0)
        ledger = move_overhead(ledger, excess, context.labels)
    steps = step_times(context.marks, bounds, ledger)
    steps = _classify(context, split, steps, on_device=device is not None)
    # Ops belong to the step that the host was in, however far the device runs behind.
    host_edges = host_windows(context.marks)
    at = np.searchsorted(host_edges, table.start_ns[table.rows(Category.CPU_OP)], side="right") - 1
    host_ops = np.bincount(at[(at >= 0) & (at < len(steps))], minlength=len(steps)).astype(np.int64)
    known = {entry.id: entry.name for entry in table.meta.devices}
    name = known.get(device) if device is not None else None
    return DeviceTimeline(
        device=device,
        name=name,
        steps=steps,
        ledger=ledger,
        host_ops=host_ops,
        totals=totals,
        groups=split.groups,
        facts=split.facts,
        instances=split.instances,
        passes=split.passes,
        host_ns=context.state.spent(context.marks.track, host_edges) if device is not None else None,
        dependencies=split.dependencies,
    )


def _pictures(
    context: FileContext,
    request: Request,
    timeline: DeviceTimeline,
    split: DeviceSplit,
    activities_: tuple[Activities, Work],
) -> list[StepTimeline]:
    """The typical and the slowest step (with `every_picture` all of them) as segments."""
    if split.segments is None:
        return []
    wanted = chosen(timeline.steps)
    if request.every_picture:
        wanted = {at: wanted.get(at, "") for at in range(len(timeline.steps))}
    texts = context.labels.texts
    return [draw(timeline.steps[at], why, split.segments, *activities_, texts) for at, why in wanted.items()]


def _classify(context: FileContext, split: DeviceSplit, steps: list[StepTime], on_device: bool) -> list[StepTime]:
    """Mark edge steps and steps that are no training steps."""
    marks = context.marks
    kernels = split.kernels
    updated = marks.updated if marks.updated is not None else np.ones(len(steps), np.bool_)
    usual = float(np.median(kernels[updated])) if updated.any() else float(np.median(kernels))
    off = np.abs(kernels - usual) > KIND_TOLERANCE * max(usual, 1.0)
    lost = context.table.start_ns[context.lost]
    last_is_cut = bool(((lost >= marks.start_ns[-1]) & (lost < marks.end_ns[-1])).any())
    saves = [bool(step.leaves_ns.get("host/checkpoint")) for step in steps]
    # A job that saves in most of its steps has no other usual step.
    rarely = 2 * sum(saves) <= len(steps)
    result = []
    for index, step in enumerate(steps):
        notes = []
        if not updated[index]:
            notes.append("no optimizer update")
        elif off[index]:
            notes.append(f"{int(kernels[index])} {'kernels' if on_device else 'ops'}, usually {usual:.0f}")
        if saves[index] and rarely:
            notes.append("checkpoint")
        edge = on_device and (index == 0 or (index == len(steps) - 1 and last_is_cut))
        kind = "other" if notes and len(steps) > 1 else "train"
        result.append(msgspec.structs.replace(step, class_=kind, edge=edge, note="; ".join(notes) or None))
    return result


def _summary(
    context: FileContext, devices: list[DeviceTimeline], launches: I64, recomputes: bool, unmeasurable: int
) -> FileSummary:
    table, meta = context.table, context.table.meta
    hidden = _hides_recompute(table, launches)
    warnings = [*meta.warnings, *context.marks.notes]
    if context.shift_ns:
        warnings.append(
            f"the device clock runs {context.shift_ns / 1000:.1f} us behind the host's (kernels start before their "
            "launch): shifted for host-device questions only"
        )
    if not context.state.has_ops and devices[0].device is not None:
        warnings.append("no host ops were recorded: device idle time can't be attributed to the host's activity")
    if devices[0].device is None and context.marks.source == WHOLE_RECORDING:
        warnings.append("no GPU events and no step marks: is this the launcher process?")
    ranks = {args.rank for args in table.collectives if args.rank >= 0}
    return FileSummary(
        meta=meta,
        devices=devices,
        step_source=context.marks.source,
        quality=_quality(context, devices, launches),
        warnings=warnings,
        start_ns=int(table.start_ns.min()),
        end_ns=int(table.end_ns.max()),
        recompute_visible=recomputes or not hidden,
        unmeasurable_contention_ns=unmeasurable,
        declared_rank=meta.rank if meta.rank is not None else (ranks.pop() if len(ranks) == 1 else None),
    )


def _hides_recompute(table: EventTable, launches: I64) -> bool:
    """Whether forward work could run again unseen: in a compiled backward, or in a CUDA graph."""
    compiled = any("CompiledFunctionBackward" in name or "CompiledFxGraph" in name for name in table.names)
    return compiled or _graph_launched(table, launches) > 0


def _graph_launched(table: EventTable, launches: I64) -> int:
    """Device events that say their graph, or share the call that launched them."""
    linked = np.flatnonzero(launches >= 0)
    of_call, counts = np.unique(launches[linked], return_inverse=True, return_counts=True)[1:]
    in_graph = table.device.graph > 0
    in_graph[linked] |= counts[of_call.ravel()] > 1
    return int(np.count_nonzero(in_graph))


def _quality(context: FileContext, devices: list[DeviceTimeline], launches: I64) -> Quality:
    table, meta = context.table, context.table.meta
    shapes = np.array([text not in ("", "[]") for text in table.texts], np.bool_)
    has_shapes = bool(len(table.ops.shapes)) and bool(shapes[table.ops.shapes].any())
    first_ns = min(device.steps[0].start_ns for device in devices)
    head = (launches < 0) & (table.start_ns[table.device.row] < first_ns)
    absolute = bool(len(table.start_ns)) and int(np.median(table.start_ns)) > 10**18
    base = "baseTimeNanoseconds" if meta.base_ns is not None else "absolute" if absolute else "unknown start"
    return Quality(
        dialect=meta.dialect,
        shapes=has_shapes,
        stacks=bool((table.category == Category.PYTHON).any()),
        clock_base=base,
        launches_without_kernels=len(context.lost),
        kernels_without_launches=int(np.count_nonzero(launches < 0)),
        partial_first_step=devices[0].steps[0].edge,
        partial_last_step=len(devices[0].steps) > 1 and devices[0].steps[-1].edge,
        cut_head_events=int(np.count_nonzero(head)),
        dropped=meta.dropped,
        clipped=meta.clipped,
        graph_launched=_graph_launched(table, launches),
    )
