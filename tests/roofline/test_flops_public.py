"""FLOPs of whole public traces against figures worked out elsewhere."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.roofline.recorded_ops import Recorded, outermost_flops

PUBLIC = Path(__file__).parents[3] / "shared" / "public_traces"


def _ops(path: Path) -> list[Recorded]:
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [Recorded(e) for e in events if e.get("cat") == "cpu_op" and "Input Strides" in e.get("args", {})]


def test_a_small_language_model_needs_109_52_gigaflop_a_step() -> None:
    # Five steps of 103.08 GFLOP in products and 6.44 in attention, by the model's sizes.
    assert outermost_flops(_ops(PUBLIC / "small_lm_rtx3060" / "trace_04.json.gz")) / 5 / 1e9 == pytest.approx(
        109.52, abs=0.01
    )


def test_a_forward_of_qwen_needs_what_its_weights_and_scores_need() -> None:
    # Qwen1.5-0.5B by its published configuration: 24 layers of width 1024, gate, up and down of 2816, 16 heads of 64.
    # 16 sequences of 559 tokens, causal, without the vocabulary's head. Two operations a weight and token.
    tokens, width, layers = 16 * 559, 1024, 24
    weights = layers * (4 * width * width + 3 * width * 2816)
    attention = layers * 16 * 16 * 559 * 559 * 128
    found = outermost_flops(_ops(PUBLIC / "tracelens" / "h100" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"))
    # The rotary embedding multiplies 32 frequencies with 559 positions, once.
    assert found == 2 * weights * tokens + attention + 2 * 32 * 559
