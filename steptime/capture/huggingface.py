"""``Trainer(..., callbacks=[StepTimeCallback("captures")])``: `steptime.watch` in the HuggingFace Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from steptime.capture.watch import Watch, WatchSettings, watch


class StepTimeCallback(TrainerCallback):
    """Watches the optimizer steps of a training; their numbers are the Trainer's ``global_step``."""

    def __init__(self, dir: Path | str, settings: WatchSettings | None = None) -> None:
        self._dir, self._settings = dir, settings
        self.watch: Watch | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start watching."""
        self._close()
        self.watch = watch(self._dir, self._settings, first_step=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended, whatever number of micro-batches it took."""
        if self.watch is not None:
            self.watch.step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching. A training that fails never gets here; the watch then ends with the process."""
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None
