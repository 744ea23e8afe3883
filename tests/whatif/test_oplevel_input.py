"""What an op-level recording must not be: each is one line that says the file, what is wrong, and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from steptime.cli import main
from steptime.errors import TraceError
from steptime.whatif.oplevel.analysis import analyze_oplevel
from tests.whatif.oplevel_jobs import tiny, write


def _without(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.drop(columns=column)


def _set(column: str, value: float | str | None, rows: int = 3) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table[column] = table[column].astype(object)
        table.loc[table.index[:rows], column] = value
        return table.infer_objects().astype({column: "float32"} if isinstance(value, float) else {})

    return change


_WRONG: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "no column": (_without("seq_id"), "no column seq_id: this is not an op-level recording"),
    "no columns": (
        lambda _: pd.DataFrame({"a": [1]}),
        "no column dp_rank, stage, step, seq_id, optype, start_ts",
    ),
    "no rows": (lambda table: table.iloc[:0], "holds no ops"),
    "NaN": (_set("duration", float("nan")), "column duration is empty or NaN in 3 of 120 rows"),
    "null": (_set("seq_id", None), "column seq_id is empty or NaN in 3 of 120 rows"),
    "null name": (_set("optype", None), "column optype is empty or NaN in 3 of 120 rows"),
    "infinite": (_set("start_ts", float("inf")), "column start_ts reaches inf, but holds seconds"),
    "milliseconds": (_set("start_ts", 3e6), "column start_ts reaches 3e+06, but holds seconds"),
    "negative": (_set("duration", -1.0), "3 ops have a negative duration"),
    "early": (_set("start_ts", -5.0), "an op starts 5 s before the zero of its step"),
    "text": (lambda t: t.assign(duration="1 s"), "column duration holds "),
    "halves": (lambda t: t.assign(seq_id=0.5), "column seq_id holds float64, not whole numbers"),
    "negative seq": (_set("seq_id", -1), "seq_id is negative"),
    "huge seq": (_set("seq_id", 1 << 40), "seq_id"),
    "another op": (
        _set("optype", "separate-grads-all-reduce"),
        "'separate-grads-all-reduce', and what they wait for",
    ),
    "another job": (lambda t: t.assign(dp_rank=t["dp_rank"] + 1), "dp_rank goes from 1 to 2, but meta-T.yaml says 2"),
    "a worker less": (
        lambda t: t[(t["dp_rank"] == 0) | (t["stage"] == 0)],
        "forward-compute 0 of dp rank 1, stage 1 is missing in step 7 (30 ops are missing in all)",
    ),
    "an op less": (
        lambda t: t[~((t["optype"] == "backward-send") & (t["seq_id"] == 1) & (t["dp_rank"] == 0) & (t["step"] == 9))],
        "backward-send 1 of dp rank 0, stage 1 is missing in step 9 (it is the only one)",
    ),
    "an op twice": (
        lambda t: pd.concat([t, t[(t["optype"] == "optimizer") & (t["stage"] == 1) & (t["step"] == 9)].iloc[:1]]),
        "optimizer 0 of dp rank 0, stage 1 is there twice in step 9 (it is the only one)",
    ),
    "half": (lambda t: t.iloc[: len(t) // 2 + 10], "leave out steps that were not recorded whole"),
    "no computes": (lambda t: t[t["optype"] == "gc"], "holds no forward-compute"),
}


@pytest.mark.parametrize("what", list(_WRONG))
def test_a_wrong_table_is_one_line(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, said = _WRONG[what]
    path = write(tmp_path, change(tiny()), (2, 2))
    assert main(["what-if", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"steptime: {path}: ")
    assert said in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dp_size: 2\n", "", "says no dp_size: add a line `dp_size: N`"),
        ("dp_size: 2\n", "dp_size: two\n", "dp_size is 'two', not a whole number from 1 on"),
        ("dp_size: 2\n", "dp_size: 0\n", "dp_size is '0', not a whole number from 1 on"),
        ("dp_size: 2\n", "dp_size 2\n", "line 3 is not of the form `name: value`"),
        ("world_size: 8", "world_size: 9", "world_size is 9, but dp_size x pp_size x tp_size x dsp_size is 8"),
        ("vpp_size: 1", "vpp_size: 2", "vpp_size is 2: only jobs with one model chunk a stage can be replayed"),
        ("run_id: 0", "run_id: \udcff", "can't be read"),
    ],
)
def test_wrong_sizes_are_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, tiny(), (2, 2))
    meta = tmp_path / "meta-T.yaml"
    text = meta.read_text()
    assert old in text
    meta.write_bytes(text.replace(old, new).encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError) as error:
        analyze_oplevel(path)
    assert str(error.value).startswith(f"{meta}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_comments_and_quotes_in_the_sizes_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, tiny(), (2, 2))
    meta = tmp_path / "meta-T.yaml"
    meta.write_text("# a job\n\n" + meta.read_text().replace("trial_name: T", 'trial_name: "T 1"  # mine'))
    assert analyze_oplevel(path).name == "T 1"


def test_missing_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, tiny(), (2, 2))
    (tmp_path / "meta-T.yaml").unlink()
    with pytest.raises(TraceError, match=r"meta-T.yaml: no such file; it holds the sizes of the job"):
        analyze_oplevel(path)
    with pytest.raises(TraceError, match=r"trace-U.parquet: no such file"):
        analyze_oplevel(tmp_path / "trace-U.parquet")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_half_a_file_is_refused(share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, tiny(), (2, 2))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert main(["what-if", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"steptime: {path}: can't be read as Parquet (")
    assert err.count("\n") == 1


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Either the file is refused, in one line, or what is damaged plays no part in the figures."""
    path = write(tmp_path, tiny(), (2, 2))
    content = path.read_bytes()
    rng = np.random.default_rng(5)
    for at in rng.integers(4, len(content), 60).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        code = main(["what-if", str(path)])
        out, err = capsys.readouterr()
        assert (code, err.count("\n")) in ((2, 1), (0, 0)), (at, err)
        assert (code == 0) == bool(out)


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, repo: Path) -> None:
    path = write(tmp_path, tiny(), (2, 2))
    code = (
        "import sys; sys.modules['pyarrow'] = None; sys.modules['fastparquet'] = None; "
        f"from steptime.cli import main; sys.exit(main(['what-if', {str(path)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"steptime: {path}: reading Parquet files needs pyarrow: pip install 'steptime[oplevel]'\n"
