"""Metrics of what the links between GPUs gave, and the evidence for them: bandwidth, and groups slower than others."""

from __future__ import annotations

from functools import reduce

from steptime.diagnose.reading import Metric, Part, Reading, Value, unknown
from steptime.diagnose.say import number_text, plural, share_text, time_text
from steptime.model import Collective, Evidence, Report, SlowGroup

#: No InfiniBand, RoCE or NVLink of a training cluster is slower for large messages; TCP sockets are. The rule
#: ``slow-transport`` fires below the same.
PLAIN_NETWORK_BYTES_PER_S = 8e9
#: Lines of evidence of one finding.
_MOST = 3
_WAIT = "stragglers/wait_for_rank"
_NO_BANDWIDTH = "no bandwidth of a collective could be measured"


def _bandwidth_known(reading: Reading) -> bool:
    return any(one.measured for one in reading.report.collectives)


def _plain_network(reading: Reading) -> Value:
    if not _bandwidth_known(reading):
        return unknown(_NO_BANDWIDTH)
    found = [
        one
        for one in reading.report.collectives
        if one.large_bus_bytes_per_s is not None and one.large_bus_bytes_per_s < PLAIN_NETWORK_BYTES_PER_S
    ]
    return reading.share([_part(one, one.exposed_ns) for one in found])


def _slow_group_share(reading: Reading) -> Value:
    if not _bandwidth_known(reading):
        return unknown(_NO_BANDWIDTH)
    found = [one for one in reading.report.collectives if one.slow_groups]
    own = [_part(one, min(sum(group.lost_ns for group in one.slow_groups), one.exposed_ns)) for one in found]
    waits_ns = sum(group.waits_ns for one in found for group in one.slow_groups)
    whole = reading.leaves.get(_WAIT)
    most = whole.ns or 0 if whole is not None else 0
    return reading.share([*own, Part(_WAIT, min(waits_ns, most))])


def _part(one: Collective, ns: int) -> Part:
    return Part(f"exposed_comm/{one.kind}", ns, (f"collective:{one.kind} {one.group}",))


LINK_METRICS: tuple[Metric, ...] = (
    Metric(
        "collectives.plain_network_share",
        "share",
        "Exposed time of the kinds and groups whose large collectives move less than 8 GB/s.",
        _plain_network,
    ),
    Metric(
        "collectives.slow_group_share",
        "share",
        "Exposed transfer that slow groups need beyond the median of their like, and waits of others for it.",
        _slow_group_share,
    ),
)


def bandwidth_text(one: Collective) -> str:
    """Attained bandwidth of a row; empty where it is unknown."""
    if one.bus_bytes_per_s is None:
        return ""
    text = f"bus bandwidth {number_text(one.bus_bytes_per_s, 'bytes/s')} from the last arrival on"
    if one.link_share is not None:
        text += f", {share_text(one.link_share)} of all links of a GPU"
    return text


def link_evidence(report: Report, which: str) -> list[Evidence]:
    """What `Shown.links` asks for."""
    if which == "slowest":
        return _slowest(report)
    return _slow_groups(report) if which == "slow groups" else []


def _slowest(report: Report) -> list[Evidence]:
    known = [(one.large_bus_bytes_per_s, one) for one in report.collectives if one.large_bus_bytes_per_s is not None]
    known.sort(key=lambda pair: pair[0])
    texts = []
    for bus, one in known[:_MOST]:
        members = f" of {plural(one.members, 'rank')}" if one.members is not None else ""
        texts.append(f"{_name(one)}{members}: large ones reach a bus bandwidth of {number_text(bus, 'bytes/s')}")
    return [Evidence(text=text) for text in texts]


def _slow_groups(report: Report) -> list[Evidence]:
    found = [(group, one) for one in report.collectives for group in one.slow_groups]
    found.sort(key=lambda pair: -pair[0].ratio)
    texts = [
        f"{_name(one)}: {_ranks(group.ranks)}{_on(group.hosts)} took {number_text(group.ratio, 'ratio')} times as long "
        f"for equal bytes as {_others(group.compared)} of the same size{_waits(group, report)}"
        for group, one in found[:_MOST]
    ]
    if len(found) > 1:
        shared = reduce(frozenset.intersection, (frozenset(group.ranks) for group, _ in found))
        hosts = reduce(frozenset.intersection, (frozenset(group.hosts) for group, _ in found))
        if shared:
            home = _on(sorted({rank.host for rank in report.ranks if rank.rank in shared and rank.host}))
            verb = "is" if len(shared) == 1 else "are"
            texts.append(f"{_ranks(sorted(shared))}{home} {verb} in each of the {len(found)} slow groups")
        elif len(hosts) == 1:
            texts.append(f"each of the {len(found)} slow groups has members on host {min(hosts)}")
    return [Evidence(text=text) for text in texts]


def _waits(group: SlowGroup, report: Report) -> str:
    if not group.waits_ns or not report.job.rank_steps:
        return ""
    each = time_text(group.waits_ns / report.job.rank_steps)
    return f"; other ranks wait for its members because of it, at most {each} a rank and step on average"


def _name(one: Collective) -> str:
    return f"{one.kind} ({one.group})" if one.group else one.kind


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _on(hosts: list[str]) -> str:
    if not hosts:
        return ""
    return f" on {'host' if len(hosts) == 1 else 'hosts'} {', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}"


def _others(compared: int) -> str:
    return "the other group" if compared == 1 else f"the median of {compared} others"
