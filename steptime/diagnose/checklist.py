"""The ten checks before a number is trusted, in the order and words of "What actually goes wrong at scale?".

Each is passed, failed, or can't be told from these traces, with the numbers that decide. What a trace can't hold (a
byte inventory, failures) is judged from reports on the whole run, where they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steptime.diagnose.reading import Reading, Value
from steptime.diagnose.run_reports import RunFacts
from steptime.diagnose.say import number_text, share_text, span_text, time_text
from steptime.model import ChecklistItem

PASS, FAIL, CANNOT_TELL = "pass", "fail", "cannot tell"
Values = Mapping[str, Value]
Verdict = tuple[str, str]

#: Llama 3 405B reported 38 to 43 % on 16,384 H100s.
HEALTHY_MFU = 0.38
#: What a slice may cost and still count as nothing to fix.
SMALL = 0.05
#: Time without a cause above which no clock can be named.
UNCLEAR = 0.2
#: What to look for in kernels, and the metric that has its time.
_FAULTS = (
    ("attention as separate matmuls", "roof.math_attention_share"),
    ("norms written out", "roof.unfused_norm_share"),
    ("matmul shapes off the tile", "roof.misaligned_share"),
)
#: How far the interval between checkpoints may be from the best: at half or twice of it, writing and redoing cost 1.25
#: times the least, by the first-order formula d/t + t/(2M).
INTERVAL_FACTOR = 2.0
#: Reserved over allocated memory above which fragmentation is likely.
RESERVED_RATIO = 1.3


@dataclass(frozen=True, slots=True)
class _Case:
    """The report and its metrics, as the ten judges see them."""

    reading: Reading
    values: Values
    run: RunFacts = RunFacts()

    def known(self, *names: str) -> tuple[list[float], str]:
        """The numbers, or none and the reason why the first unknown one is."""
        found = []
        for name in names:
            number = self.values[name].number
            if number is None:
                return [], self.values[name].why
            found.append(number)
        return found, ""

    @property
    def inflated(self) -> bool:
        """Whether stacks slowed the host and nothing corrects for it."""
        return bool(self.values["quality.stacks"].number) and not self.reading.leaves.get("host/profiler_overhead")


def checklist(reading: Reading, values: Values, run: RunFacts = RunFacts()) -> list[ChecklistItem]:  # noqa: B008
    """All ten items, in order; `run`: what reports on the whole run say."""
    items = []
    for text, judge in ITEMS:
        status, why = judge(_Case(reading, values, run))
        items.append(ChecklistItem(item=text, status=status, why=why))
    return items


def _fit(case: _Case) -> Verdict:
    numbers, _ = case.known("allocator.reserved_bytes")
    held = f"; the allocator held {number_text(numbers[0], 'bytes')}" if numbers else ""
    if case.run.fit is not None:
        verdict, needed, memory = case.run.fit
        text = f"the fullest rank needs {number_text(needed, 'bytes')} of {number_text(memory, 'bytes')}{held}"
        if verdict == "tight":
            return CANNOT_TELL, f"{text}; that leaves no margin for what no formula counts"
        return (PASS if verdict == "fits" else FAIL), text
    return CANNOT_TELL, f"a trace does not hold the byte inventory of parameters, states and activations{held}"


def _mfu(case: _Case) -> Verdict:
    numbers, why = case.known("job.mfu")
    if not numbers:
        return CANNOT_TELL, why
    mfu = numbers[0]
    recompute = case.values["share.recompute"].number
    hfu = f", HFU {share_text(case.reading.job.hfu)}" if case.reading.job.hfu is not None else ""
    again = f"recompute takes {share_text(recompute)}" if recompute is not None else "recompute is not visible"
    text = f"MFU {share_text(mfu)}, recompute not counted{hfu}; {again}; a healthy frontier run has 38 to 43 %"
    return (PASS if mfu >= HEALTHY_MFU else FAIL), text


def _roofline(case: _Case) -> Verdict:
    numbers, why = case.known("roof.known", "roof.headroom_share")
    if not numbers:
        return CANNOT_TELL, why
    known, headroom = numbers
    top = case.values["roof.top_peak_share"].number
    text = f"kernels spend {share_text(headroom)} of the step above their roof, which is known for {share_text(known)}"
    text += " of kernel time"
    text += f"; the costliest op attains {share_text(top)} of peak" if top is not None else ""
    text += f"; {_kernel_faults(case)}"
    if known < 0.5 and headroom < SMALL:
        return CANNOT_TELL, text
    return (PASS if headroom < SMALL else FAIL), text


def _kernel_faults(case: _Case) -> str:
    """What the walkthrough asks of the kernels themselves, among those whose roof is known."""
    shares = [(name, case.values[metric].number or 0.0) for name, metric in _FAULTS]
    costly = [f"{name} cost {share_text(share)}" for name, share in shares if share > 0]
    return ", ".join(costly) if costly else ", ".join(f"no {name}" for name, _ in _FAULTS)


def _clock(case: _Case) -> Verdict:
    numbers, why = case.known("share.kernels", "share.exposed_comm", "share.host", "share.unexplained")
    if not numbers:
        return CANNOT_TELL, why
    kernels, comm, host, unclear = numbers
    text = f"host {share_text(host)}, exposed communication {share_text(comm)}, kernels {share_text(kernels)}"
    if unclear >= UNCLEAR:
        return CANNOT_TELL, f"{share_text(unclear)} of the step has no evidence for a cause; {text}"
    pace = case.values["host.pace_share"].number or 0.0
    if case.inflated and pace >= SMALL and host - pace < SMALL and comm < SMALL:
        return (
            CANNOT_TELL,
            f"stacks slow the host, so its {share_text(pace)} of launching may be the profiler's; {text}",
        )
    clocks = [("host", host), ("exposed communication", comm)]
    for name, slice_id in (("the pipeline's bubble", "pipeline_bubble"), ("waiting for late ranks", "stragglers")):
        waited = case.values[f"share.{slice_id}"].number or 0.0
        if waited >= SMALL:
            clocks.append((name, waited))
            text += f", {name} {share_text(waited)}"
    largest = max(clocks, key=lambda pair: pair[1])
    if largest[1] >= SMALL:
        return FAIL, f"{largest[0]} is the clock to fix; {text}"
    return PASS, f"the device is busy computing; {text}"


def _overlap(case: _Case) -> Verdict:
    numbers, why = case.known("share.exposed_comm")
    if not numbers:
        return CANNOT_TELL, why
    exposed, hidden = numbers[0], case.values["comm.overlap"].number
    if hidden is None:
        if case.reading.job.world_size == 1:
            return PASS, "the job has one rank and communicates with nobody"
        return CANNOT_TELL, case.values["comm.overlap"].why
    text = (
        f"exposed communication takes {share_text(exposed)} of the step; compute hides {share_text(hidden)} of it all"
    )
    return (PASS if exposed < SMALL else FAIL), text


def _precision(case: _Case) -> Verdict:
    numbers, why = case.known("share.kernels.precision")
    if not numbers:
        return CANNOT_TELL, why
    lost, dtype = numbers[0], case.reading.job.reference_dtype or "the reference dtype"
    text = f"ops slower than {dtype} lose {share_text(lost)} of the step; a control run is not in a trace"
    return (PASS if lost < 0.01 else FAIL), text


def _failures(case: _Case) -> Verdict:
    run = case.run
    if run.mtbf_h is not None or run.failures is not None or run.plan_mtbf_h is not None:
        return _budgeted(run)
    count = case.values["steps.checkpoints"].number
    seen = f"; {count:.0f} recorded steps hold a checkpoint" if count else "; no checkpoint was recorded"
    return CANNOT_TELL, f"a trace of seconds holds no failure rate and no checkpoint interval{seen}"


def _budgeted(run: RunFacts) -> Verdict:
    """Whether the run saves about as often as its failures ask for."""
    text = "no failure in the logs"
    mtbf_h = run.mtbf_h if run.failures is not None else run.plan_mtbf_h
    if mtbf_h is not None:
        text = f"the run fails every {span_text(mtbf_h * 3600e9)}"
        text += f" ({run.failures:,} failures)" if run.failures is not None else " by the plan"
    text += f", it is not down {share_text(run.eta)} of the time" if run.eta is not None else ""
    wanted_ns, by, left_out = _wanted(run)
    if wanted_ns is None or run.interval_ns is None:
        missing = "how often it saves" if run.interval_ns is None else "how long a checkpoint stops it"
        wanted = f"; {by} asks for {span_text(wanted_ns)}" if wanted_ns is not None else ""
        return CANNOT_TELL, f"{text}; {missing} is not known{wanted}{left_out}"
    text += f"; it saves every {span_text(run.interval_ns)}, {by} asks for {span_text(wanted_ns)}{left_out}"
    ratio = run.interval_ns / wanted_ns
    return (PASS if 1 / INTERVAL_FACTOR <= ratio <= INTERVAL_FACTOR else FAIL), text


def _wanted(run: RunFacts) -> tuple[float | None, str, str]:
    """The interval to save at, who asks for it, and why a plan does not; a plan of another job says nothing of this."""
    if run.plan_ns is None or run.plan_mtbf_h is None:
        return run.young_ns, "Young's formula", ""
    if run.mtbf_h is None or 1 / INTERVAL_FACTOR <= run.plan_mtbf_h / run.mtbf_h <= INTERVAL_FACTOR:
        return run.plan_ns, "the plan", ""
    planned = span_text(run.plan_mtbf_h * 3600e9)
    return run.young_ns, "Young's formula", f"; the plan is for a failure every {planned} and left out"


def _norms(case: _Case) -> Verdict:
    run = case.run
    if run.norm_logged is not None:
        if not run.norm_logged:
            return FAIL, "the run's own log holds no gradient norm"
        lines = f" at {number_text(run.norm_lines, 'count')} steps" if run.norm_lines is not None else ""
        spikes = "" if run.spikes is None else f"; {number_text(run.spikes, 'count')} spikes in it"
        return PASS, f"the run logs its gradient norm{lines}{spikes}"
    numbers, why = case.known("norms.per_step")
    if not numbers:
        return CANNOT_TELL, why
    if numbers[0] > 0:
        often = f"a gradient norm is computed {_times(numbers[0])} a step"
        return PASS, f"{often}; whether somebody looks at it is not in a trace"
    if not case.values["share.kernels.optimizer"].number:
        return CANNOT_TELL, "the counted steps hold no optimizer update whose gradient norm could be watched"
    return FAIL, "no gradient norm is computed in the counted steps"


def _times(count: float) -> str:
    return "once" if count == 1 else f"{number_text(count, 'count')} times"


def _allocator(case: _Case) -> Verdict:
    idle = case.values["share.host.allocator"].number
    calls = f"allocator calls cost {share_text(idle)} of the step" if idle is not None else "allocator calls not known"
    numbers, why = case.known("allocator.reserved_ratio")
    if numbers:
        text = f"the allocator held {number_text(numbers[0], 'ratio')} times what tensors used; {calls}"
        return (FAIL if numbers[0] >= RESERVED_RATIO or (idle or 0) >= 0.01 else PASS), text
    if idle is not None and idle >= 0.01:
        return FAIL, f"{calls}, so the cache does not serve them; {why}"
    return CANNOT_TELL, f"{why}; {calls}"


def _small_batch(case: _Case) -> Verdict:
    numbers, why = case.known("share.host.launch_bound")
    if not numbers:
        return CANNOT_TELL, why
    launch, length = numbers[0], case.values["kernels.mean_ns"].number
    tokens = case.values["job.tokens_per_step"].number
    text = f"launching costs {share_text(launch)} of the step"
    text += f", the mean kernel takes {time_text(length)}" if length is not None else ""
    text += f", {tokens:,.0f} tokens a step" if tokens is not None else ""
    if launch < SMALL:
        return PASS, text
    if case.inflated:
        return CANNOT_TELL, f"{text}, but stacks slow the host: measure a step without the profiler"
    inflation = case.values["host.inflation_share"].number or 0.0
    if launch - inflation < SMALL:
        return CANNOT_TELL, f"{text}, of which up to {share_text(inflation)} may be the profiler's: measure without it"
    return FAIL, text


Judge = Callable[[_Case], Verdict]
#: The items as their source words them, and who judges each.
ITEMS: tuple[tuple[str, Judge], ...] = (
    ("Fit before fast", _fit),
    ("Measure MFU, not tokens per second", _mfu),
    ("Put the kernel on the roofline", _roofline),
    ("Find the clock", _clock),
    ("Overlap or shard, never sum", _overlap),
    ("Change one precision at a time, with a control", _precision),
    ("Budget the failures", _failures),
    ("Watch the norms", _norms),
    ("Fix the allocator before adding GPUs", _allocator),
    ("Small batch means launch-bound", _small_batch),
)
