"""The durable steps of a run, one after another, restored on this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Type

from . import errors
from ._program import PathLike, Remotes, arguments_of, environment, program
from ._results import Document, FollowedStep

#: How long the program may take to end when it is closed.
_ENDED_WITHIN_SECONDS = 30.0


class FollowedSteps(Iterator[FollowedStep]):
    """The steps that `follow` restores. It is an iterator, and a context manager that ends the program."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._confirms = False
        self._is_closed = False
        self._process = subprocess.Popen(
            [program(), "--json", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )

    def __iter__(self) -> FollowedSteps:
        return self

    def __next__(self) -> FollowedStep:
        """Declares the step before finished, waits for the next one, and returns it."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        if self._confirms:
            self._confirms = False
            # If the program has ended, its last document says why.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(b"\n")
                process.stdin.flush()
        while not self._is_closed:
            line = process.stdout.readline()
            if not line:
                break
            document: Document = json.loads(line)
            if isinstance(document.get("error"), dict):
                error = errors.from_document(document["error"])
                self.close()
                if isinstance(error, errors.NotFound):
                    # No new step appeared within the timeout.
                    raise StopIteration
                raise error
            if document["event"] == "restored":
                self._confirms = True
                return FollowedStep(
                    step=document["step"],
                    attempt=document["attempt"],
                    path=Path(document["path"]),
                    passed_over=tuple(step["step"] for step in document["passed_over"]),
                    document=document,
                    revision=document.get("revision", 1),
                )
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the program. A step for which the next one was not asked for is not finished: it comes again."""
        if self._is_closed:
            return
        self._is_closed = True
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.terminate()
        try:
            process.wait(timeout=_ENDED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> FollowedSteps:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def follow(
    run: Optional[str] = None,
    *,
    into: PathLike,
    remote: Optional[Remotes] = None,
    include: Sequence[str] = (),
    every: Optional[int] = None,
    all_steps: bool = False,
    keep: int = 2,
    interval: float = 30.0,
    timeout: Optional[float] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
) -> FollowedSteps:
    """Waits for the durable steps of a run, and returns each restored into the directory `into`, every byte verified.

        for step in stepvault.follow("my-run", into="steps", remote="s3://bucket/prefix"):
            evaluate(step.path, step.step)

    If several steps became durable meanwhile, the newest comes next; with `all_steps` each of them, the oldest first,
    and an older one that becomes durable later comes then. A step is finished when the loop asks for the next one,
    and does not come again, also in another process; one that the loop left by `break`, or by an exception, comes
    again. The last `keep` steps stay in the directory.

    The loop ends if no new step appears within `timeout` seconds. A remote that does not answer is waited for.

    Raises:
        UsageError: the options are wrong.
        Held: another process follows into the directory.
        StepvaultError: anything else; the class follows the kind of the error.
    """
    arguments: List[str] = ["follow", "--confirm", f"--into={Path(into).absolute()}", f"--keep={keep}"]
    arguments += [f"--interval={_duration(interval)}"]
    arguments += [f"--include={pattern}" for pattern in include]
    arguments += [f"--every={every}"] if every is not None else []
    arguments += ["--all"] if all_steps else []
    arguments += [f"--timeout={_duration(timeout)}"] if timeout is not None else []
    return FollowedSteps([*arguments, *arguments_of(run=run, remote=remote, local=local, config=config)])
