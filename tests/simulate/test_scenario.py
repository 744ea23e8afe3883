"""Scenario files: those that are shipped, and those that are refused with one line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from steptime.errors import UsageError
from steptime.simulate import load_scenario, simulate
from steptime.simulate.catalog import gpu
from steptime.simulate.faults import KINDS, inject
from steptime.simulate.scenario import Fault, Layout, Model, Recording, check, shape_of
from tests.simulate.jobs import job

_FOLDER = Path(__file__).parent.parent.parent / "traces" / "scenarios"


def test_every_shipped_scenario_is_possible() -> None:
    paths = sorted(_FOLDER.glob("*.toml"))
    assert len(paths) >= 10
    for path in paths:
        scenario = load_scenario(path)
        assert scenario.name == path.stem
        assert scenario.about
        inject(scenario, scenario.fault)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[layout]\ndp = 0", "dp is 0: choose at least 1"),
        ("[layout]\nfdsp = true", "unknown field `fdsp`"),
        ("[layout]\ndp = 4\nep = 3", "ep (3) does not divide dp (4)"),
        ("[layout]\npp = 4\n[model]\nlayers = 2", "2 layers are too few for 4 stages"),
        ("[layout]\npp = 2\nstage_layers = [1]", "stage_layers has 1 entries, the job 2 stages"),
        ("[layout]\npp = 2\nchunks = 2", "chunks > 1 needs schedule = 'interleaved'"),
        ("layout = 3", "not a scenario"),
        ("= 3", "not a scenario"),
    ],
)
def test_impossible_scenarios_say_why(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_only_the_simulation_can_refuse(tmp_path: Path) -> None:
    for fault, message in (
        (Fault(kind="gremlins"), "no fault 'gremlins': choose one of slow_gpu"),
        (Fault(kind="slow_gpu", ranks=[4]), "ranks go from 0 to 3"),
        (Fault(kind="few_micro_batches", size=3.0), "3 do not divide 2 sequences"),
    ):
        with pytest.raises(UsageError, match="fault|micro") as caught:
            simulate(job(fault=[fault]), tmp_path)
        assert message in str(caught.value)
    with pytest.raises(UsageError, match="can't be read"):
        load_scenario(tmp_path / "absent.toml")
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        simulate(job(), occupied)
    with pytest.raises(UsageError, match="no GPU 'H9000'"):
        gpu("H9000")


def test_every_kind_of_fault_can_be_injected() -> None:
    piped = job(layout=Layout(dp=2, pp=2), model=Model(layers=8, hidden=1024))
    for name, kind in KINDS.items():
        scenario = msgspec.structs.replace(
            piped, batch=msgspec.structs.replace(piped.batch, micro_batches=4), recording=Recording(steps=4)
        )
        made = inject(scenario, [Fault(kind=name)])
        clean = inject(scenario, [])
        changed = [
            field
            for field in made.effects.__slots__
            if str(getattr(made.effects, field)) != str(getattr(clean.effects, field))
        ]
        assert changed or made.scenario != scenario, name
        assert kind.about


def test_a_fault_strikes_where_it_is_told_to() -> None:
    scenario = job(recording=Recording(steps=6, first_step=10, warmup=2))
    effects = inject(scenario, [Fault(kind="slow_loader", ranks=[1, 3], steps=[11, 14], size=5.0)]).effects
    # Columns are steps 8 to 15.
    assert effects.loader_ns.tolist() == [
        [0.0] * 8,
        [0, 0, 0, 5e6, 0, 0, 5e6, 0],
        [0.0] * 8,
        [0, 0, 0, 5e6, 0, 0, 5e6, 0],
    ]
    hosts = job(layout=Layout(dp=16))
    effects = inject(hosts, [Fault(kind="slow_link", hosts=[1], size=0.5)]).effects
    assert effects.link.tolist() == [1.0] * 8 + [0.5] * 8


def test_presets_and_gpus_are_the_tables() -> None:
    # config.json of meta-llama/Meta-Llama-3-8B and the H100 whitepaper, table 3.
    shape = shape_of(Model(preset="llama-3-8b"))
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn) == (32, 4096, 32, 8, 14336)
    assert gpu("h100 sxm").peak_flops["bf16"] == 989.4e12
    assert gpu("NVIDIA A100-SXM4-80GB").memory_bytes_per_s == 2039e9
    check(job(model=Model(preset="mixtral", layers=2), layout=Layout(dp=8, ep=8)))
