from __future__ import annotations

import pandas as pd

from steptime.report.tables import causes_table, kernels_table, leaves_table, steps_table
from tests.report.reports import MS, cpu_only, job, loader_bound, nothing_measured, ranks_64, report


def test_steps_add_up_in_every_row() -> None:
    table = steps_table(ranks_64())
    leaves = [name for name in table.columns if "/" in name]
    assert len(table) == 128
    assert (table["productive_ns"] + table[leaves].sum(axis=1) == table["dur_ns"]).all()
    assert table.loc[table["rank"] == 37, "host/data_loader"].tolist() == [21 * MS, 21 * MS]


def test_edge_steps_are_marked() -> None:
    table = steps_table(loader_bound())
    assert table.loc[table["edge"], "step"].tolist() == [4]
    assert table["class"].unique().tolist() == ["train"]


def test_what_cannot_be_told_is_missing_not_zero() -> None:
    table = leaves_table(cpu_only()).set_index(["slice", "leaf"])
    assert table.loc[("recompute", "recompute"), "ns"] is pd.NA
    assert table.loc[("exposed_comm", "allreduce"), "ns"] == 90 * MS
    # 90 ms over eight rank-steps; 90 of 400 ms.
    assert table.loc[("exposed_comm", "allreduce"), "per_step_ns"] == 11_250_000
    assert table.loc[("exposed_comm", "allreduce"), "share"] == 0.225


def test_nanoseconds_keep_every_digit() -> None:
    # 2**53 + 1 is the first integer that float64 can't hold; the missing value beside it invites a float column.
    table = leaves_table(report(job({"kernels/matmul": 2**53 + 1, "host/gc": None})))
    assert table["ns"].tolist() == [2**53 + 1, pd.NA]


def test_causes_come_costliest_first() -> None:
    table = causes_table(loader_bound())
    assert table["ns"].is_monotonic_decreasing
    assert table.loc[0, "what"] == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert table["where"].isna().sum() == 2


def test_kernels() -> None:
    assert kernels_table(loader_bound())[["count", "dur_ns", "owned_ns"]].to_numpy().tolist() == [
        [318, 96 * MS, 96 * MS]
    ]


def test_empty_tables_have_the_same_columns() -> None:
    for make in (leaves_table, causes_table, kernels_table):
        empty, full = make(nothing_measured()), make(loader_bound())
        assert len(empty) == 0
        assert empty.dtypes.to_dict() == full.dtypes.to_dict()
    assert steps_table(nothing_measured()).columns.tolist()[-1] == "productive_ns"
