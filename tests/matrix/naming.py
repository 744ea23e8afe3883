"""Which findings name which fault, from what the fault is: not from what the tool happens to print."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.model import Finding, Report, Straggler


@dataclass(frozen=True)
class Names:
    """findings: ids of rules that are about the fault; causes: what a late rank's verdict may call it."""

    findings: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()


def _names(findings: str, causes: str = "") -> Names:
    return Names(frozenset(findings.split()), frozenset(one for one in causes.split(",") if one))


_EXPOSED = (
    "allreduce-exposed allgather-exposed allgather-remainder reduce-scatter-exposed all-to-all-exposed p2p-exposed"
)

#: Kind of fault -> what names it. Rules that only say that somebody is late name the fault with the verdict's cause.
NAMES: dict[str, Names] = {
    "slow_gpu": _names("slow-rank", "slower kernels"),
    # A ring is as slow as its slowest link for all its members.
    "slow_link": _names(f"slow-group slow-transport {_EXPOSED}", "slow link"),
    "slow_host": _names("launch-bound launch-bound-tiny-kernels optimizer-launches", "launch_bound"),
    "python": _names("python-between-ops", "python"),
    "slow_loader": _names("loader-too-slow loader-in-process", "data_loader"),
    "item_sync": _names("sync sync-for-a-value sync-blocking-copy", "sync"),
    # It leaves no event: Python time whose advice names the collector among others (DESIGN 1.4, rule 4).
    "gc_pause": _names("gc-pauses python-between-ops", "gc,python"),
    "allocator": _names("allocator-in-step allocator-fragmented", "allocator"),
    "checkpoint": _names("checkpoint-pause", "checkpoint"),
    "recompute": _names("recompute-on"),
    "no_prefetch": _names("allgather-exposed"),
    "small_buckets": _names("collectives-small allreduce-exposed"),
    "few_micro_batches": _names("pipeline-bubble"),
    "unbalanced_stages": _names("stage-imbalance"),
    "uneven_sequences": _names("", "more work"),
    "uneven_experts": _names("", "more work"),
    "bad_shapes": _names("matmul-misaligned"),
    "fp32": _names("precision-lost fp32-without-tensor-cores"),
    "fp32_head": _names("precision-lost fp32-without-tensor-cores"),
    "unfused_optimizer": _names("optimizer-per-tensor optimizer-launches"),
    "tiny_batch": _names("launch-bound launch-bound-tiny-kernels small-batch"),
}
#: Rules about a late rank; what is late about it is in the verdicts.
LATE = frozenset({"wait-for-rank"})


def named_by(finding: Finding, report: Report, struck: dict[str, list[int]]) -> set[str]:
    """The kinds of faults that a finding names. struck: kind -> ranks that it struck, empty where all."""
    found = set()
    for kind, ranks in struck.items():
        names = NAMES[kind]
        late = finding.id in LATE and any(blames(one, names, ranks) for one in report.stragglers)
        if finding.id in names.findings or late:
            found.add(kind)
    return found


def blames(verdict: Straggler, names: Names, ranks: list[int]) -> bool:
    """Whether a verdict holds one of the ranks (empty: any) responsible, for this cause."""
    return bool({verdict.cause, *verdict.also} & names.causes) and (not ranks or bool(set(verdict.ranks) & set(ranks)))


def place_of(report: Report, struck: dict[str, list[int]]) -> dict[str, int | None]:
    """Kind -> its place among the causes that the findings name, from 1; None: no finding names it.

    Findings about the same fault are one cause; a finding about none of them is a cause of its own.
    """
    places: dict[str, int | None] = dict.fromkeys(struck)
    count = 0
    for finding in report.findings:
        new = named_by(finding, report, struck)
        fresh = [kind for kind in new if places[kind] is None]
        if new and not fresh:
            continue
        count += 1
        places.update(dict.fromkeys(fresh, count))
    return places
