"""torchtitan's CheckpointManager.

import os

import stepvault
from stepvault.callbacks.torchtitan import announce_saves
from torchtitan.config import ConfigManager

# Started by torchrun, with the arguments of torchtitan.train: --module llama3 --config llama3_8b …
config = ConfigManager().parse_args()
directory = os.path.join(config.dump_folder, config.checkpoint.folder)
agent = stepvault.watch(directory, run="my-run", remote="s3://bucket/prefix", announced=True)
agent.restore()
trainer = config.build()
announce_saves(trainer.checkpointer, agent)
trainer.train()
trainer.close()
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from .._agent import Agent
from . import dcp


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
            dcp.announce_saved(agent, None, path)
        return result

    checkpointer.save = save_and_announce
