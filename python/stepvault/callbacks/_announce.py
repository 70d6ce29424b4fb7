"""What all callbacks do."""

from __future__ import annotations

import logging
from typing import Any, Mapping, Optional

from .. import errors
from .._agent import Agent
from .._program import PathLike
from .._ranks import local_rank
from .._results import Announced, Drained

_LOGGER = logging.getLogger("stepvault")


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that are numbers; tensors of one element are."""
    found = {}
    for name, value in metrics.items():
        # Of a tensor; it warns where it is converted in another way.
        item = getattr(value, "item", None)
        try:
            found[str(name)] = float(value if item is None else item())
        except (TypeError, ValueError, RuntimeError):
            continue
    return found


def announce(
    agent: Agent,
    path: PathLike,
    *,
    step: Optional[int] = None,
    metrics: Optional[Mapping[str, Any]] = None,
    is_of_all_ranks: bool = False,
) -> Optional[Announced]:
    """Announces a step; a failure is a warning. A step of all ranks is announced by each, and sealed with the last.

    One of several ranks that the launcher does not number is left to the agent's own search.
    """
    rank = local_rank() if is_of_all_ranks else None
    if is_of_all_ranks and rank is None:
        _LOGGER.info("%s is not announced: it is not known how many ranks this node has", path)
        return None
    try:
        announced = agent.announce(path, step=step, metrics=numbers(metrics or {}), rank=rank)
    except errors.StepvaultError as error:
        _LOGGER.warning("cannot announce %s: %s", path, error)
        return None
    if metrics and announced.is_sealed and not announced.is_newly_sealed:
        _LOGGER.info("%s was sealed before it was announced: without these metrics", path)
    return announced


def wait_at_end(agent: Agent) -> Drained:
    """Waits until everything that was announced is durable, within the agent's deadline for the end."""
    try:
        drained = agent.wait_for_announced(agent.drain_deadline_seconds)
    except errors.StepvaultError as error:
        _LOGGER.warning("cannot wait for the agent: %s", error)
        return Drained(is_durable=None, not_durable=(), document={})
    for left in drained.not_durable:
        _LOGGER.warning("%s", left["reason"])
    return drained
