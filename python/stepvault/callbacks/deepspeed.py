"""DeepSpeed.

import deepspeed
import stepvault
from stepvault.callbacks.deepspeed import save_checkpoint

engine, *_ = deepspeed.initialize(model=model, config=config)
agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
if agent.restore() is not None:
    engine.load_checkpoint("checkpoints")
for step, batch in enumerate(batches):
    loss = engine(batch)
    engine.backward(loss)
    engine.step()
    if step % 100 == 0:
        save_checkpoint(engine, agent, "checkpoints", metrics={"loss": loss})
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional

from .._agent import Agent
from . import _announce


def save_checkpoint(
    engine: Any,
    agent: Agent,
    save_dir: str,
    tag: Optional[str] = None,
    *,
    metrics: Optional[Mapping[str, Any]] = None,
    **options: Any,
) -> Any:
    """Calls `engine.save_checkpoint` on every rank, and announces the step: the last one finds all files."""
    tag = f"global_step{engine.global_steps}" if tag is None else tag
    saved = engine.save_checkpoint(save_dir, tag=tag, **options)
    _announce.announce(agent, Path(save_dir) / tag, metrics=metrics)
    return saved
