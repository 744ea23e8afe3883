"""The jobs of the matrix: every fault alone on several parallel layouts, and random pairs of faults.

A fault is sized so that what it costs is larger than whatever else is wrong with the clean job: only then is there a
right answer to "what is the first thing to mend?". `tests/matrix/judged.py` checks it against the simulator's truth.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from steptime.simulate import Scenario
from steptime.simulate.scenario import Fault

#: Seeds on which thresholds may be tuned, and those on which the matrix is judged.
TUNING_SEEDS, HELD_OUT_SEEDS = (1, 2, 3), (101, 102, 103)
#: Draws the pairs; the jobs themselves are drawn by the seeds above.
PAIRS_SEED, PAIRS = 4, 20

_BASE = """
[model]
layers = 4
hidden = 2048
heads = 16
ffn = 8192
vocab = 8192
[batch]
micro_batch_size = 8
seq_len = 2048
[recording]
steps = 5
"""
_TWO_HOSTS = """
[cluster]
gpus_per_host = 4
[clocks]
offset_ms = 20
drift_ppm = 30
"""

#: Layout -> its tables, which replace those of the base key by key.
LAYOUTS: dict[str, str] = {
    "ddp": "[layout]\ndp = 8\n",
    "ddp-2-hosts": "[layout]\ndp = 8\n" + _TWO_HOSTS,
    "fsdp-2-hosts": "[layout]\ndp = 8\nfsdp = true\n" + _TWO_HOSTS,
    "fsdp": "[layout]\ndp = 4\nfsdp = true\n[batch]\nmicro_batch_size = 4\n",
    "tp": "[layout]\ndp = 4\ntp = 2\n[model]\nlayers = 2\nhidden = 4096\nheads = 32\nffn = 16384\n",
    "tp-fsdp": "[layout]\ndp = 4\ntp = 2\nfsdp = true\nsequence_parallel = true\n"
    "[model]\nlayers = 2\nhidden = 4096\nheads = 32\nffn = 16384\n"
    "[batch]\nmicro_batch_size = 4\n",
    "ep": "[layout]\ndp = 4\nep = 4\n[model]\nexperts = 8\nffn = 2048\n",
    "ep-dp": "[layout]\ndp = 8\nep = 4\n[model]\nexperts = 8\nffn = 2048\n",
    "ep-2-hosts": "[layout]\ndp = 8\nep = 4\n[model]\nexperts = 8\nffn = 2048\n" + _TWO_HOSTS,
    "cp": "[layout]\ncp = 2\ndp = 4\n[batch]\nmicro_batch_size = 4\nseq_len = 8192\n",
    "1f1b": "[layout]\npp = 4\ndp = 2\n[model]\nlayers = 8\n[batch]\nmicro_batches = 16\nmicro_batch_size = 1\n",
    "gpipe": "[layout]\npp = 4\ndp = 2\nschedule = 'gpipe'\n[model]\nlayers = 8\n"
    "[batch]\nmicro_batches = 16\nmicro_batch_size = 1\n",
    "interleaved": "[layout]\npp = 2\ndp = 2\nschedule = 'interleaved'\nchunks = 2\n[model]\nlayers = 8\n"
    "[batch]\nmicro_batches = 16\nmicro_batch_size = 1\n",
}
#: Little work for each launch, so that the host sets the pace.
_LIGHT = """
[model]
hidden = 1024
heads = 8
ffn = 4096
vocab = 2048
[batch]
micro_batches = 8
micro_batch_size = 1
seq_len = 1024
"""
#: Faults that strike in the first forward of a step weigh more when it is the only one.
_ONE_FORWARD = """
[model]
layers = 16
[batch]
micro_batches = 1
micro_batch_size = 2
"""
_ALL = ("ddp-2-hosts", "fsdp-2-hosts", "tp", "ep", "cp", "1f1b")
_THREE = ("ddp-2-hosts", "fsdp-2-hosts", "tp")
_PIPELINES = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True)
class Injection:
    """A fault as the matrix injects it.

    one_rank: it strikes a single rank, which is then a straggler. light: the job has little work for each launch.
    """

    fault: Fault
    layouts: tuple[str, ...] = _ALL
    one_rank: bool = False
    light: bool = False


def _fault(kind: str, size: float | None = None, count: int = 1) -> Fault:
    return Fault(kind=kind, size=size, count=count)


def _one(kind: str, size: float, layouts: tuple[str, ...] = _ALL, *, count: int = 1, light: bool = False) -> Injection:
    return Injection(Fault(kind=kind, ranks=[3], size=size, count=count), layouts, one_rank=True, light=light)


#: Name -> the fault. A name is the kind, with "one" where a fault that may strike all ranks strikes one.
INJECTIONS: dict[str, Injection] = {
    "slow_gpu": _one("slow_gpu", 0.3),
    "slow_link": _one("slow_link", 0.85, ("ddp-2-hosts", "fsdp-2-hosts", "tp", "ep")),
    "slow_host": Injection(_fault("slow_host", 6.0), light=True),
    "slow_host_one": _one("slow_host", 6.0, _THREE, light=True),
    "python": Injection(_fault("python", 60.0), light=True),
    "python_one": _one("python", 60.0, _THREE, light=True),
    "slow_loader": Injection(_fault("slow_loader", 80.0), light=True),
    "slow_loader_one": _one("slow_loader", 80.0, (*_THREE, "1f1b"), light=True),
    "item_sync": Injection(_fault("item_sync", 600.0), ("ddp", "ddp-2-hosts", "tp", "cp"), light=True),
    "item_sync_one": _one("item_sync", 600.0, ("ddp", "ddp-2-hosts", "tp"), light=True),
    "gc_pause": Injection(_fault("gc_pause", 80.0)),
    "allocator": Injection(_fault("allocator", 10.0, 4)),
    "allocator_one": _one("allocator", 10.0, _THREE, count=4),
    "checkpoint": Injection(_fault("checkpoint", 80.0)),
    "recompute": Injection(_fault("recompute")),
    "no_prefetch": Injection(_fault("no_prefetch"), ("fsdp-2-hosts", "fsdp", "tp-fsdp")),
    "small_buckets": Injection(_fault("small_buckets", 0.5), ("ddp", "ddp-2-hosts", "tp", "cp")),
    "few_micro_batches": Injection(_fault("few_micro_batches"), _PIPELINES),
    "unbalanced_stages": Injection(_fault("unbalanced_stages", 1.0), _PIPELINES),
    "uneven_sequences": _one("uneven_sequences", 0.5, ("ddp-2-hosts", "fsdp-2-hosts", "ep")),
    "uneven_experts": _one("uneven_experts", 1.0, ("ep", "ep-dp", "ep-2-hosts")),
    "bad_shapes": Injection(_fault("bad_shapes"), ("ddp-2-hosts", "fsdp-2-hosts", "tp", "cp", "1f1b")),
    "fp32": Injection(_fault("fp32")),
    "fp32_head": Injection(_fault("fp32_head"), ("ddp-2-hosts", "fsdp-2-hosts", "tp", "ep", "cp")),
    "unfused_optimizer": Injection(_fault("unfused_optimizer"), ("ddp-2-hosts", "tp", "ep", "cp")),
    "tiny_batch": Injection(_fault("tiny_batch"), ("ddp", "ddp-2-hosts", "tp", "cp"), light=True),
    "missing_events": _one("missing_events", 0.05),
    "cut_head": _one("cut_head", 5.0),
    "wrong_base": _one("wrong_base", 1.0),
}
#: Recordings that are hurt cost no time: there is nothing to rank, only nothing to be misled by.
HURT_RECORDINGS = ("missing_events", "cut_head", "wrong_base")


@dataclass(frozen=True)
class Cell:
    """One job of the matrix: the layout and the names of its injections; none: a clean job."""

    layout: str
    injections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``fault, fault: layout``."""
        return f"{' + '.join(self.injections) or 'clean'}: {self.layout}"

    def scenario(self, *, without: tuple[str, ...] = ()) -> Scenario:
        """The job to simulate, without the faults named."""
        faults = [INJECTIONS[name].fault for name in self.injections if name not in without]
        light = any(INJECTIONS[name].light for name in self.injections)
        one_forward = any(INJECTIONS[name].fault.kind == "item_sync" for name in self.injections)
        return msgspec.structs.replace(
            base(self.layout, light=light, one_forward=one_forward), name=self.name, fault=faults
        )


def base(layout: str, *, light: bool = False, one_forward: bool = False) -> Scenario:
    """The clean job of a layout."""
    tables: dict[str, dict[str, object]] = {}
    for text in (_BASE, LAYOUTS[layout], _LIGHT if light else "", _ONE_FORWARD if one_forward else ""):
        for name, keys in msgspec.toml.decode(text).items():
            tables[name] = tables.get(name, {}) | keys
    return msgspec.convert(tables, Scenario)


def singles() -> list[Cell]:
    """Every fault alone on each of its layouts."""
    return [Cell(layout, (name,)) for name, one in INJECTIONS.items() for layout in one.layouts]


def clean_cells(count: int) -> list[tuple[Cell, int]]:
    """Clean jobs with a seed for each to be added to the run's: all layouts in turn."""
    layouts = list(LAYOUTS)
    return [(Cell(layouts[at % len(layouts)]), at) for at in range(count)]


def drawn_pairs() -> Iterator[Cell]:
    """Random pairs of faults that cost time, each pair of kinds at most once, without end in sight."""
    draw = random.Random(PAIRS_SEED)
    names = [name for name in INJECTIONS if name not in HURT_RECORDINGS]
    seen: set[frozenset[str]] = set()
    while True:
        first, second = draw.sample(names, 2)
        layouts = [layout for layout in INJECTIONS[first].layouts if layout in INJECTIONS[second].layouts]
        kinds = frozenset(INJECTIONS[name].fault.kind for name in (first, second))
        light = len({INJECTIONS[name].light for name in (first, second)}) == 1
        if layouts and light and len(kinds) == 2 and kinds not in seen:
            seen.add(kinds)
            yield Cell(draw.choice(layouts), (first, second))
