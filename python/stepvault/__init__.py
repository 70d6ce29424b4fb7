"""stepvault keeps the checkpoints of a training run safe on machines that may vanish at any time.

    agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", keep_last=5)
    start_from = stepvault.restore("checkpoints", run="my-run", remote="s3://bucket/prefix")

This package starts the program `stepvault`, asks it on its control socket, and reads its JSON documents. It does
nothing to a checkpoint itself. `stepvault.aio` has the same for asyncio.
"""

from . import errors
from ._agent import Agent, watch
from ._commands import list_steps, pin, push, restore, stage, status
from ._follow import FollowedSteps, follow
from ._program import program
from ._results import Announced, Drained, FollowedStep, Progress, Status, Step, Steps
from ._version import __version__
from .errors import (
    AgentEnded,
    Conflict,
    Damaged,
    Denied,
    Held,
    Interrupted,
    NewerFormat,
    NoneValid,
    NoSpace,
    NotFound,
    NotReached,
    ProgramMissing,
    Refused,
    SourceChanged,
    StepFailed,
    StepvaultError,
    Unreachable,
    UsageError,
)

__all__ = [
    "Agent",
    "AgentEnded",
    "Announced",
    "Conflict",
    "Damaged",
    "Denied",
    "Drained",
    "FollowedStep",
    "FollowedSteps",
    "Held",
    "Interrupted",
    "NewerFormat",
    "NoSpace",
    "NoneValid",
    "NotFound",
    "NotReached",
    "ProgramMissing",
    "Progress",
    "Refused",
    "SourceChanged",
    "Status",
    "Step",
    "StepFailed",
    "Steps",
    "StepvaultError",
    "Unreachable",
    "UsageError",
    "__version__",
    "errors",
    "follow",
    "list_steps",
    "pin",
    "program",
    "push",
    "restore",
    "stage",
    "status",
    "watch",
]
