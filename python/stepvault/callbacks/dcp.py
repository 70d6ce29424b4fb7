"""PyTorch Distributed Checkpoint.

import stepvault
import torch.distributed.checkpoint as dcp
from stepvault.callbacks.dcp import announce_saved

agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
if path is not None:
    dcp.load(state, checkpoint_id=path)
for step in range(steps):
    loss = train(state)
    if step % 100 == 0:
        future = dcp.async_save(state, checkpoint_id=f"checkpoints/step_{step}")
        announce_saved(agent, future, f"checkpoints/step_{step}", metrics={"loss": loss})
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Mapping, Optional

from .._agent import Agent
from .._program import PathLike
from . import _announce


def announce_saved(
    agent: Agent,
    saved: Any,
    path: PathLike,
    *,
    step: Optional[int] = None,
    metrics: Optional[Mapping[str, Any]] = None,
) -> None:
    """Announces a step when its `async_save` has finished, or now if `saved` is what `save` returned.

    Call it on every rank: the last one of the node finds all files. It waits for nothing.
    """
    future = getattr(saved, "upload_completion", saved)
    known = _announce.numbers(metrics or {})
    if not isinstance(future, Future):
        _announce.announce(agent, path, step=step, metrics=known)
        return

    def announce(done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            _announce.announce(agent, path, step=step, metrics=known)

    future.add_done_callback(announce)
