"""Expected figures are those of the vendor tables that gpus.toml cites; devices are `deviceProperties` as recorded."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from steptime.errors import UsageError
from steptime.roofline import hardware
from steptime.roofline.gpu_table import Figure, Gpu, plain_name
from steptime.roofline.hardware import (
    find_gpu,
    gpu_named,
    load_table,
    parse_peak,
    parse_peaks,
    reference_dtype,
    weighted_peak,
    with_peaks,
)

_GIB = 1 << 30
#: A full board shows a little less than its marketed size.
_H100 = ("NVIDIA H100 80GB HBM3", 85_045_608_448, 132, (9, 0))
_FLAGS = ("--peak 989.4e12:bf16", "--gpu NAME")


def _figures(gpu: Gpu) -> dict[str, Figure]:
    found = {f"peak {dtype}": figure for dtype, figure in gpu.peak_flops.items()}
    found |= {f"achievable {dtype}": figure for dtype, figure in gpu.achievable_flops.items()}
    found |= {f"memory {at}": figure for at, figure in enumerate(gpu.memory_bytes)}
    for field in fields(gpu):
        value = getattr(gpu, field.name)
        if isinstance(value, Figure):
            found[field.name] = value
    return found


# --- the table ---


def test_every_figure_has_a_listed_source(repo: Path) -> None:
    raw = msgspec.toml.decode((repo / "steptime/roofline/gpus.toml").read_bytes())
    listed = set(raw["sources"].values())
    sources = {figure.source for gpu in load_table() for figure in _figures(gpu).values()}
    assert sources <= listed
    assert sources == listed, "a source that nothing cites"


def test_what_was_only_recalled_is_never_confirmed() -> None:
    recalled = [figure for gpu in load_table() for figure in _figures(gpu).values() if "recalled" in figure.source]
    assert len(recalled) > 20
    assert not any(figure.confirmed for figure in recalled)


def test_rows_and_runtime_names_are_unique() -> None:
    names = [plain_name(name) for gpu in load_table() for name in gpu.names]
    assert len(names) == len(set(names))
    assert len(load_table()) == 24


# Second source (pytorch/torchtitan's table and, for the V100, NVIDIA's page), TFLOP/s: a sparse figure would be twice,
# one corrected twice half of it (B22).
@pytest.mark.parametrize(
    ("row", "dtype", "tflops"),
    [
        ("V100 SXM2", "fp16", 125),
        ("A100 SXM 40", "bf16", 312),
        ("A100 SXM 80", "bf16", 312),
        ("A100 PCIe 80", "bf16", 312),
        ("H100 SXM", "bf16", 989),
        ("H100 PCIe", "bf16", 756),
        ("H100 NVL", "bf16", 835),
        ("H200 SXM", "bf16", 989),
        ("H20", "bf16", 148),
        ("B200", "bf16", 2250),
        ("GB200", "bf16", 2500),
        ("MI250X GCD", "bf16", 191.5),
        ("MI300X", "bf16", 1300),
        ("MI325X", "bf16", 1300),
        ("MI355X", "bf16", 2500),
        ("L40S", "bf16", 362),
    ],
)
def test_dense_peak_agrees_with_a_second_source(row: str, dtype: str, tflops: float) -> None:
    assert gpu_named(row).peak(dtype).flops == pytest.approx(tflops * 1e12, rel=0.01)


def test_tensor_rates_halve_with_each_step_of_precision() -> None:
    # On every listed part from Ampere on: TF32 is half of BF16, FP8 twice.
    pairs = [("tf32", 0.5), ("fp8", 2.0), ("fp16", 1.0)]
    checked = 0
    for gpu in load_table():
        for dtype, factor in pairs:
            if {"bf16", dtype} <= gpu.peak_flops.keys():
                assert gpu.peak_flops[dtype].value == pytest.approx(factor * gpu.peak_flops["bf16"].value, rel=0.015)
                checked += 1
    assert checked > 40


def test_achievable_is_below_the_peak() -> None:
    # Published shares: 75 to 87 % on NVIDIA, 51 to 60 % on AMD.
    shares = {
        gpu.name: gpu.achievable_flops["bf16"].value / gpu.peak_flops["bf16"].value
        for gpu in load_table()
        if gpu.achievable_flops
    }
    assert shares.keys() >= {"A100 SXM 80", "H100 SXM", "B200", "MI300X"}
    for name, share in shares.items():
        low, high = (0.51, 0.61) if name.startswith("MI") else (0.72, 0.875)
        assert low <= share <= high, name


def test_a_row_in_full() -> None:
    # NVIDIA H100 SXM: whitepaper table 3 and product page.
    gpu = gpu_named("H100 SXM")
    values = {name: figure.value for name, figure in _figures(gpu).items()}
    assert values == {
        "peak bf16": 989.4e12,
        "peak fp16": 989.4e12,
        "peak tf32": 494.7e12,
        "peak fp32": 66.9e12,
        "peak fp8": 1978.9e12,
        "peak int8": 1979e12,
        "achievable bf16": 794.5e12,
        "memory 0": 80 * _GIB,
        "memory_bytes_per_s": 3350e9,
        "multiprocessors": 132,
        "l2_bytes": 50 * (1 << 20),
        "link_bytes_per_s": 450e9,
        "pcie_bytes_per_s": 63e9,
    }


# --- finding the GPU of a trace ---


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "compute", "row"),
    [
        # deviceProperties of public traces
        ("Tesla V100-SXM2-32GB", 34_079_899_648, 80, (7, 0), "V100 SXM2"),
        ("Tesla V100-DGXS-32GB", 34_084_028_416, 80, (7, 0), "V100 DGX Station"),
        ("NVIDIA A100-PG509-200", 42_297_524_224, 108, (8, 0), "A100 SXM 40"),
        ("NVIDIA A100-PG509-200", 42_505_273_344, 108, (8, 0), "A100 SXM 40"),
        ("NVIDIA A100-SXM4-80GB", 84_990_623_744, 108, (8, 0), "A100 SXM 80"),
        ("AMD Instinct MI300X", 206_141_652_992, 304, (9, 4), "MI300X"),
        ("NVIDIA B200", 191_503_138_816, 148, (10, 0), "B200"),
        # the marketed size, a little less, as drivers report it
        (*_H100, "H100 SXM"),
        ("NVIDIA H100 PCIe", 85_045_608_448, 114, (9, 0), "H100 PCIe"),
        ("NVIDIA H100 NVL", 93 * _GIB, 132, (9, 0), "H100 NVL"),
        ("NVIDIA H200", 140 * _GIB, 132, (9, 0), "H200 SXM"),
        ("NVIDIA H20", 95 * _GIB, 78, (9, 0), "H20"),
        ("NVIDIA GB200", 184 * _GIB, 148, (10, 0), "GB200"),
        ("NVIDIA A100-SXM4-40GB", 42_297_524_224, 108, (8, 0), "A100 SXM 40"),
        ("A100-SXM4-40GB", 42_297_524_224, 108, (8, 0), "A100 SXM 40"),
        ("NVIDIA A100 80GB PCIe", 84_990_623_744, 108, (8, 0), "A100 PCIe 80"),
        ("NVIDIA L40S", 47_700_000_000, 142, (8, 9), "L40S"),
        ("nvidia l40s", 47_700_000_000, 142, (8, 9), "L40S"),
        ("AMD Instinct MI250X / MI250", 68_702_699_520, 110, (9, 0), "MI250X GCD"),
        # not recorded: no compute capability, no multiprocessors
        ("NVIDIA H100 80GB HBM3", 85_045_608_448, 132, None, "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", 85_045_608_448, 0, (0, 0), "H100 SXM"),
    ],
)
def test_found(name: str, memory: int, multiprocessors: int, compute: tuple[int, int] | None, row: str) -> None:
    match = find_gpu(name, memory, multiprocessors, compute)
    assert match.gpu is not None, match.reason
    assert (match.gpu.name, match.scale, match.reason) == (row, 1.0, "")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA B999 SXM",
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX 4090",
        "AMD Radeon Graphics",
        "AMD Instinct MI210",
        "NVIDIA H200 NVL",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA L4",
        "H100",
    ],
)
def test_a_name_that_is_not_listed_has_no_peak(name: str) -> None:
    # B23: silently taking the A100's or H100's peak gave MFU of 105 to 563 %.
    match = find_gpu(name, 85_045_608_448, 132, (9, 0))
    assert match.gpu is None
    assert match.reason.startswith(f'GPU "{name}" is not in the table')
    assert all(flag in match.reason for flag in _FLAGS)
    assert "\n" not in match.reason


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "compute", "said"),
    [
        ("NVIDIA H100 80GB HBM3", 85_045_608_448, 114, (9, 0), "reports 114 multiprocessors, but H100 SXM has 132"),
        ("NVIDIA A100-SXM4-80GB", 42_505_273_344, 108, (8, 0), "reports 39.6 GiB of memory, but A100 SXM 80 has 80"),
        ("NVIDIA H100 80GB HBM3", 150_000_000_000, 132, (9, 0), "reports 139.7 GiB of memory, but H100 SXM has 80"),
        ("NVIDIA H100 80GB HBM3", 85_045_608_448, 132, (8, 0), "reports compute capability 8.0, but H100 SXM has 9.0"),
        # A MI250 carries the shared name and 104 units: its peak is another.
        (
            "AMD Instinct MI250X / MI250",
            68_702_699_520,
            104,
            (9, 0),
            "reports 104 multiprocessors, but MI250X GCD has 110",
        ),
        # No V100 can be split.
        ("Tesla V100-SXM2-32GB", 8 * _GIB, 20, (7, 0), "reports 8.0 GiB of memory, but V100 SXM2 has 16 or 32"),
        # Less of both, but too much for the largest slice.
        ("NVIDIA H100 80GB HBM3", 64 * _GIB, 120, (9, 0), "reports 64.0 GiB of memory"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42_505_273_344, 0, (8, 0), "reports 39.6 GiB of memory"),
    ],
)
def test_a_contradiction_is_unknown(
    name: str, memory: int, multiprocessors: int, compute: tuple[int, int], said: str
) -> None:
    match = find_gpu(name, memory, multiprocessors, compute)
    assert match.gpu is None
    assert said in match.reason
    assert all(flag in match.reason for flag in _FLAGS)


def test_a_trace_without_a_device_name() -> None:
    assert find_gpu("", 0, 0).gpu is None
    assert "does not name its GPU" in find_gpu("", 0, 0).reason


@pytest.mark.parametrize(
    ("name", "memory", "count", "parts"),
    [
        # NVIDIA MIG user guide: A100 80 GB 3g.40gb has 42 of 108 multiprocessors and half the memory.
        ("NVIDIA A100-SXM4-80GB", 42_505_273_344, 42, 4),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42_505_273_344, 42, 4),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", 10_200_547_328, 14, 1),
        # 7g has all memory and 98 multiprocessors: told by its name only.
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 84_990_623_744, 98, 8),
    ],
)
def test_a_mig_slice_is_scaled_and_says_so(name: str, memory: int, count: int, parts: int) -> None:
    match = find_gpu(name, memory, count, (8, 0))
    assert match.gpu is not None, match.reason
    assert match.scale == pytest.approx(count / 108)
    assert match.gpu.peak("bf16").flops == pytest.approx(312e12 * count / 108)
    assert match.gpu.memory_bytes_per_s is not None
    assert match.gpu.memory_bytes_per_s.value == pytest.approx(2039e9 * parts / 8)
    assert match.gpu.link_bytes_per_s is None
    assert f"{count} of 108 multiprocessors" in " ".join(match.notes)


def test_an_amd_compute_partition_is_a_slice() -> None:
    # MI300X in CPX/NPS4: 38 of 304 units, 24 of 192 GB.
    match = find_gpu("AMD Instinct MI300X", 25_753_026_560, 38, (9, 4))
    assert match.gpu is not None
    assert match.scale == 1 / 8


def test_seven_g_without_mig_in_its_name_is_unknown() -> None:
    assert find_gpu("NVIDIA A100-SXM4-80GB", 84_990_623_744, 98, (8, 0)).gpu is None


def test_what_could_not_be_compared_is_said() -> None:
    assert "multiprocessors" in " ".join(find_gpu("NVIDIA H100 80GB HBM3", 85_045_608_448, 0).notes)
    assert "multiprocessors" in " ".join(find_gpu("NVIDIA GB200", 184 * _GIB, 148).notes)
    assert find_gpu(*_H100).notes == ()


# --- peaks ---


def test_the_peak_is_that_of_the_dtype() -> None:
    # B20: TF32's figure under a BF16 run doubled MFU.
    gpu = find_gpu(*_H100).gpu
    assert gpu is not None
    assert gpu.peak("bf16")[:2] == ("bf16", 989.4e12)
    assert gpu.peak("torch.bfloat16").flops == 989.4e12
    assert gpu.peak("tf32").flops == 494.7e12
    assert "whitepaper" in gpu.peak("bf16").source


def test_an_unconfirmed_peak_is_shown_and_not_used() -> None:
    peak = gpu_named("A10G").peak("bf16")
    assert peak.flops is None
    assert "not confirmed" in peak.why_not
    assert "--peak 7e+13:bf16" in peak.why_not
    assert with_peaks(gpu_named("A10G"), {"bf16": 7e13}).peak("bf16").flops == 7e13


def test_an_unconfirmed_cache_is_not_usable() -> None:
    l2_bytes = gpu_named("L40S").l2_bytes
    assert l2_bytes is not None
    assert (l2_bytes.usable, l2_bytes.value) == (None, 48 * (1 << 20))


def test_a_dtype_without_units_has_no_peak() -> None:
    peak = gpu_named("V100 SXM2").peak("bf16")
    assert peak.flops is None
    assert "V100 SXM2 for bf16" in peak.why_not
    assert "--peak" in peak.why_not


def test_half_fp8_half_bf16() -> None:
    # B35: n FLOPs at each rate take n/989.4e12 + n/1978.9e12 s for 2n.
    gpu = gpu_named("H100 SXM")
    peak = weighted_peak(gpu, {"fp8": 5e15, "bf16": 5e15})
    assert peak.flops == pytest.approx(1319.23e12, rel=1e-5)
    assert weighted_peak(gpu, {"bf16": 1.0}).flops == pytest.approx(989.4e12)
    assert weighted_peak(gpu, {}).flops is None
    assert weighted_peak(gpu, {"bf16": 1.0, "fp4": 1.0}).flops is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("989.4e12:bf16", ("bf16", 989.4e12)),
        ("12.7e12:fp32", ("fp32", 12.7e12)),
        (" 1978.9e12:float8_e4m3fn ", ("fp8", 1978.9e12)),
        ("312000000000000:bfloat16", ("bf16", 312e12)),
    ],
)
def test_peak_flag(text: str, expected: tuple[str, float]) -> None:
    assert parse_peak(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("989.4e12", "no dtype"),
        ("989.4:bf16", "989.4 TFLOP/s is 989.4e12"),
        ("fast:bf16", "'fast' is not a number"),
        ("nan:bf16", "no GPU's peak"),
        ("inf:bf16", "no GPU's peak"),
        ("-1e12:bf16", "no GPU's peak"),
        ("1e12:bf17", "choose one of bf16"),
        ("", "no dtype"),
    ],
)
def test_a_wrong_peak_flag(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_peak(text)
    assert "\n" not in str(error.value)


def test_several_peak_flags() -> None:
    assert parse_peaks(["1e12:bf16", "2e12:fp8"]) == {"bf16": 1e12, "fp8": 2e12}
    with pytest.raises(UsageError, match="given before"):
        parse_peaks(["1e12:bf16", "2e12:bfloat16"])


def test_a_gpu_known_only_by_its_peak() -> None:
    gpu = with_peaks(None, {"fp32": 12.7e12}, "NVIDIA GeForce RTX 3060")
    assert gpu.peak("fp32") == hardware.Peak("fp32", 12.7e12, "--peak")
    assert gpu.memory_bytes_per_s is None
    assert reference_dtype(gpu) == "fp32"


@pytest.mark.parametrize(
    ("row", "compute", "requested", "dtype"),
    [
        ("H100 SXM", None, None, "bf16"),
        ("V100 SXM2", (7, 0), None, "fp16"),
        ("MI300X", (9, 4), None, "bf16"),
        ("H100 SXM", None, "float16", "fp16"),
        (None, (7, 5), None, "fp16"),
        (None, (8, 6), None, "bf16"),
        (None, (0, 0), None, "bf16"),
        (None, None, None, "bf16"),
    ],
)
def test_reference_dtype(row: str | None, compute: tuple[int, int] | None, requested: str | None, dtype: str) -> None:
    assert reference_dtype(gpu_named(row) if row else None, compute, requested) == dtype


# --- rows by name, own tables ---


def test_gpu_flag_takes_a_row_or_a_runtime_name() -> None:
    assert gpu_named("h100 sxm").name == "H100 SXM"
    assert gpu_named("NVIDIA A100-PG509-200").name == "A100 SXM 40"
    with pytest.raises(UsageError, match="did you mean H100 SXM or H100 PCIe or H100 NVL"):
        gpu_named("H100")
    with pytest.raises(UsageError, match="did you mean H100 SXM"):
        gpu_named("H100 SMX")
    with pytest.raises(UsageError, match="known are V100 SXM2"):
        gpu_named("zzz")


_OWN = """
kind = "dense"
[[gpu]]
name = "RTX 3060"
names = ["NVIDIA GeForce RTX 3060"]
memory_gib = 12
multiprocessors = 28
memory_bytes_per_s = { value = 360e9, source = "my own measurement" }
[gpu.peak_flops]
fp32 = 12.7e12
bf16 = { value = 25e12, unconfirmed = true }
"""


def test_own_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(_OWN)
    rows = load_table(path)
    # deviceProperties of a public trace
    match = find_gpu("NVIDIA GeForce RTX 3060", 12_487_294_976, 28, (8, 6), (*rows, *load_table()))
    assert match.gpu is not None
    assert match.gpu.peak("fp32") == hardware.Peak("fp32", 12.7e12, "mine.toml")
    assert match.gpu.peak("bf16").flops is None
    assert match.gpu.memory_bytes_per_s == Figure(360e9, "my own measurement")
    assert find_gpu(*_H100, (*rows, *load_table())).gpu == gpu_named("H100 SXM")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind = ", "not a GPU table"),
        ("", "missing required field `gpu`"),
        (_OWN.replace("dense", "sparse"), 'must be "dense"'),
        (_OWN.replace("12.7e12", "12.7"), "SI units"),
        (_OWN.replace("12.7e12", "nan"), "SI units"),
        (_OWN.replace("fp32", "fp31"), "fp31"),
        (_OWN.replace("12.7e12", '"fast"'), "Expected `float | object`"),
        (_OWN.replace("memory_gib", "memory"), "unknown field `memory`"),
        (_OWN.replace("memory_gib = 12", "memory_gib = -12"), "memory_gib = -12"),
        (_OWN + _OWN.replace('kind = "dense"', ""), "two rows are called"),
        ('schema = 2\nkind = "dense"\ngpu = []', "schema 2"),
        ('kind = "dense"\ngpu = []', r"no \[\[gpu\]\] row"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        load_table(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_or_binary_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_table(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a GPU table"):
        load_table(tmp_path / "binary.toml")
