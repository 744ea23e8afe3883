"""What stopped a run: the causes of the Llama 3 table, and those that schedulers add, told from a log's own words."""

from __future__ import annotations

import re
from typing import NamedTuple


class Cause(NamedTuple):
    """A cause of interruptions. group: what it belongs to; planned: whether somebody meant it to happen."""

    id: str
    title: str
    group: str
    planned: bool
    pattern: str


# Rows with a component as in "The Llama 3 Herd of Models" (arXiv 2407.21783), table 5; which stops count as planned
# (maintenance, and what operators do) is from its section 3.3.4. Xid numbers: NVIDIA, "XID Errors", r555 and later.
#: Order matters: the first pattern found in the log's words decides.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "host_maintenance",
        "unplanned host maintenance",
        "host",
        False,
        r"unplanned.*maint|emergency maint|host_maintenance|^host maintenance$",
    ),
    Cause("time_limit", "time limit of the job", "planned", True, r"time.?limit|\bwalltime|^timeout$|^deadline$"),
    Cause(
        "operator",
        "operator",
        "planned",
        True,
        r"\boperator|\bcancell?ed|manual (stop|restart)|config(uration)? (change|update)|dataset update",
    ),
    Cause(
        "maintenance", "planned maintenance", "planned", True, r"mainten|firmware|upgrade|\bplanned|drain(ed|ing)?\b"
    ),
    Cause("preemption", "preemption", "scheduler", False, r"preempt|evicted by|spot (reclaim|interruption)"),
    Cause("silent_data_corruption", "silent data corruption", "GPU", False, r"silent data|\bsdc\b"),
    Cause(
        "gpu_system_processor", "GPU system processor", "GPU", False, r"\bgsp\b|system processor|\bxid:?\s*1(19|20)\b"
    ),
    Cause("gpu_sram", "GPU SRAM memory", "GPU", False, r"\bsram\b"),
    Cause(
        "gpu_hbm",
        "GPU HBM memory",
        "GPU",
        False,
        r"\bhbm|\becc\b|double.?bit|row.?remap|\bxid:?\s*(48|63|64|92|94|95)\b|gpu memory (error|fail)",
    ),
    Cause("gpu_thermal", "GPU thermal interface and sensor", "GPU", False, r"thermal|overheat"),
    Cause(
        "nccl_timeout", "NCCL watchdog timeout", "unknown", False, r"nccl.*(time|watchdog)|watchdog|collective.*timeout"
    ),
    Cause("nic", "network card", "network", False, r"\bnic\b|network (card|interface)|\bhca\b|mlx5"),
    Cause(
        "network",
        "network switch or cable",
        "network",
        False,
        r"switch|cable|network|infiniband|\bib\b|nvlink|link (down|flap)|\bxid:?\s*74\b",
    ),
    Cause("faulty_gpu", "faulty GPU", "GPU", False, r"\bgpu|\bxid\b|fallen off the bus|cuda (hardware|device)"),
    Cause("out_of_memory", "out of memory", "software", False, r"\boom|out.of.memory"),
    Cause("storage", "storage", "host", False, r"\bssd\b|disk|filesystem|file system|storage|nfs|lustre"),
    Cause("loss_spike", "loss spike or divergence", "training", False, r"loss|spike|diverg|\bnan\b|gradient"),
    Cause(
        "software_bug",
        "software bug",
        "software",
        False,
        r"software|\bbug\b|exception|segfault|crash|backoff|back-off|dependency|deadlock|traceback",
    ),
    Cause(
        "node",
        "node",
        "host",
        False,
        r"node|host|server|chassis|power|\bcpu\b|system memory|\bdimm\b|boot|kernel panic|io expansion",
    ),
)
UNKNOWN = Cause("unknown", "not told", "unknown", False, r"^$")
OTHER = Cause("other", "other", "unknown", False, r"")
#: Words for "I don't know" that people put into a cause column.
_NOTHING = re.compile(
    r"(unknown|n/?a|none|\?+|-+|nan|null|failed|failure|fail|error|interruption|not told|)", re.IGNORECASE
)
_COMPILED = tuple((cause, re.compile(cause.pattern, re.IGNORECASE)) for cause in CAUSES)
_BY_ID = {cause.id: cause for cause in (*CAUSES, UNKNOWN, OTHER)}


def cause_of(text: str) -> Cause:
    """The cause that a log's words name: a row's id or title, else the first pattern that is found in them.

    Words that name none are `OTHER`, no words at all are `UNKNOWN`.
    """
    plain = text.strip()
    if _NOTHING.fullmatch(plain):
        return UNKNOWN
    lowered = plain.lower()
    for cause in CAUSES:
        if lowered in (cause.id, cause.title.lower()):
            return cause
    spaced = lowered.replace("_", " ")
    return next((cause for cause, pattern in _COMPILED if pattern.search(spaced)), OTHER)


def cause_by_id(name: str) -> Cause:
    """The row of that id.

    Raises:
        KeyError: there is none.
    """
    return _BY_ID[name]
