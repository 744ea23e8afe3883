"""``steptime goodput plan``: options in, report out."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime import cli
from steptime.model.plan import Plan
from steptime.roofline.models import load_model, preset_names
from steptime.store import load_run

LLAMA = ["--gpus", "16384", "--mtbf-gpu", "50677", "--restart", "10m", "--runs", "40"]
PAUSE = ["--checkpoint-pause", "33s"]


def _plan(tmp_path: Path, *words: str) -> Plan:
    path = tmp_path / "plan.json"
    assert cli.main(["goodput", "plan", *LLAMA, *words, "-q", "-o", str(path)]) == 0
    report = load_run(path)
    assert isinstance(report, Plan)
    return report


def test_options_become_the_question(tmp_path: Path) -> None:
    found = _plan(tmp_path, *PAUSE, "--interval", "2h", "--spares", "4", "--repair", "1d", "--weibull-shape", "0.8")
    ask = found.ask
    assert (ask.gpus, ask.mtbf_gpu_s, ask.pause_s, ask.restart_s) == (16_384, 50_677 * 3600, 33, 600)
    assert (ask.interval_s, ask.spares, ask.repair_s, ask.weibull_shape) == (7200, 4, 86_400, 0.8)
    assert (ask.runs, ask.seed, ask.horizon_s, ask.write_s) == (40, 0, 54 * 86_400, 0)


def test_it_prints_and_writes_and_shows_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / f"plan.{suffix}" for suffix in ("json", "html", "md", "txt")]
    words = [word for path in outputs for word in ("-o", str(path))]
    assert cli.main(["goodput", "plan", *LLAMA, *PAUSE, *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "fail every 3.09 h" in printed.out
    assert printed.out == (tmp_path / "plan.txt").read_text()
    assert cli.main(["show", str(outputs[0])]) == 0
    assert capsys.readouterr() == printed


def test_the_pause_from_size_and_bandwidth(tmp_path: Path) -> None:
    """405e9 parameters of 16 bytes, 6.48 TB, at 2 TB/s."""
    found = _plan(tmp_path, "--model", "405e9", "--write-bandwidth", "2TB/s")
    assert found.ask.pause_s == pytest.approx(3.24)
    assert found.checkpoint is not None
    assert found.checkpoint.total == 6_480 * 10**9
    assert _plan(tmp_path, "--checkpoint-size", "6.6e12", "--write-bandwidth", "200GB/s").ask.pause_s == 33


def test_asynchronous(tmp_path: Path) -> None:
    """65.5 TB over 16,384 GPUs are 4 GB each, at 4 GB/s a second; written in 33 s."""
    words = ["--async", "--checkpoint-size", "65.536TB", "--write-bandwidth", "2TB/s", "--copy-bandwidth", "4GB/s"]
    ask = _plan(tmp_path, *words).ask
    assert (ask.pause_s, ask.write_s) == (1, 32.768)


def test_a_model_on_a_gpu(tmp_path: Path) -> None:
    """Llama 3 8B: 8,030,261,248 parameters; 80 GiB; 16,384 / (8 x 2) data-parallel ranks."""
    layout = ["--tp", "8", "--pp", "2", "--zero", "1", "--seq-len", "8192", "--recompute", "full"]
    words = ["--model", "llama-3-8b", "--gpu", "H100-SXM", *layout]
    found = _plan(tmp_path, *PAUSE, *words)
    assert found.fit is not None
    assert (found.fit.parameters, found.fit.memory_bytes) == (8_030_261_248, 80 * 2**30)
    laid = found.fit.layout
    assert (laid.data, laid.tensor, laid.pipeline, laid.zero, laid.sequence) == (1024, 8, 2, 1, 8192)
    assert (found.fit.chosen.zero, found.fit.chosen.recompute) == (1, "full")
    given = _plan(tmp_path, *PAUSE, "--model", "8e9", "--gpu-memory", "80GB").fit
    assert given is not None
    assert (given.memory_bytes, given.gpu) == (80 * 10**9, "a GPU")


def test_the_widths_of_the_presets_give_back_their_parameters() -> None:
    """Of models without experts: what the widths say of the matrices is what the shape counts."""
    from steptime.cli.goodput_plan import model_size

    seen = 0
    for name in preset_names():
        shape = load_model(name)
        if any(layer.mlp_idle for layer in shape.layers):
            continue
        size = model_size(shape)
        attention = size.hidden * (size.query_width + size.key_width + size.value_width + size.attention_width)
        mlp = (3 if size.gated else 2) * size.hidden * size.mlp_width
        assert size.layers * (attention + mlp) == shape.layer_matmul_parameters, name
        seen += 1
    assert seen >= 5


def test_a_gpt_has_no_gate(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}')
    from steptime.cli.goodput_plan import model_size

    size = model_size(load_model(str(config)))
    assert (size.gated, size.mlp_width, size.query_width) == (False, 3072, 768)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint-pause", "0"], "not a length of time"),
        ([], "give --checkpoint-pause"),
        ([*PAUSE, "--async"], "until a checkpoint is written, a failure loses it"),
        ([*PAUSE, "--spares", "3"], "give --repair"),
        ([*PAUSE, "--model", "nonsense"], "--model nonsense"),
        ([*PAUSE, "--model", "8e9", "--gpu", "V100 SXM2"], "16 GiB and 32 GiB: say which one it is with --gpu-memory"),
        ([*PAUSE, "--model", "8e9", "--gpu", "H100 SXM", "--tp", "3"], "can't be divided"),
        ([*PAUSE, "--mtbf-gpu", "0.001"], "check --gpus and --mtbf-gpu"),
        ([*PAUSE, "--mtbf-gpu", "nan"], "--mtbf-gpu"),
        ([*PAUSE, "--days", "-1"], "--days"),
        ([*PAUSE, "--checkpoint-size", "many"], "not an amount of bytes"),
        ([*PAUSE, "-o", "plan.perfetto.json"], "no such format"),
    ],
)
def test_bad_usage_is_one_line_and_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["goodput", "plan", *LLAMA, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "amount"), [("80GiB", 80 * 2**30), ("6.5TB", 6.5e12), ("2TB/s", 2e12), ("2e12", 2e12), ("512 kb", 512e3)]
)
def test_amounts_of_bytes(text: str, amount: float) -> None:
    from steptime.cli.params import Bytes

    assert Bytes().convert(text, None, None) == pytest.approx(amount)
