"""The account of a run against one that is painted second by second, in plain Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steptime.goodput import account
from steptime.goodput.causes import UNKNOWN, Cause, cause_by_id
from steptime.goodput.incidents import Incident
from steptime.goodput.tables import profile_of

LENGTH = 60
MAINTENANCE = cause_by_id("maintenance")
Spans = list[tuple[int, int]]


@st.composite
def _runs(draw: st.DrawFn) -> tuple[list[Incident], Spans, dict[int, tuple[int, int]]]:
    incidents = []
    for begin in sorted(draw(st.lists(st.integers(-5, LENGTH + 5), max_size=6))):
        length = draw(st.one_of(st.none(), st.integers(0, 20)))
        over = None if length is None else begin + length
        latest = over if over is not None else begin + 15
        detected = draw(st.one_of(st.none(), st.integers(begin, latest)))
        cause: Cause = draw(st.sampled_from([UNKNOWN, MAINTENANCE]))
        incidents.append(Incident(begin, cause, "", "", detected_ns=detected, resumed_ns=over))
    edges = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda pair: (min(pair), max(pair)))
    pauses = draw(st.lists(edges, max_size=4))
    lost = {at: draw(edges) for at in range(len(incidents)) if draw(st.booleans())}
    return incidents, pauses, lost


def _painted(incidents: list[Incident], pauses: Spans, lost: dict[int, tuple[int, int]]) -> list[str]:
    """What each second is: the rules of the module's docstring, one second at a time."""
    ends: list[tuple[int, bool]] = []
    for at, one in enumerate(incidents):
        # Where an earlier one is known to last beyond the begin of this one, training went on after both.
        latest = max(ends, default=(-99, True))
        if one.resumed_ns is not None:
            ends.append((one.resumed_ns, True))
        elif max(one.time_ns, 0) < min(latest[0], LENGTH):
            ends.append(latest)
        elif at + 1 == len(incidents):
            ends.append((LENGTH, True))
        else:
            ends.append((incidents[at + 1].time_ns, False))
    return [_second(second, incidents, ends, pauses, lost) for second in range(LENGTH)]


def _second(
    second: int,
    incidents: list[Incident],
    ends: list[tuple[int, bool]],
    pauses: Spans,
    lost: dict[int, tuple[int, int]],
) -> str:
    for one, (over, known) in zip(incidents, ends, strict=True):
        if one.time_ns <= second < over:
            if one.cause.planned:
                return "planned" if known else "unknown"
            if one.detected_ns is None:
                return "unsplit" if known else "unknown"
            if second < one.detected_ns:
                return "detection"
            return "restart" if known else "unknown"
    if any(begin <= second < end for begin, end in pauses):
        return "checkpoint"
    if any(begin <= second < end for begin, end in lost.values()):
        return "lost_work"
    return "productive"


@given(_runs())
def test_the_parts_are_those_of_every_second(run: tuple[list[Incident], Spans, dict[int, tuple[int, int]]]) -> None:
    incidents, pauses, lost = run
    line = account.timeline(0, LENGTH, incidents, pauses, lost)
    seconds = _painted(incidents, pauses, lost)
    shown = [account.PARTS[code] for code, length in zip(line.code, line.dur_ns, strict=True) for _ in range(length)]
    assert shown == seconds
    assert int(line.dur_ns.sum()) == LENGTH
    assert (line.dur_ns > 0).all()
    down = {"detection", "restart", "unsplit", "planned", "unknown"}
    assert sum(one in down for one in seconds) == sum(outage.end_ns - outage.begin_ns for outage in line.outages)


@given(_runs())
def test_what_each_interruption_cost_adds_up(run: tuple[list[Incident], Spans, dict[int, tuple[int, int]]]) -> None:
    incidents, pauses, lost = run
    line = account.timeline(0, LENGTH, incidents, pauses, lost)
    for code in (*account.DOWN, account.UNKNOWN, account.LOST):
        assert int(line.by_owner(code, len(incidents)).sum()) == line.total(code)
    assert sorted(at for outage in line.outages for at in outage.members) == list(range(len(incidents)))


@given(_runs())
def test_the_profile_is_the_parts_stretch_by_stretch(
    run: tuple[list[Incident], Spans, dict[int, tuple[int, int]]],
) -> None:
    incidents, pauses, lost = run
    profile = profile_of(account.timeline(0, LENGTH, incidents, pauses, lost))
    assert profile is not None
    seconds = _painted(incidents, pauses, lost)
    # 60 seconds in at most 200 stretches are one second each.
    assert profile.stretch_ns == 1
    assert profile.ns == [[int(one == part) for one in seconds] for part in profile.parts]


def test_a_profile_of_many_stretches_is_exact_too() -> None:
    """1,003 ns in stretches of 6: down from 500 to 509 is 4 ns of stretch 83 (498 to 504) and 5 of stretch 84."""
    line = account.timeline(0, 1_003, [Incident(500, UNKNOWN, "", "", resumed_ns=509)], [], {})
    profile = profile_of(line)
    assert profile is not None
    down = profile.ns[profile.parts.index("unsplit")]
    assert (profile.stretch_ns, len(down)) == (6, 168)
    assert {at: ns for at, ns in enumerate(down) if ns} == {83: 4, 84: 5}
    assert profile.ns[0][-1] == 1
