"""What each device activity is: class, leaf, a name for the report, and whether it is recompute."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.taxonomy import LEAF_CODE
from steptime.timeline.labels import Labels
from steptime.timeline.links import Activities, Threads, autograd_nodes
from steptime.trace.collectives import collective_leaf
from steptime.trace.events import I32, I64, Category, EventTable
from steptime.trace.kernels import CONTEXT, FAMILIES, FAMILY_CODE, FAMILY_TABLE, classify, classify_ops

I16 = NDArray[np.int16]

#: Priority classes of ownership (DESIGN 1.2): the lower number owns an instant.
COMPUTE, COMMUNICATION, COPY = 0, 1, 2

_KERNEL_LEAF = np.array(
    [LEAF_CODE[f"kernels/{f.leaf}"] if f.leaf != "comm" else LEAF_CODE["exposed_comm/other_comm"] for f in FAMILIES],
    np.int16,
)
_IS_COMM = np.array([family.leaf == "comm" for family in FAMILIES])
_WRAPPERS = ("_FromTorchTensor", "_ToTorchTensor", "Redistribute")
_RECOMPUTE = LEAF_CODE["recompute/recompute"]
_MEMORY_BOUND = LEAF_CODE["kernels/memory_bound"]


class Work(msgspec.Struct, frozen=True):
    """Labels of m activities.

    klass int8 (COMPUTE, COMMUNICATION, COPY), leaf int16 (code), what int32 (into `Labels`), op int64 (row of the
    innermost op at the launch, -1 if none), meta int64 (index into `EventTable.collectives`, -1 without metadata).
    """

    klass: NDArray[np.int8]
    leaf: I16
    what: I32
    op: I64
    meta: I64


class Ops:
    """Everything about host ops that labelling needs, computed once a file: families, and spans of recomputation."""

    def __init__(self, table: EventTable, threads: Threads) -> None:
        self.table = table
        self.threads = threads
        codes = _per_used_name(table, table.rows(Category.CPU_OP, Category.ANNOTATION), classify_ops)
        self.family = np.where(table.category <= Category.ANNOTATION, codes[table.name], np.int16(-1))
        self.recompute_rows = recomputed_ops(table, threads)

    def families_at(self, op: I64) -> I16:
        """Family code that the launch context gives, -1 if silent: an open optimizer or attention, else the nearest."""
        context = self.threads.nearest(np.isin(self.family, [FAMILY_CODE[name] for name in CONTEXT]), op)
        nearest = self.threads.nearest(self.family >= 0, op)
        row = np.where(context >= 0, context, nearest)
        return np.where(row >= 0, self.family[row], np.int16(-1))


def label(table: EventTable, work: Activities, ops: Ops, labels: Labels) -> Work:
    """Label the activities of one device."""
    names = table.name[work.row]
    known = work.launch >= 0
    launch_at = np.where(known, table.start_ns[work.launch], 0)
    op = np.where(known, ops.threads.innermost(work.thread, launch_at), -1)
    category = table.category[work.row]
    by_name = _per_used_name(table, table.device.row, classify)
    family = FAMILY_TABLE[by_name[names], ops.families_at(op)]
    klass = np.where(_IS_COMM[family], COMMUNICATION, COMPUTE).astype(np.int8)
    leaf = _KERNEL_LEAF[family]
    what = labels.names(table.names, names)
    _label_copies(table, work, category, klass, leaf)
    comm = np.flatnonzero((klass == COMMUNICATION) & (category == Category.KERNEL))
    meta = np.full(len(work.row), -1, np.int64)
    if len(comm):
        codes, texts, meta[comm] = _collectives(
            table, work.row[comm], table.device.collective[work.column[comm]], op[comm], ops
        )
        leaf[comm] = codes
        what[comm] = [labels.text(text) for text in texts]
    if len(ops.recompute_rows):
        again = known & ops.threads.inside(ops.recompute_rows, work.thread, launch_at) & (klass == COMPUTE)
        leaf[again] = _RECOMPUTE
    return Work(klass, leaf, what, op, meta)


def _per_used_name(table: EventTable, rows: I64, classify_names: object) -> I16:
    """Codes for the names that `rows` use, scattered into an array over all names (-1 elsewhere)."""
    used = np.unique(table.name[rows])
    codes = np.full(max(len(table.names), 1), -1, np.int16)
    codes[used] = classify_names([table.names[name] for name in used.tolist()])  # type: ignore[operator]
    return codes


def _label_copies(
    table: EventTable, work: Activities, category: NDArray[np.int8], klass: NDArray[np.int8], leaf: I16
) -> None:
    """Copies by direction: with the host a host leaf, between GPUs communication, on the device memory-bound."""
    is_copy = category == Category.MEMCPY
    klass[is_copy] = COPY
    for name in np.unique(table.name[work.row[is_copy]]).tolist():
        text = table.names[name].replace(" ", "").lower()
        mine = is_copy & (table.name[work.row] == name)
        if "htod" in text or "hosttodevice" in text:
            leaf[mine] = LEAF_CODE["host/h2d_copy"]
        elif "dtoh" in text or "devicetohost" in text:
            leaf[mine] = LEAF_CODE["host/d2h_copy"]
        elif "ptop" in text or "peer" in text:
            leaf[mine] = LEAF_CODE["exposed_comm/p2p_transfer"]
            klass[mine] = COMMUNICATION
        else:
            leaf[mine] = _MEMORY_BOUND
    is_set = category == Category.MEMSET
    klass[is_set] = COPY
    leaf[is_set] = _MEMORY_BOUND


def _collectives(table: EventTable, row: I64, own: I32, op: I64, ops: Ops) -> tuple[I16, list[str], I64]:
    """Kind and group of communication kernels: their own metadata, then the host op's, then names (DESIGN 2.1).

    Args:
        table: the file's events.
        row, own, op: for each kernel its row, the index of its own metadata and the row of the op that launched it.
        ops: the file's ops.

    Returns:
        Leaf codes, labels and metadata indices, one a kernel.
    """
    meta_of_row = np.full(len(table.start_ns), -1, np.int64)
    meta_of_row[table.ops.row] = table.ops.collective
    host = ops.threads.nearest(meta_of_row >= 0, op)
    meta = np.where(own >= 0, own, np.where(host >= 0, meta_of_row[host], -1))
    named = np.array([collective_leaf(name) not in (None, "other_comm") for name in table.names], np.bool_)
    span = ops.threads.nearest(named[table.name] & (table.category <= Category.ANNOTATION), op)
    host_name = np.where(span >= 0, table.name[span], -1)
    kinds = {(args.name, args.description, args.group): at for at, args in enumerate(table.collectives)}
    alike = np.array([*(kinds[(a.name, a.description, a.group)] for a in table.collectives), -1], np.int64)
    key = np.stack([alike[meta], host_name, table.name[row].astype(np.int64)])
    distinct, which = np.unique(key, axis=1, return_inverse=True)
    found = [_kind(table, *column) for column in distinct.T.tolist()]
    codes = np.array([code for code, _ in found], np.int16)[which.ravel()]
    return codes, [found[at][1] for at in which.ravel().tolist()], meta


def _kind(table: EventTable, meta: int, host_name: int, name: int) -> tuple[int, str]:
    """Leaf code and label of one combination of metadata, host span and kernel name (-1: none)."""
    args = table.collectives[meta] if meta >= 0 else None
    sources = ([args.name] if args else []) + ([table.names[host_name]] if host_name >= 0 else []) + [table.names[name]]
    found = [kind for kind in map(collective_leaf, sources) if kind is not None]
    definite = [kind for kind in found if kind != "other_comm"]
    leaf = (definite or found or ["other_comm"])[0]
    group = (args.description if args.description not in ("", "undefined") else args.group) if args else ""
    return LEAF_CODE[f"exposed_comm/{leaf}"], f"{leaf} ({group})" if group else leaf


def recomputed_ops(table: EventTable, threads: Threads) -> I64:
    """Rows of forward ops that run again inside the backward pass (kineto_schema section 5; needs no stacks).

    A cpu_op with a sequence number and forward thread 0 while nested in an autograd node's evaluation, provided that
    the same op on the same shapes ran in a forward pass of this recording: with create_graph=True ordinary backward
    ops carry sequence numbers too. DTensor wraps tensors by autograd functions in either direction.
    """
    ops = table.ops
    nodes = autograd_nodes(table)
    if not len(nodes):
        return np.empty(0, np.int64)
    candidate = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread == 0))
    wraps = np.array([name in _WRAPPERS for name in table.names], np.bool_)
    candidate = candidate[~wraps[table.name[ops.row[candidate]]] & ~np.isin(ops.row[candidate], nodes)]
    rows = ops.row[candidate]
    nested = threads.inside(nodes, table.track[rows], table.start_ns[rows])
    kind = table.name[rows].astype(np.int64) * (len(table.texts) + 1) + ops.shapes[candidate]
    ran_forward = np.isin(kind, kind[~nested])
    return rows[nested & ran_forward]
