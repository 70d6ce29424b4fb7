"""Accelerate.

import stepvault
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from stepvault.callbacks.accelerate import save_state

project = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(project_config=project)
model = torch.nn.Linear(64, 64)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
agent = stepvault.watch("project/checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
if path is not None:
    accelerator.load_state(str(path))
    project.iteration = int(path.name.partition("_")[2]) + 1  # the number of the next save
for save in range(project.iteration, 20):
    for _ in range(50):
        loss = (model(torch.randn(32, 64, device=accelerator.device)) ** 2).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    save_state(accelerator, agent, metrics={"loss": loss})
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from accelerate import Accelerator

from .._agent import Agent
from . import _announce


def save_state(
    accelerator: Accelerator,
    agent: Agent,
    output_dir: Optional[str] = None,
    *,
    step: Optional[int] = None,
    metrics: Optional[Mapping[str, Any]] = None,
    **options: Any,
) -> str:
    """Calls `accelerator.save_state` on every process, and announces the step. Returns its path."""
    path: str = accelerator.save_state(output_dir, **options)
    # The files of the other processes of the node are complete then.
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        _announce.announce(agent, path, step=step, metrics=metrics)
    return path
