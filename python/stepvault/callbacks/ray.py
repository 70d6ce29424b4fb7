"""Ray Train: hands a checkpoint over to stepvault before Ray copies it to its own storage.

import ray.train
import stepvault
import torch
from ray.train.torch import TorchTrainer
from stepvault.callbacks.ray import report

def train(config):
    agent = stepvault.watch(config["directory"], run="my-run", remote="s3://bucket/prefix", announced=True)
    path = agent.restore()
    model = torch.nn.Linear(64, 64)
    if path is not None:
        model.load_state_dict(torch.load(path / "model.pt"))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(0 if path is None else int(path.name.partition("_")[2]) + 1, 20):
        loss = (model(torch.randn(32, 64)) ** 2).mean()
        loss.backward()
        optimizer.step()
        with agent.stage(step, metrics={"loss": loss.item()}) as directory:
            torch.save(model.state_dict(), directory / "model.pt")
        report(agent, step, {"loss": loss.item()})

config = {"directory": "/data/checkpoints"}
TorchTrainer(train, train_loop_config=config, scaling_config=ray.train.ScalingConfig(num_workers=1)).fit()
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import ray.train

from .._agent import Agent
from . import _announce


def report(
    agent: Agent,
    step: int,
    metrics: Mapping[str, Any],
    *,
    path: Optional[str] = None,
    checkpoint: Optional[Any] = None,
    until: str = "staged",
) -> None:
    """Announces the step at `path`, unless it was, waits until it is `until`, and reports the metrics to Ray.

    Without `checkpoint` Ray stores none: the steps are on stepvault's remotes.
    """
    if path is not None:
        _announce.announce(agent, path, step=step, metrics=metrics)
    agent.wait(step, until=until)
    ray.train.report(dict(metrics), checkpoint=checkpoint)
