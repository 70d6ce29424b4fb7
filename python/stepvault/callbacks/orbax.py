"""Orbax's CheckpointManager, as Flax uses it.

from pathlib import Path

import jax
import orbax.checkpoint as ocp
import stepvault
from stepvault.callbacks.orbax import announce_finished

gradient = jax.jit(jax.value_and_grad(lambda state, batch: ((batch @ state["weights"]) ** 2).mean()))
state = {"weights": jax.random.normal(jax.random.key(0), (64, 64))}
agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
agent.restore()
options = ocp.CheckpointManagerOptions(save_interval_steps=100, max_to_keep=5)
with ocp.CheckpointManager(Path("checkpoints").absolute(), options=options) as manager:
    latest = manager.latest_step()
    if latest is not None:
        state = manager.restore(latest, args=ocp.args.StandardRestore(state))
    for step in range(latest or 0, 1001):
        loss, change = gradient(state, jax.random.normal(jax.random.key(step), (32, 64)))
        state = jax.tree.map(lambda weight, by: weight - 0.1 * by, state, change)
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
