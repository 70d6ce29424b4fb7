"""Lightning.

import stepvault
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from stepvault.callbacks.lightning import StepvaultCallback

agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
saves = ModelCheckpoint("checkpoints", every_n_train_steps=100, save_top_k=2, monitor="step", mode="max")
trainer = Trainer(callbacks=[saves, StepvaultCallback(agent)])
trainer.fit(model, loader, ckpt_path=None if path is None else str(path))
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
            # The last of the node's processes finds all files.
            _announce.announce(self.agent, filepath, metrics=trainer.callback_metrics)

        save_and_announce._announces = True  # type: ignore[attr-defined]
        return save_and_announce

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits for what was announced."""
        _announce.wait_at_end(self.agent)
