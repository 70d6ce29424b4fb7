"""Lightning.

import stepvault
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from stepvault.callbacks.lightning import StepvaultCallback

class Model(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = self.loss(self(batch))
        self.log("loss", loss)
        return loss

agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
saves = ModelCheckpoint("checkpoints", every_n_train_steps=64, save_top_k=2, monitor="step", mode="max")
trainer = Trainer(max_epochs=20, callbacks=[saves, StepvaultCallback(agent)])
trainer.fit(Model(), ckpt_path=None if path is None else str(path))
"""

from __future__ import annotations

import functools
from typing import Any, Callable

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from .._agent import Agent
from . import _announce


class StepvaultCallback(Callback):  # type: ignore[misc,unused-ignore]  # the class of one of two packages
    """Announces each checkpoint that the trainer has written, with its metrics, and waits at the end of the fit."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets `trainer.save_checkpoint`, by which every callback saves, announce what it has written."""
        if getattr(trainer.save_checkpoint, "_announces", False):
            return
        trainer.save_checkpoint = self._announcing(trainer, trainer.save_checkpoint)

    def _announcing(self, trainer: Trainer, save: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(save)
        def save_and_announce(filepath: Any, *arguments: Any, **options: Any) -> None:
            save(filepath, *arguments, **options)
            several = trainer.world_size > 1
            _announce.announce(self.agent, filepath, metrics=trainer.callback_metrics, is_of_all_ranks=several)

        save_and_announce._announces = True  # type: ignore[attr-defined]
        return save_and_announce

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits for what was announced."""
        _announce.wait_at_end(self.agent)
