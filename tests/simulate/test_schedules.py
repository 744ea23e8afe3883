"""Pipeline schedules: orders from the papers' figures, and what every order must hold."""

from __future__ import annotations

import pytest

from steptime.simulate.schedules import schedule


def _text(name: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> str:
    return " ".join(
        f"{action.kind}{action.micro_batch}" + (f".{action.chunk}" if chunks > 1 else "")
        for action in schedule(name, stage, stages, micro_batches, chunks)
    )


def test_literal_orders() -> None:
    # GPipe and PipeDream-Flush, first and last of 4 stages; ZB-H1 lags its weight gradients on later stages.
    assert _text("gpipe", 0, 4, 3) == "F0 F1 F2 B0 B1 B2"
    assert _text("1f1b", 0, 4, 5) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert _text("1f1b", 3, 4, 5) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert _text("1f1b", 0, 4, 2) == "F0 F1 B0 B1"
    assert _text("zero-bubble", 0, 2, 3) == "F0 F1 B0 W0 F2 B1 W1 B2 W2"
    assert _text("zero-bubble", 1, 2, 3) == "F0 B0 F1 B1 W0 F2 B2 W1 W2"


def test_interleaved_is_megatrons() -> None:
    # Figure 4 of arXiv:2104.04473 (4 devices, 8 micro-batches, 2 chunks): device 1 starts 1-4 of chunk 0, 1-4 of
    # chunk 1, 5-7 of chunk 0; the last device runs 1 forward 1 backward after 5 forwards.
    first = _text("interleaved", 0, 4, 8, 2).split()
    assert first[:11] == ["F0.0", "F1.0", "F2.0", "F3.0", "F0.1", "F1.1", "F2.1", "F3.1", "F4.0", "F5.0", "F6.0"]
    last = _text("interleaved", 3, 4, 8, 2).split()
    assert last[:7] == ["F0.0", "F1.0", "F2.0", "F3.0", "F0.1", "B0.1", "F1.1"]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize("stages", [2, 4])
def test_every_action_once_and_in_a_possible_order(name: str, stages: int) -> None:
    chunks = 2 if name == "interleaved" else 1
    for stage in range(stages):
        actions = schedule(name, stage, stages, 8, chunks)
        kinds = "FBW" if name == "zero-bubble" else "FB"
        wanted = {(kind, at, chunk) for kind in kinds for at in range(8) for chunk in range(chunks)}
        places = {(action.kind, action.micro_batch, action.chunk): place for place, action in enumerate(actions)}
        assert set(places) == wanted
        assert len(actions) == len(wanted)
        for (kind, at, chunk), place in places.items():
            if kind != "F":
                before = "F" if kind == "B" else "B"
                assert places[before, at, chunk] < place
