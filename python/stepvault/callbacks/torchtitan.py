"""torchtitan's CheckpointManager.

import stepvault
from stepvault.callbacks.torchtitan import announce_saves
from torchtitan.train import Trainer

# In each rank, before the trainer is made: the folder is that of `checkpoint.folder` below `job.dump_folder`.
agent = stepvault.watch("outputs/checkpoint", run="my-run", remote="s3://bucket/prefix", announced=True)
agent.restore()
trainer = Trainer(config)
announce_saves(trainer.checkpointer, agent)
trainer.train()
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from .._agent import Agent
from . import _announce, dcp


def announce_saves(checkpointer: Any, agent: Agent) -> None:
    """Lets a CheckpointManager announce each step, asynchronous ones when they are written."""
    save = checkpointer.save

    @functools.wraps(save)
    def save_and_announce(curr_step: int, *arguments: Any, **options: Any) -> Any:
        before = getattr(checkpointer, "save_future", None)
        result = save(curr_step, *arguments, **options)
        path = Path(checkpointer.folder) / f"step-{curr_step}"
        future = getattr(checkpointer, "save_future", None)
        if future is not None and future is not before:
            dcp.announce_saved(agent, future, path)
        elif path.is_dir():
            _announce.announce(agent, path)
        return result

    checkpointer.save = save_and_announce
