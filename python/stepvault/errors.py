"""The exceptions of this package: each is a `StepvaultError`, most are named after a kind of error of the program."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Type


class StepvaultError(Exception):
    """What failed, on what, and why, as the program says it. `kind` is for programs, `hint` says what to do."""

    kind: ClassVar[str] = "failed"

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


class UsageError(StepvaultError):
    """Invalid arguments, environment or configuration."""

    kind = "usage"


class NotFound(StepvaultError):
    """No tier has such a step."""

    kind = "not-found"


class NoneValid(StepvaultError):
    """Steps exist, but none could be restored."""

    kind = "none-valid"


class Unreachable(StepvaultError):
    """A tier that may have the step, or the agent, did not answer in time."""

    kind = "unreachable"


class Held(StepvaultError):
    """Another process holds the lock or lease."""

    kind = "held"


class Damaged(StepvaultError):
    """Bytes differ from those that were saved, or a file is damaged by the rules of its format."""

    kind = "damaged"


class Conflict(StepvaultError):
    """A name is taken by different content."""

    kind = "conflict"


class SourceChanged(StepvaultError):
    """A step is incomplete, or its files changed while they were read."""

    kind = "source-changed"


class Denied(StepvaultError):
    """Permissions are missing."""

    kind = "denied"


class NoSpace(StepvaultError):
    """A disk is full."""

    kind = "no-space"


class NewerFormat(StepvaultError):
    """A newer version of stepvault wrote the record."""

    kind = "newer-format"


class Refused(StepvaultError):
    """The operation would be unsafe."""

    kind = "refused"


class Interrupted(StepvaultError):
    """The operation was interrupted, or the agent is about to end."""

    kind = "interrupted"


class ProgramMissing(StepvaultError):
    """The program `stepvault` was not found, or is of another version than this package."""

    kind = "program"


class AgentEnded(StepvaultError):
    """The agent ended by itself."""

    kind = "agent-ended"


class StepFailed(StepvaultError):
    """A step cannot reach the state without a person."""

    kind = "step-failed"


class NotReached(StepvaultError, TimeoutError):
    """A step has not reached the state in time."""

    kind = "not-reached"


_OF_KIND: Dict[str, Type[StepvaultError]] = {error.kind: error for error in StepvaultError.__subclasses__()}


def from_document(error: Mapping[str, Any]) -> StepvaultError:
    """Returns the exception for the member `error` of a JSON document."""
    kind = _OF_KIND.get(error["kind"], StepvaultError)
    return kind(error["message"], error.get("hint"))
