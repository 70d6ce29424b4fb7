"""DeepSpeed.

import deepspeed
import stepvault
import torch
from stepvault.callbacks.deepspeed import save_checkpoint

model = torch.nn.Linear(64, 64)
config = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
engine, *_ = deepspeed.initialize(model=model, config=config)
agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
if agent.restore() is not None:
    engine.load_checkpoint("checkpoints")
while engine.global_steps < 1000:
    loss = (engine(torch.randn(32, 64, device=engine.device)) ** 2).mean()
    engine.backward(loss)
    engine.step()
    if engine.global_steps % 100 == 0:
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
    """Calls `engine.save_checkpoint` on every rank, and announces the step."""
    tag = f"global_step{engine.global_steps}" if tag is None else tag
    saved = engine.save_checkpoint(save_dir, tag=tag, **options)
    several = engine.world_size > 1
    _announce.announce(agent, Path(save_dir) / tag, metrics=metrics, is_of_all_ranks=several)
    return saved
