"""The callbacks in trainings of the real libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from steptime.capture.request import CaptureRequest, captured_files, read_step_times, write_request
from tests.capture.captured import marks

MISSING = {name for name in ("accelerate", "lightning", "torch", "transformers") if not importlib.util.find_spec(name)}

ROWS, SECONDS = 80, 0.01


def ask(folder: Path) -> None:
    folder.mkdir()
    write_request(folder, CaptureRequest(id="asked", steps=3))


def check(folder: Path, last: int) -> None:
    """The capture was made, its steps are the library's own optimizer steps, and `last` of them were seen."""
    found = captured_files(folder)
    assert found is not None
    assert found.plan is not None
    assert (sorted(found.files), found.failed) == ([0], {})
    first = found.plan.first_recorded
    assert first + 3 <= last
    assert marks(found.files[0]) == [first, first + 1, first + 2]
    assert read_step_times(folder)[0].step <= last


@pytest.mark.skipif({"accelerate", "torch", "transformers"} & MISSING != set(), reason="transformers is not installed")
@pytest.mark.filterwarnings("default")
def test_the_huggingface_callback(tmp_path: Path) -> None:
    import time

    import torch
    from transformers import Trainer, TrainingArguments

    from steptime.capture.huggingface import StepTimeCallback
    from steptime.capture.watch import WatchSettings

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            time.sleep(SECONDS)
            return {"loss": self.layer(x).square().mean()}

    folder = tmp_path / "captures"
    ask(folder)
    callback = StepTimeCallback(folder, WatchSettings(automatic=False, poll_s=0.05))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=ROWS // 2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"x": torch.ones(4)} for _ in range(ROWS)]
    Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback]).train()
    check(folder, ROWS // 2)
    assert callback.watch is None


@pytest.mark.skipif({"lightning", "torch"} & MISSING != set(), reason="lightning is not installed")
@pytest.mark.filterwarnings("default")
def test_the_lightning_callback(tmp_path: Path) -> None:
    import time

    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from steptime.capture.lightning import StepTimeCallback
    from steptime.capture.watch import WatchSettings

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            time.sleep(SECONDS)
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    folder = tmp_path / "captures"
    ask(folder)
    callback = StepTimeCallback(folder, WatchSettings(automatic=False, poll_s=0.05))
    trainer = Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        default_root_dir=tmp_path,
    )
    trainer.fit(Model(), DataLoader([torch.ones(4)] * ROWS, batch_size=1))  # type: ignore[arg-type]
    assert trainer.global_step == ROWS // 2
    check(folder, ROWS // 2)
    assert callback.watch is None
