"""PyTorch Distributed Checkpoint.

import stepvault
import torch
import torch.distributed.checkpoint as dcp
from stepvault.callbacks.dcp import announce_saved

torch.distributed.init_process_group("gloo")  # started by torchrun
model = torch.nn.Linear(64, 64)
agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
state = {"model": model.state_dict(), "step": 0}
if path is not None:
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])
for step in range(state["step"] + 1, 1001):
    loss = (model(torch.randn(32, 64)) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    if step % 100 == 0:
        state = {"model": model.state_dict(), "step": step}
        future = dcp.async_save(state, checkpoint_id=f"checkpoints/step_{step}")
        announce_saved(agent, future, f"checkpoints/step_{step}", metrics={"loss": loss})
        future.result()
"""

from __future__ import annotations

import sys
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

    Call it on every rank: the step is sealed when all ranks of the node have written. It waits for nothing.
    """
    future = getattr(saved, "upload_completion", saved)
    # The tensors may change before the save has finished.
    known = _announce.numbers(metrics or {})
    several = _is_distributed()
    if not isinstance(future, Future):
        _announce.announce(agent, path, step=step, metrics=known, is_of_all_ranks=several)
        return

    def announce(done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            _announce.announce(agent, path, step=step, metrics=known, is_of_all_ranks=several)

    future.add_done_callback(announce)


def _is_distributed() -> bool:
    # A process that has a group has imported it.
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
