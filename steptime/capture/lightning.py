"""``Trainer(callbacks=[StepTimeCallback("captures")])``: `steptime.watch` in Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from steptime.capture.watch import Watch, WatchSettings, watch


class StepTimeCallback(Callback):
    """Watches the optimizer steps of a fit; their numbers are the Trainer's ``global_step``."""

    def __init__(self, dir: Path | str, settings: WatchSettings | None = None) -> None:
        self._dir, self._settings = dir, settings
        self._global_step = 0
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start watching."""
        self._close()
        self._global_step = trainer.global_step
        self.watch = watch(self._dir, self._settings, first_step=trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """A batch has ended; with accumulated gradients only some batches end a step."""
        if self.watch is not None and trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self.watch.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop watching."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching, and write what was being recorded."""
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None
