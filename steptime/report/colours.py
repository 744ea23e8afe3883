"""One colour for each part of the step, the same in every chart, and shades of it for its leaves."""

from __future__ import annotations

from steptime.report.ledger import PRODUCTIVE

#: Each has a contrast of 2.9 or more against a white and a black page, so that one palette serves both, and any two
#: stay apart (9 or more in OKLab, times 100) in full colour vision, protanopia and deuteranopia (Machado et al., 2009).
PARTS = {
    PRODUCTIVE: "#50a65f",
    "kernels": "#7394d4",
    "exposed_comm": "#ff6200",
    "pipeline_bubble": "#a61ef8",
    "recompute": "#0072aa",
    "stragglers": "#b65109",
    "host": "#955061",
    "unexplained": "#7d8590",
}
#: What has no place among the parts, such as a leaf of a report that another version wrote.
OTHER = "#7d8590"
#: The critical path in the picture of a step: no part has this colour.
PATH = "#d62839"

#: Shades of the part's colour; leaves that often lie side by side differ in lightness.
_LEAVES = {
    "kernels/matmul": "#7394d4",
    "kernels/attention": "#3f5fa8",
    "kernels/memory_bound": "#b3c9f2",
    "kernels/optimizer": "#4fb3c8",
    "kernels/precision": "#2f4a94",
    "kernels/comm_contention": "#8f83d9",
    "kernels/other_compute": "#93a2bb",
    "exposed_comm/allreduce": "#ff6200",
    "exposed_comm/allgather": "#ffa15c",
    "exposed_comm/reduce_scatter": "#c44900",
    "exposed_comm/all_to_all": "#ffc48a",
    "exposed_comm/broadcast": "#e0863d",
    "exposed_comm/reduce": "#a84300",
    "exposed_comm/barrier": "#ff8433",
    "exposed_comm/p2p_transfer": "#d9a066",
    "exposed_comm/other_comm": "#b3703a",
    "pipeline_bubble/warmup": "#a61ef8",
    "pipeline_bubble/steady": "#d08bff",
    "pipeline_bubble/drain": "#7a17bb",
    "pipeline_bubble/stage_imbalance": "#c45cf5",
    "pipeline_bubble/unsplit": "#8c5bb0",
    "recompute/recompute": "#0072aa",
    "stragglers/wait_for_rank": "#b65109",
    "host/data_loader": "#955061",
    "host/launch_bound": "#d98aa0",
    "host/kernel_gap": "#74354c",
    "host/sync": "#c2577f",
    "host/allocator": "#b8868f",
    "host/gc": "#7a4a63",
    "host/compile": "#dfaca3",
    "host/checkpoint": "#a83a4d",
    "host/h2d_copy": "#c98b6b",
    "host/d2h_copy": "#8a5a44",
    "host/python": "#efb2c5",
    "host/profiler_overhead": "#b29aa0",
    "unexplained/unexplained": "#7d8590",
    "unexplained/queue_stalled": "#a9b1bc",
    "unexplained/capture_skew": "#616973",
    "unexplained/events_missing": "#c0c6ce",
}


def part_colour(part: str) -> str:
    """The colour of a slice, or of useful work."""
    return PARTS.get(part, OTHER)


def leaf_colour(key: str) -> str:
    """The colour of a leaf, given as ``slice/leaf``; one that has no shade of its own takes its slice's colour."""
    return _LEAVES.get(key) or part_colour(key.partition("/")[0])
