"""Bandwidth in the views: beside its link where that is known, with the reason where it is not."""

from __future__ import annotations

from steptime.model import Collective
from steptime.report import html, markdown, words
from steptime.report.page_tables import collectives_table
from tests.report.reports import MS, job, report

KNOWN = Collective(
    kind="allgather",
    group="tp",
    count=8,
    dur_ns=40 * MS,
    exposed_ns=10 * MS,
    measured=2,
    members=4,
    bytes=800_000_000,
    transfer_ns=2 * MS,
    algorithm_bytes_per_s=400e9,
    bus_bytes_per_s=300e9,
    link_share=2 / 3,
)
ACROSS = Collective(kind="allreduce", group="dp", count=8, dur_ns=40 * MS, exposed_ns=9 * MS, bus_bytes_per_s=21.5e9)
UNKNOWN = Collective(
    kind="broadcast", group=None, count=1, dur_ns=MS, exposed_ns=MS, why="files of members are missing"
)

_JOB = job({"kernels/matmul": 60 * MS, "exposed_comm/allgather": 40 * MS})


def test_bandwidth_stands_beside_its_link() -> None:
    assert words.bandwidth(KNOWN) == "300 GB/s, 66.7 % of its links"
    assert words.bandwidth(ACROSS) == "21.5 GB/s"
    assert words.bandwidth(UNKNOWN) == "not known"


def test_the_table_has_a_column_only_where_one_is_known() -> None:
    table = collectives_table(report(_JOB, collectives=[KNOWN, UNKNOWN]), 10)
    assert table is not None
    assert table.head[3] == "bus bandwidth"
    assert [row[3] for row in table.rows] == ["300 GB/s, 66.7 % of its links", "not known"]
    without = collectives_table(report(_JOB, collectives=[UNKNOWN]), 10)
    assert without is not None
    assert "bus bandwidth" not in without.head


def test_what_is_missing_is_said_in_each_view() -> None:
    given = report(_JOB, collectives=[KNOWN, ACROSS, UNKNOWN])
    for text in (html.render(given), markdown.render(given)):
        assert "66.7 % of its links" in text
        assert "Not known for broadcast: files of members are missing." in text
    assert "last arrival" not in markdown.render(report(_JOB, collectives=[UNKNOWN]))
