"""Accelerate.

import stepvault
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from stepvault.callbacks.accelerate import save_state

project = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(project_config=project)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
agent = stepvault.watch("project/checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
path = agent.restore()
if path is not None:
    accelerator.load_state(str(path))
for epoch in range(epochs):
    loss = train(model, optimizer, loader)
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
