"""The program's commands as functions."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Sequence, Union

from . import errors
from ._program import PathLike, Remotes, answer, arguments_of
from ._ranks import local_rank
from ._results import Document, Status, Steps

_PARTLY = 3
_NONE = 10
_UNREACHABLE = 12


def vault_beside(directory: PathLike) -> Path:
    """Returns the vault that the program uses for a directory of steps where none is named."""
    return Path(directory).absolute().parent / ".stepvault"


def restore(
    directory: PathLike,
    *,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    step: Optional[int] = None,
    local: Optional[PathLike] = None,
    allow_older: bool = False,
    replace: bool = False,
    config: Optional[PathLike] = None,
    node: Optional[str] = None,
    nodes: Union[int, str, None] = None,
) -> Optional[Path]:
    """Restores the newest valid step into the trainer's directory, verified, and writes the pointer that it reads.

    Returns the path to resume from, or None if no tier has a step. What is there already is not fetched.
    Several processes may call it at the same time: they take turns. Of the ranks that a launcher has started on a node,
    the first one restores, and the others get the same path.

    Raises:
        NoneValid: steps exist and none is valid: starting anew would lose them.
        Unreachable: a tier that may have the newest step did not answer; `allow_older` takes an older one.
        StepvaultError: anything else; the class follows the kind of the error.
    """
    arguments = ["restore", f"--into={Path(directory).absolute()}", "--wait-for-turn"]
    _, local_ranks = local_rank() or (0, 1)
    arguments += [f"--rank-process={os.getpid()}"] if local_ranks > 1 else []
    arguments += [f"--step={step}"] if step is not None else []
    arguments += ["--allow-older"] if allow_older else []
    arguments += ["--replace"] if replace else []
    own = local if local is not None or config is not None else vault_beside(directory)
    try:
        document = answer(
            [*arguments, *arguments_of(run=run, remote=remote, local=own, config=config, node=node, nodes=nodes)]
        )
    except errors.NotFound:
        if step is None:
            return None
        raise
    return Path(document["kept"] or document["path"])


def push(
    path: PathLike,
    *,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    step: Optional[int] = None,
    metrics: Optional[Mapping[str, float]] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
) -> Document:
    """Seals one checkpoint and uploads it until it is durable on every required remote.

    Raises:
        StepvaultError: it is not durable everywhere.
    """
    arguments = ["push", str(Path(path).absolute())]
    arguments += [f"--step={step}"] if step is not None else []
    arguments += [f"--metric={name}={value}" for name, value in (metrics or {}).items()]
    return answer([*arguments, *arguments_of(run=run, remote=remote, local=local, config=config)])


def list_steps(
    *,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
) -> Steps:
    """Lists the steps of a run over all tiers, the newest first.

    Raises:
        Unreachable: a tier that may have more steps could not be listed.
    """
    document = answer(
        ["list", *arguments_of(run=run, remote=remote, local=local, config=config)],
        accepts=(0, _PARTLY, _NONE, _UNREACHABLE),
    )
    if document["failed"]:
        raise errors.from_document(document["failed"][0]["error"])
    return Steps(document)


def status(
    *,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
) -> Status:
    """Returns the state of the vault and of its agent; it asks no remote."""
    return Status.of(answer(["status", *arguments_of(run=run, remote=remote, local=local, config=config)]))


def pin(
    step: int,
    *,
    pinned: bool = True,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
) -> Document:
    """Keeps a step on every tier, regardless of the keep rules; with `pinned=False`, no longer."""
    command = "pin" if pinned else "unpin"
    return answer([command, str(step), *arguments_of(run=run, remote=remote, local=local, config=config)])


@contextlib.contextmanager
def stage(
    directory: PathLike,
    step: int,
    *,
    name: Optional[str] = None,
    save_id: Optional[str] = None,
    expect: Sequence[str] = (),
) -> Iterator[Path]:
    """A private directory to write a step to; it appears in `directory` when the block ends without an exception.

    Several processes that stage the same step share it: each leaves the block when all have written.

    Raises:
        StepvaultError: the step cannot be staged or committed; what was written stays.
    """
    arguments: List[str] = ["stage", f"--in={Path(directory).absolute()}", f"--step={step}"]
    arguments += [f"--name={name}"] if name is not None else []
    arguments += [f"--save-id={save_id}"] if save_id is not None else []
    staged = answer(arguments)["path"]
    yield Path(staged)
    answer(["commit", staged, *(f"--expect={glob}" for glob in expect)])
