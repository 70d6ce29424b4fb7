"""What the functions of this package return. `document` is the answer of the program, as its JSON reference says."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

Document = Dict[str, Any]


@dataclass(frozen=True)
class Announced:
    """The outcome of an announcement."""

    step: Optional[int]
    """The step's number; None until it is sealed."""
    attempt: Optional[int]
    """Its attempt; None until it is sealed."""
    is_sealed: bool
    """Whether it is in the vault: the trainer may modify or delete its files."""
    is_newly_sealed: bool
    """Whether it was sealed for this announcement; False if it was in the vault already, with the metrics of then."""
    document: Document = field(repr=False)


@dataclass(frozen=True)
class Progress:
    """How far a step has come."""

    step: int
    attempt: Optional[int]
    reached: Optional[str]
    """`staged`, `uploaded` or `durable`; None if it is not sealed."""
    document: Document = field(repr=False)


@dataclass(frozen=True)
class Drained:
    """What an agent left when this process detached from it."""

    is_durable: Optional[bool]
    """Whether everything is durable; None while the agent runs on for other processes, or if it did not tell."""
    not_durable: Tuple[Document, ...]
    """The steps that are not durable, each with its remote and the reason."""
    document: Document = field(repr=False)
    unsealed: Tuple[Document, ...] = ()
    """What may be a finished step and could not be sealed: each with its path and the reason."""


@dataclass(frozen=True)
class Step:
    """A step of a run, over all tiers."""

    step: int
    attempt: int
    name: Optional[str]
    bytes: Optional[int]
    remotes: Tuple[str, ...]
    """The remotes that have committed it."""
    local: Optional[str]
    """`staged` or `durable` if the vault holds it."""
    is_pinned: bool
    metrics: Dict[str, float]
    document: Document = field(repr=False)
    revision: int = 1
    """Which state of the step it is; later ones have files that were added or changed."""
    began: Optional[str] = None
    """The evidence with which its attempt began, if it is the first step of one."""


@dataclass(frozen=True)
class FollowedStep:
    """A step that `follow` has restored."""

    step: int
    attempt: int
    path: Path
    """Where it is: a path that never holds anything else."""
    passed_over: Tuple[int, ...]
    """Older steps that became durable meanwhile, and do not come."""
    document: Document = field(repr=False)
    revision: int = 1
    """Which state of the step it is."""


def _megabytes(size_bytes: Optional[int]) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:,.1f}"


def _attempt(step: Document) -> str:
    """Returns the attempt of a step for a table, with its revision unless that is the first."""
    return str(step["attempt"]) + (f" (revision {step['revision']})" if "revision" in step else "")


def _table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cells(kind: str, values: Sequence[object]) -> str:
        return "".join(f"<{kind}>{html.escape(str(value))}</{kind}>" for value in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><tr>{cells('th', titles)}</tr>{body}</table>"


class Steps(List[Step]):
    """The steps of a run, the newest first. A notebook shows them as a table."""

    document: Document

    def __init__(self, document: Document) -> None:
        self.document = document
        super().__init__(
            Step(
                step=step["step"],
                attempt=step["attempt"],
                name=step["name"],
                bytes=step["bytes"],
                remotes=tuple(step["remotes"]),
                local=step["local"],
                is_pinned=step["pinned"],
                metrics=step["metrics"],
                document=step,
                revision=step.get("revision", 1),
                began=step.get("began"),
            )
            for step in document["steps"]
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                step.step,
                _attempt(step.document),
                step.name,
                _megabytes(step.bytes),
                step.local or "",
                ", ".join(step.remotes),
            )
            for step in self
        ]
        titles = ("step", "attempt", "name", "MB", "vault", "durable on")
        return _table(f"steps of {self.document['run']}", titles, rows)


@dataclass(frozen=True)
class Status:
    """The state of a vault, from this node's records, and of its agent. A notebook shows it as tables."""

    run: str
    vault: Path
    steps: int
    """Number of sealed steps."""
    newest_step: Optional[int]
    has_agent: bool
    """Whether an agent answers."""
    problems: Tuple[str, ...]
    """What keeps the agent from working."""
    document: Document = field(repr=False)

    @classmethod
    def of(cls, document: Document) -> Status:
        """Reads the document of the command."""
        agent = document["agent"]
        return cls(
            run=document["run"],
            vault=Path(document["vault"]),
            steps=document["steps"],
            newest_step=document["newest_step"],
            has_agent=agent is not None,
            problems=tuple(agent["problems"]) if agent else (),
            document=document,
        )

    def _repr_html_(self) -> str:
        agent = "an agent answers" if self.has_agent else "no agent answers"
        caption = f"{self.run}: {self.steps} steps in {self.vault}; {'; '.join((agent, *self.problems))}"
        rows = [
            (step["step"], _attempt(step), _megabytes(step["bytes"]), on["remote"], on["state"], on["reason"] or "")
            for step in self.document["newest_steps"]
            for on in step["remotes"]
        ]
        return _table(caption, ("step", "attempt", "MB", "remote", "state", "reason"), rows)
