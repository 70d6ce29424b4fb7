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
from typing import Any, Callable, Mapping, Optional

from .._agent import Agent
from . import dcp


def announce_saves(
    checkpointer: Any, agent: Agent, *, metrics: Optional[Callable[[int], Mapping[str, Any]]] = None
) -> None:
    """Lets a CheckpointManager announce each step, asynchronous ones when they are written.

    The manager knows no metrics: `metrics` returns those of a step, by its number.
    """
    save = checkpointer.save

    @functools.wraps(save)
    def save_and_announce(curr_step: int, *arguments: Any, **options: Any) -> Any:
        before = getattr(checkpointer, "save_future", None)
        result = save(curr_step, *arguments, **options)
        path = Path(checkpointer.folder) / f"step-{curr_step}"
        future = getattr(checkpointer, "save_future", None)
        is_asynchronous = future is not None and future is not before
        if is_asynchronous or path.is_dir():
            known = metrics(curr_step) if metrics is not None else None
            dcp.announce_saved(agent, future if is_asynchronous else None, path, metrics=known)
        return result

    checkpointer.save = save_and_announce
