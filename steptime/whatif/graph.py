"""The graph that is replayed: instants in chains, each as early as everything that it waits for allows.

The instant of node i is ``t[i] = max(t[i-1] + lag_ns[i], t[source] + edge_lag_ns ...) + work_ns[i]``, over the node
before it in its chain and all edges that end in it; a chain's first node has the chain's origin instead of a
predecessor. Chains are host threads, streams and meetings; times are int64 ns on one clock, small numbers (a job's own
zero, not the epoch).
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.trace.events import I64

#: Lag that does not bind, or origin of a chain whose first node waits for edges only: no instant is so early. Sums of a
#: few of them stay inside int64.
NEVER = -(1 << 60)


class Graph(msgspec.Struct, frozen=True):
    """n nodes in c chains, and e edges between chains.

    first int64 [c+1]: chain k holds nodes first[k] to first[k+1], in order. origin_ns int64 [c]: earliest instant of
    each chain's first node before its work. lag_ns, work_ns int64 [n]; the lag of a chain's first node is not used.
    source, target, edge_lag_ns int64 [e]. follows bool [e]: launches, of which every chain has them in the order of one
    source chain; a target with a later source never comes before one with an earlier source. All other edges are joins.
    Nothing is wrong if launches are not in that order, but the replay then takes more levels.
    """

    first: I64
    origin_ns: I64
    lag_ns: I64
    work_ns: I64
    source: I64
    target: I64
    edge_lag_ns: I64
    follows: NDArray[np.bool_]


class Weights(msgspec.Struct, frozen=True):
    """Times of a graph in s scenarios: lag_ns, work_ns int64 [n, s], edge_lag_ns int64 [e, s].

    A column that is the same in all scenarios may be given once, as [n, 1].
    """

    lag_ns: I64
    work_ns: I64
    edge_lag_ns: I64
