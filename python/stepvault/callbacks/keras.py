"""Keras.

import keras
import numpy
import stepvault
from stepvault.callbacks.keras import StepvaultCallback

agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
if path is not None:
    model = keras.saving.load_model(path)
    epoch = int(path.stem.partition("_")[2])
else:
    model, epoch = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]), 0
    model.compile(optimizer="adam", loss="mse")
data = numpy.random.rand(1024, 64).astype("float32")
saves = keras.callbacks.ModelCheckpoint("checkpoints/model_{epoch:04d}.keras")
# After the callback that saves: Keras calls them in order.
callbacks = [saves, StepvaultCallback(agent, saves)]
model.fit(data, data, epochs=20, initial_epoch=epoch, callbacks=callbacks)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional

import keras

from .._agent import Agent
from . import _announce


class StepvaultCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types for mypy
    """Announces what a ModelCheckpoint has written at the end of an epoch, with the epoch's metrics."""

    def __init__(self, agent: Agent, saves: Any) -> None:
        super().__init__()
        self.agent = agent
        self.saves = saves

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Announces the epoch's file, if the other callback has written it."""
        path = str(self.saves.filepath).format(epoch=epoch + 1, **(logs or {}))
        if Path(path).exists():
            _announce.announce(self.agent, path, metrics=logs)

    def on_train_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Waits for what was announced."""
        _announce.wait_at_end(self.agent)
