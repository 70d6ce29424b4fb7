"""Orbax's CheckpointManager, as Flax uses it.

import orbax.checkpoint as ocp
import stepvault
from stepvault.callbacks.orbax import announce_finished

agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
agent.restore()
with ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
    start = manager.latest_step()
    state = state if start is None else manager.restore(start, args=ocp.args.StandardRestore(state))
    for step in range(start or 0, steps):
        state, loss = train(state)
        if manager.save(step, args=ocp.args.StandardSave(state)):
            announce_finished(manager, agent, step, metrics={"loss": loss})
"""

from __future__ import annotations

import threading
from typing import Any, Mapping, Optional

from .._agent import Agent
from . import _announce


def announce_finished(
    manager: Any, agent: Agent, step: int, *, metrics: Optional[Mapping[str, Any]] = None
) -> threading.Thread:
    """Announces a step when the manager has finished writing it, from a thread: it waits for nothing itself."""
    known = _announce.numbers(metrics or {})

    def announce() -> None:
        manager.wait_until_finished()
        # Options may give the steps other names, which the manager tells nobody.
        names = getattr(manager, "_step_name_format", None)
        name = str(step) if names is None else names.build_name(step)
        _announce.announce(agent, str(manager.directory / name), step=step, metrics=known)

    thread = threading.Thread(target=announce, name="stepvault-announce")
    thread.start()
    return thread
