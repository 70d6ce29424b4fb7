"""Ray Train: hands a checkpoint over to stepvault before Ray copies it to its own storage.

import ray.train
import stepvault
from stepvault.callbacks.ray import report

def train_loop(config):
    agent = stepvault.watch(config["directory"], run="my-run", remote="s3://bucket/prefix", announced=True)
    path = agent.restore()
    model = load(path) if path is not None else new_model()
    for step in range(config["steps"]):
        loss = train(model)
        with agent.stage(step, metrics={"loss": loss}) as directory:
            save(model, directory)
        report(agent, step, {"loss": loss})
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
