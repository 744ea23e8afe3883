"""How fast, how big, from the root of the checkout: ``python -m benchmarks.run NAME``, a name below or ``all``.

Every figure is a ratio of two medians taken in the same run by alternating repetitions, so that it does not depend on
the machine, and is printed beside its limit (DESIGN section 8). Exit code 1 if a limit is missed, 2 if a trace is
missing. Needs the ``test`` extra. Traces are taken from ``../shared/public_traces`` unless given.

* ``decode``: whole `steptime.analyze`, in process, against inflating and decoding the same file.
* ``hta``: against HTA's load and temporal breakdown, in process and as whole processes.
* ``large``: memory and speed on a plain ``.json`` of ``--gigabytes`` (made from a real trace, see `benchmarks.grow`).
* ``ranks``: 32 ranks with ``-j 2`` against ``-j 1``, as whole processes.
* ``what-if``: a simulated job of 64 ranks and three steps: its graph and ten removals against reading its files, both
  in CPU seconds of one run (issue 5); memory; whole `steptime.analyze` with and without the replay.
* ``goodput``: 10,000 simulated runs of 54 days at 50 checkpoint intervals, in seconds of one core, and against drawing
  their failures alone.
* ``watch``: one `Watch.step` of a job that captures nothing, against an empty call and as a share of a step of 1 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.measure import REPO, Figure, alternate, analyze_in_child, run_process

TRACES = REPO.parent / "shared" / "public_traces"
OWLV2 = TRACES / "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz"  # 56 MB of JSON, inference
NS_RESOLUTION = TRACES / "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"  # 15 MB, training
NEGATIVE_QUEUE = TRACES / "hta/negative_queue_length_values_check/rank0.json.gz"  # 26 MB, training

DECODE_LIMIT = 2.5
HTA_IN_PROCESS_LIMIT = 6.0
HTA_PROCESS_LIMIT = 5.0
LARGE_MEMORY_LIMIT_GB = 4.0
LARGE_SPEED_LIMIT = 0.7
JOBS_LIMIT = 0.6
REPLAY_LIMIT = 1.0
GOODPUT_LIMIT_S = 5.0
WATCH_LIMIT_US = 2.0
WATCH_SHARE_LIMIT = 0.2


@dataclass(frozen=True)
class Settings:
    """One benchmark run."""

    traces: list[Path]  # empty: the benchmark's own
    repeat: int  # rounds of alternating repetitions
    gigabytes: float  # size of the file that `large` makes, in 1e9 bytes
    ranks: int  # files that `ranks` makes
    scratch: Path | None  # where generated traces go; None: the system's temporary folder


def _traces(settings: Settings, defaults: Sequence[Path]) -> list[Path]:
    """The traces to use.

    Raises:
        FileNotFoundError: one of them is missing.
    """
    traces = settings.traces or list(defaults)
    for trace in traces:
        if not trace.exists():
            raise FileNotFoundError(f"{trace}: no such file; give the traces to use on the command line")
    return traces


def decode(settings: Settings) -> Iterator[Figure]:
    """Whole analysis against inflate + typed decode of the same bytes."""
    import steptime
    from benchmarks.baseline import inflate, inflate_and_decode, typed_decoder

    decoder = typed_decoder()
    for trace in _traces(settings, [OWLV2, NS_RESOLUTION]):
        megabytes = len(inflate(trace)) / 1e6
        whole, yardstick = alternate(
            [partial(steptime.analyze, [str(trace)]), partial(inflate_and_decode, trace, decoder)], settings.repeat
        )
        note = f"{whole * 1e3:.0f} ms against {yardstick * 1e3:.0f} ms; {megabytes / whole:.0f} MB/s"
        name = f"analyze / (inflate + decode), {trace.name[:28]}"
        yield Figure(name, whole / yardstick, limit=DECODE_LIMIT, note=note)


def hta(settings: Settings) -> Iterator[Figure]:
    """Against HTA, which must be installed."""
    import steptime
    from benchmarks.hta_breakdown import breakdown, silence

    silence()
    for trace in _traces(settings, [OWLV2, NS_RESOLUTION]):
        theirs, ours = alternate([partial(breakdown, trace), partial(steptime.analyze, [str(trace)])], settings.repeat)
        note = f"{theirs * 1e3:.0f} ms against {ours * 1e3:.0f} ms"
        name = f"HTA / steptime in process, {trace.name[:28]}"
        yield Figure(name, theirs / ours, "x", "at least", HTA_IN_PROCESS_LIMIT, note)
        theirs, ours = alternate(
            [
                partial(run_process, ["-m", "benchmarks.hta_breakdown", str(trace)]),
                partial(run_process, ["-m", "steptime", "analyze", "-q", str(trace)]),
            ],
            settings.repeat,
        )
        note = f"{theirs * 1e3:.0f} ms against {ours * 1e3:.0f} ms"
        name = f"HTA / steptime as processes, {trace.name[:28]}"
        yield Figure(name, theirs / ours, "x", "at least", HTA_PROCESS_LIMIT, note)


def large(settings: Settings) -> Iterator[Figure]:
    """Memory and speed on one huge plain file. Speeds are of `analyze` alone, each in a process of its own."""
    from benchmarks.baseline import inflate
    from benchmarks.grow import repeat_to_size

    source = _traces(settings, [NS_RESOLUTION])[0]
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        small, huge = Path(folder) / "small.json", Path(folder) / "huge.json"
        small.write_bytes(inflate(source))
        size = repeat_to_size(source, huge, round(settings.gigabytes * 1e9))
        before = analyze_in_child(small, settings.repeat)
        whole = analyze_in_child(huge, 1)
        after = analyze_in_child(small, settings.repeat)
    small_size = len(inflate(source))
    small_speed = small_size / 1e6 / ((before.seconds + after.seconds) / 2)
    speed = size / 1e6 / whole.seconds
    yield Figure("peak memory, small file", before.peak_bytes / 1e6, "MB", note=f"{small_size / 1e6:.0f} MB of JSON")
    memory_note = f"{size / 1e9:.2f} GB of JSON"
    yield Figure("peak memory, large file", whole.peak_bytes / 1e9, "GB", limit=LARGE_MEMORY_LIMIT_GB, note=memory_note)
    speed_note = f"{speed:.0f} MB/s against {small_speed:.0f} MB/s"
    yield Figure("speed, large / small", speed / small_speed, "x", "at least", LARGE_SPEED_LIMIT, speed_note)


def ranks(settings: Settings) -> Iterator[Figure]:
    """Many ranks with two processes against one. With fewer than two cores nothing can be gained."""
    from benchmarks.grow import copy_for_ranks

    source = _traces(settings, [NEGATIVE_QUEUE])[0]
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        size = copy_for_ranks(source, Path(folder), settings.ranks)
        command = ["-m", "steptime", "analyze", "-q", folder]
        two, one = alternate(
            [partial(run_process, [*command, "-j", "2"]), partial(run_process, [*command, "-j", "1"])],
            settings.repeat,
        )
    note = f"{two:.1f} s against {one:.1f} s; {settings.ranks} ranks of {size / 1e6:.0f} MB"
    yield Figure("-j 2 / -j 1", two / one, limit=JOBS_LIMIT, note=note)


def what_if(settings: Settings) -> Iterator[Figure]:
    """Replay of a simulated job with ten removals against reading its files."""
    import msgspec

    import steptime
    from benchmarks.what_if import SCENARIO
    from steptime.pipeline import Options
    from steptime.simulate import Scenario, simulate

    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        truth = simulate(msgspec.toml.decode(SCENARIO.encode(), type=Scenario), folder, 1)
        arguments = [sys.executable, "-m", "benchmarks.what_if", folder]
        found = json.loads(subprocess.run(arguments, cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout)
        spent = found["seconds"]
        replayed, reading = spent["graph"] + spent["replay"], spent["read"]
        note = (
            f"{replayed:.1f} s against {reading:.1f} s of CPU; {truth.world_size} ranks, {found['instants']:,} instants"
        )
        yield Figure(
            f"replay, {found['removals']} removals / reading", replayed / reading, limit=REPLAY_LIMIT, note=note
        )
        yield Figure("peak memory", found["peak_bytes"] / 1e9, "GB", limit=LARGE_MEMORY_LIMIT_GB)
        actions = [partial(steptime.analyze, folder, Options(replay=replay)) for replay in (True, False)]
        whole, without = alternate(actions, settings.repeat)
        note = (
            f"{whole:.1f} s against {without:.1f} s; with what waited for what, findings' gains and the critical path"
        )
        yield Figure("analyze with / without replay", whole / without, note=note)


def goodput(settings: Settings) -> Iterator[Figure]:
    """The simulation behind ``goodput plan`` on the published job, in processor time."""
    import numpy as np

    from steptime.goodput.failures import draw
    from steptime.goodput.simulation import simulate
    from steptime.model.plan import PlanAsk

    ask = PlanAsk(gpus=16_384, mtbf_gpu_s=50_677 * 3600.0, pause_s=33, restart_s=600, runs=10_000)
    intervals = np.geomspace(120, 7200, 50).tolist()
    whole, draws = alternate(
        [partial(simulate, ask, intervals), lambda: [block.open_s for block in draw(ask)]], settings.repeat
    )
    before = time.process_time()
    simulate(ask, intervals)
    spent = time.process_time() - before
    note = f"{spent / (ask.runs * len(intervals)) * 1e6:.2f} µs a run and interval of 419 failures"
    yield Figure("10,000 runs x 50 intervals, one core", spent, "s", limit=GOODPUT_LIMIT_S, note=note)
    yield Figure("simulation / drawing its failures", whole / draws, note=f"{whole:.2f} s against {draws:.2f} s")


def watch(settings: Settings) -> Iterator[Figure]:
    """The hook in a training loop, while it is idle."""
    from benchmarks.watching import step_and_nothing_ns, whole_loop

    step, nothing = step_and_nothing_ns(settings.repeat)
    note = f"{step:.0f} ns against {nothing:.0f} ns"
    yield Figure("Watch.step", step / 1e3, "µs", limit=WATCH_LIMIT_US, note=note)
    yield Figure("Watch.step / empty call", step / nothing, note=note)
    yield Figure("Watch.step, share of a step of 1 ms", step / 1e6 * 100, "%", limit=WATCH_SHARE_LIMIT)
    watched, alone = whole_loop(settings.repeat)
    note = f"its thread and all: {watched / 1e3:.1f} µs against {alone / 1e3:.1f} µs of processor time"
    yield Figure("watched loop of 1 ms steps, beyond one without", (watched / alone - 1) * 100, "%", note=note)


BENCHMARKS: dict[str, Callable[[Settings], Iterator[Figure]]] = {
    "decode": decode,
    "hta": hta,
    "large": large,
    "ranks": ranks,
    "what-if": what_if,
    "goodput": goodput,
    "watch": watch,
}


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for, print each figure as it comes, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("traces", nargs="*", type=Path, help="traces to use instead of the public ones")
    parser.add_argument("--repeat", type=int, default=5, help="rounds of alternating repetitions (default 5)")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the large file (default 5)")
    parser.add_argument("--ranks", type=int, default=32, help="number of rank files (default 32)")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for generated traces")
    options = parser.parse_args(arguments)
    names = list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]
    traces = [trace.resolve() for trace in options.traces]
    settings = Settings(traces, options.repeat, options.gigabytes, options.ranks, options.scratch)
    missed = False
    try:
        for name in names:
            for figure in BENCHMARKS[name](settings):
                print(figure, flush=True)
                missed = missed or not figure.met
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
