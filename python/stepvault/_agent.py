"""The agent beside a training script."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, Union

from . import _commands, errors
from ._program import PathLike, Remotes, answer, arguments_of, environment, program, remote_urls, run_name
from ._progress import ProgressLine
from ._results import Announced, Document, Drained, Progress, Status, Steps
from ._socket import GRACE_SECONDS, MAXIMUM_PATH_BYTES, NoAnswer, ask

_HELD = 13
#: How long an agent may take to answer after its start, beyond the time for which one drains for an earlier process.
_STARTED_WITHIN_SECONDS = 60.0
#: How long an agent tries the remotes out for the first process that attaches.
_REMOTES_WITHIN_SECONDS = 20.0
_LONGEST_WAIT_SECONDS = 600
_POLL_SECONDS = 0.05
#: How long an answer may take of an agent that has not answered the last request.
_SILENT_GRACE_SECONDS = 1.0
#: File descriptor of this process's standard error.
_STANDARD_ERROR = 2


#: Whether the interpreter exits.
_ending = threading.Event()


class Agent:
    """The agent that serves this process, from `watch`."""

    def __init__(
        self, run: str, directory: Path, local: Path, remotes: Sequence[str], drain_deadline_seconds: float
    ) -> None:
        self.run = run
        self.directory = directory
        self.local = local
        self.remotes = list(remotes)
        self.drain_deadline_seconds = drain_deadline_seconds
        #: Whether the agent runs for as long as this process. A service's agent is left running.
        self.is_followed = False
        self._socket = local / "agent.sock"
        self._start: Optional[_Start] = None
        self._owner = os.getpid()
        self._announced: Dict[int, int] = {}
        self._drained: Optional[Drained] = None
        self._progress: Optional[ProgressLine] = None
        self._is_silent = False
        self._unusable: List[str] = []
        self._lock = threading.Lock()

    def announce(
        self,
        path: PathLike,
        *,
        step: Optional[int] = None,
        metrics: Optional[Mapping[str, float]] = None,
        name: Optional[str] = None,
        rank: Optional[Tuple[int, int]] = None,
        wait_until: Optional[str] = None,
        timeout: float = 600.0,
    ) -> Announced:
        """Declares a step finished: it is sealed at once, without a quiet time.

        Metrics that are not finite numbers are left out. `rank` is for a step that several ranks of this node write:
        the number of this one on the node, from 0, and how many there are. Each announces when its files are written,
        none waits for another, and the step is sealed with the last. `wait_until` waits until the step is `staged`,
        `uploaded` or `durable`.

        Raises:
            SourceChanged: the step is incomplete.
            Damaged: the step is damaged by the rules of its format.
            Unreachable: no agent answers.
        """
        body: Dict[str, Any] = {"run": self.run, "path": str(Path(path).absolute())}
        numbers = {key: float(value) for key, value in (metrics or {}).items() if math.isfinite(value)}
        for member, value in (("step", step), ("name", name), ("metrics", numbers or None)):
            if value is not None:
                body[member] = value
        if rank is not None:
            body["rank"] = {"number": rank[0], "of": rank[1], "process_id": os.getpid()}
        document = self._ask("POST", "/v1/announce", body)
        deadline = time.monotonic() + timeout
        while wait_until is not None and document["state"] == "queued" and time.monotonic() < deadline:
            route = f"/v1/announcements/{document['announcement_id']}"
            document = self._ask("GET", route, within_seconds=10)
        announced = Announced(
            step=document["step"],
            attempt=document["attempt"],
            is_sealed=document["state"] == "sealed",
            is_newly_sealed=document["newly_sealed"],
            document=document,
        )
        if announced.step is not None and announced.attempt is not None:
            self._announced[announced.step] = announced.attempt
        if wait_until is not None:
            if announced.step is None:
                raise errors.NotReached(f"{path} was not sealed within {timeout:g} s")
            left = max(0.0, deadline - time.monotonic())
            self.wait(announced.step, until=wait_until, timeout=left, attempt=announced.attempt)
        return announced

    def wait(
        self, step: int, until: str = "durable", timeout: float = 600.0, *, attempt: Optional[int] = None
    ) -> Progress:
        """Waits until a step is `staged`, `uploaded` or `durable`.

        Without `attempt` the one that was announced here counts, else the newest that has the step.

        Raises:
            NotReached: it has not reached the state in time.
            StepFailed: it will not reach it by waiting.
            Unreachable: no agent answers.
        """
        deadline = time.monotonic() + timeout
        attempt = self._announced.get(step) if attempt is None else attempt
        while True:
            seconds = min(_LONGEST_WAIT_SECONDS, max(0, math.ceil(deadline - time.monotonic())))
            body: Dict[str, Any] = {"run": self.run, "step": step, "for": until, "timeout_seconds": seconds}
            if attempt is not None:
                body["attempt"] = attempt
            document = self._ask("POST", "/v1/wait", body, within_seconds=seconds)
            if document["outcome"] == "reached":
                return Progress(step=step, attempt=document["attempt"], reached=document["reached"], document=document)
            reasons = [document["reason"]] if document["reason"] else []
            reasons += [f"{on['remote']}: {on['reason']}" for on in document["remotes"] if on["reason"]]
            told = f"step {step} of '{self.run}' is not {until}" + (": " if reasons else "") + "; ".join(reasons)
            if document["outcome"] == "failed":
                raise errors.StepFailed(told)
            if time.monotonic() >= deadline:
                raise errors.NotReached(f"{told} after {timeout:g} s")

    def _ask(
        self, method: str, route: str, body: Optional[Dict[str, Any]] = None, *, within_seconds: float = 0.0
    ) -> Document:
        """Asks the agent. One that followed this process and that has died is started again, once."""
        # A trainer waits once for an agent that is stopped, or whose disk hangs, and not again at each save.
        grace_seconds = _SILENT_GRACE_SECONDS if self._is_silent else GRACE_SECONDS
        try:
            document = ask(
                self._socket, method, route, body, within_seconds=within_seconds, grace_seconds=grace_seconds
            )
            self._is_silent = False
            return document
        except NoAnswer:
            self._is_silent = True
            raise
        except errors.Unreachable:
            is_ours = self.is_followed and self._drained is None and os.getpid() == self._owner
            if not is_ours or self._start is None or self._start.is_running():
                raise
            _warn("the agent has ended: starting it again")
            _connect(self, self._start)
            return ask(self._socket, method, route, body, within_seconds=within_seconds)

    def stage(
        self, step: int, *, metrics: Optional[Mapping[str, float]] = None, **options: Any
    ) -> ContextManager[Path]:
        """A private directory to write a step to, which is committed and announced when the block ends.

        `options` are those of `stepvault.stage`.
        """
        return self._stage(step, metrics, options)

    @contextlib.contextmanager
    def _stage(self, step: int, metrics: Optional[Mapping[str, float]], options: Dict[str, Any]) -> Iterator[Path]:
        with _commands.stage(self.directory, step, **options) as staged:
            yield staged
        self.announce(self.directory / staged.name, step=step, metrics=metrics)

    def restore(self, **options: Any) -> Optional[Path]:
        """Restores the newest valid step into the directory: see `stepvault.restore`."""
        return _commands.restore(self.directory, run=self.run, remote=self.remotes, local=self.local, **options)

    def list_steps(self) -> Steps:
        """Lists the steps of the run over all tiers, the newest first."""
        return _commands.list_steps(run=self.run, remote=self.remotes, local=self.local)

    def status(self) -> Status:
        """Returns the state of the vault and of the agent."""
        return _commands.status(run=self.run, remote=self.remotes, local=self.local)

    def pin(self, step: int, *, pinned: bool = True) -> Document:
        """Keeps a step on every tier, regardless of the keep rules; with `pinned=False`, no longer."""
        return _commands.pin(step, pinned=pinned, run=self.run, remote=self.remotes, local=self.local)

    def drain(self, deadline: Optional[float] = None) -> Drained:
        """Tells the agent that this process writes no checkpoints any longer, and waits until what it wrote is durable.

        The last of the processes that an agent follows waits until the agent has ended; an agent that runs as a service
        goes on, and the steps announced here are waited for. `deadline` is in seconds, by default that of `watch`. A
        second call returns what the first one did; so does a call in a forked process, without asking the agent.

        Raises:
            Unreachable: no agent answers.
        """
        with self._lock:
            if self._drained is None:
                if os.getpid() != self._owner:
                    return Drained(is_durable=None, not_durable=(), document={})
                try:
                    self._drained = self._drain(self.drain_deadline_seconds if deadline is None else deadline)
                finally:
                    if self._progress is not None:
                        self._progress.close()
            return self._drained

    def _drain(self, deadline: float) -> Drained:
        if not self.is_followed:
            return self.wait_for_announced(deadline)
        body = {"process_id": self._owner, "deadline_seconds": math.ceil(deadline), "wait": True}
        # It counts the deadline from when it has read the request.
        document = ask(self._socket, "POST", "/v1/detach", body, within_seconds=deadline + GRACE_SECONDS)
        process = self._start.process if self._start is not None else None
        if document["ended"] and process is not None:
            # It has answered and exits.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10.0)
        left = tuple(step for step in document["not_durable"] if step["required"])
        unsealed = tuple(document["unsealed"])
        return Drained(is_durable=document["durable"], not_durable=left, unsealed=unsealed, document=document)

    def wait_for_announced(self, timeout: float = 600.0) -> Drained:
        """Waits until every step that was announced here is durable, and returns those that are not by then."""
        end = time.monotonic() + timeout
        left: List[Document] = []
        for step, attempt in sorted(self._announced.items()):
            try:
                self.wait(step, timeout=max(0.0, end - time.monotonic()), attempt=attempt)
            except (errors.NotReached, errors.StepFailed) as error:
                left.append({"run": self.run, "step": step, "attempt": attempt, "reason": error.message})
        return Drained(is_durable=not left, not_durable=tuple(left), document={})

    def _note_remote(self, tried: Document, strict: bool) -> None:
        """Raises or warns if a remote cannot be used."""
        if tried["error"] is None:
            return
        cause = errors.from_document(tried["error"])
        self._unusable.append(f"remote {tried['remote']} cannot be used: {cause}")
        _warn(self._unusable[-1])
        if strict and tried["needs_operator"]:
            with contextlib.suppress(errors.StepvaultError):
                self.drain(deadline=5.0)
            raise cause

    def _drain_at_exit(self) -> None:
        if os.getpid() != self._owner or self._drained is not None:
            return
        try:
            drained = self.drain()
        except errors.StepvaultError as error:
            _warn(f"cannot wait for the agent: {error}")
            return
        except KeyboardInterrupt:
            _warn("interrupted: the agent goes on with its uploads until its deadline, and this process does not wait")
            return
        for text in self._unusable if not drained.is_durable else []:
            _warn(text)
        if self._start is not None and self._start.tells():
            # The agent's own report says the same.
            return
        for step in drained.not_durable:
            _warn(f"step {step['step']} of '{step['run']}' is not durable: {step['reason']}")
        for entry in drained.unsealed:
            _warn(f"{entry['path']} is not sealed: {entry['reason']}")

    def _end(self) -> None:
        """Runs when the interpreter exits."""
        _ending.set()
        self._drain_at_exit()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._drain_at_exit()


def watch(
    directory: PathLike,
    *,
    run: str,
    remote: Remotes,
    keep_last: Optional[int] = None,
    keep_local_last: int = 2,
    announced: bool = False,
    local: Optional[PathLike] = None,
    node: Optional[str] = None,
    nodes: Union[int, str, None] = None,
    drain_deadline: float = 90.0,
    settings: Optional[Mapping[str, Any]] = None,
    log: Optional[PathLike] = None,
    progress: bool = False,
    handle_sigterm: bool = True,
    strict: bool = True,
) -> Agent:
    """Starts the agent beside this process, or finds the one that serves the vault, and drains it at the end.

    The agent seals and uploads each step that appears in `directory`; `announce` makes that immediate. It drains when
    this process ends, in whatever way: regularly, by an exception, by SIGTERM, or killed. Of several processes that
    watch with one vault, such as the ranks of a node, the first one starts the agent, and it drains after the last.

    Args:
        directory: Where the trainer writes its steps.
        run: Name of the run. Variables in braces are replaced: `"sweep-{SLURM_ARRAY_TASK_ID}"`, `{hostname}`.
        remote: A URL or several: `s3://bucket/prefix`, `gs://…`, `az://…`, or a directory, which is created if
            only its last component is missing and other files are beside it.
        keep_last: How many steps each remote keeps; by default all.
        keep_local_last: How many steps the vault keeps, of those that are durable.
        announced: Whether every step is announced, as the callbacks do. One that is not is then sealed after a quiet
            time only; otherwise a step may be sealed a moment before its announcement, without its metrics.
        local: The vault; by default `.stepvault` beside `directory`, on the same filesystem.
        node: Name of this node, if neither torchrun nor Slurm tells it.
        nodes: The nodes that write each step together, if neither torchrun nor Slurm tells them.
        drain_deadline: How many seconds the agent may take at the end.
        settings: Further keys of the configuration: `{"agent.nice": 5, "run.my-run.complete": "rename"}`.
        log: File for the agent's messages; by default this process's standard error.
        progress: Whether uploads are shown, in a line of standard error that is written again and again.
        handle_sigterm: Whether SIGTERM ends this process as `sys.exit` does, if nothing else handles it.
        strict: Whether a remote that cannot work is an error: no such bucket or directory, no credentials, no right to
            write. Otherwise it is a warning, at once and at the end. One that only does not answer is a warning.

    Raises:
        UsageError: the arguments are invalid.
        StepvaultError: a remote cannot work; the class follows the kind of the error, such as `Denied`.
        Held: the vault is in use by a process that is no agent, or by the agent of another run.
        AgentEnded: the agent ended at its start.
    """
    directory, run = Path(directory).absolute(), run_name(run)
    vault = _commands.vault_beside(directory) if local is None else Path(local).absolute()
    agent = Agent(run, directory, vault, remote_urls(remote), drain_deadline)
    if len(os.fsencode(agent._socket)) > MAXIMUM_PATH_BYTES:
        raise errors.UsageError(
            f"the path of the agent's socket is too long: {agent._socket}: "
            f"the system's limit is {MAXIMUM_PATH_BYTES} bytes",
            "use another vault, with local=",
        )
    configuration: Dict[str, Any] = {
        "local.directory": str(vault),
        "agent.drain-deadline": f"{math.ceil(drain_deadline)}s",
        _key("run", run, "watch"): str(directory),
        _key("run", run, "announced"): announced,
        "keep.local.last": keep_local_last,
        **({} if keep_last is None else {"keep.remote.last": keep_last}),
        **(settings or {}),
    }
    # Text, numbers, booleans and lists are written alike in JSON and in TOML.
    text = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in configuration.items())
    options = ["--config=/dev/stdin", *arguments_of(run=run, remote=agent.remotes, node=node, nodes=nodes)]
    agent._start = _Start(options, text, log)
    for tried in _connect(agent, agent._start):
        agent._note_remote(tried, strict)
    if progress:
        agent._progress = ProgressLine(agent._socket)
    # The agent is drained at the end also if the script keeps no reference.
    atexit.register(agent._end)
    if handle_sigterm:
        end_at_sigterm()
    return agent


def _key(*parts: str) -> str:
    return ".".join(json.dumps(part, ensure_ascii=False) for part in parts)


def _warn(text: str) -> None:
    print(f"stepvault: warning: {text}", file=sys.stderr)


class _Start:
    """Starts the agent, again if necessary."""

    def __init__(self, options: List[str], configuration: str, log: Optional[PathLike]) -> None:
        self.options = options
        self.configuration = configuration.encode()
        self.log = log
        self.process: Optional[subprocess.Popen[bytes]] = None

    def is_running(self) -> bool:
        if self.process is None:
            return False
        # One that is being killed closes its socket before it has ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1.0)
        return self.process.poll() is None

    def tells(self) -> bool:
        """Whether the agent of this start prints its messages on this process's standard error."""
        return self.process is not None and self.log is None

    def refusal(self) -> Optional[errors.StepvaultError]:
        """What is wrong with the options and the configuration; `None` if nothing is."""
        try:
            document = answer(["config", "check", *self.options], accepts=(0, 1, 2), given=self.configuration)
        except errors.StepvaultError as error:
            return error
        found = [": ".join(filter(None, (fault["key"], fault["why"]))) for fault in document["faults"]]
        return errors.UsageError("; ".join(found)) if found else None

    def begin(self) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as opened:
            log = _STANDARD_ERROR if self.log is None else opened.enter_context(Path(self.log).open("ab"))
            # In a session of its own: a signal of the terminal is for this process, which then drains the agent.
            process = subprocess.Popen(
                [program(), "agent", *self.options, f"--follow={os.getpid()}", "--quiet"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.write(self.configuration)
            process.stdin.close()
        return process


def _connect(agent: Agent, start: _Start) -> List[Document]:
    """Attaches to the agent that answers, or starts one, until one of both succeeds. Returns the remotes it tried."""
    within_seconds = agent.drain_deadline_seconds + _STARTED_WITHIN_SECONDS
    deadline = time.monotonic() + within_seconds
    attach = {"run": agent.run, "process_id": agent._owner}
    start.process = None
    why: Optional[errors.StepvaultError] = None
    while time.monotonic() < deadline:
        try:
            answered = ask(agent._socket, "POST", "/v1/attach", attach, within_seconds=_REMOTES_WITHIN_SECONDS)
            agent.is_followed = answered["followed"]
            tried: List[Document] = answered.get("remotes", [])
            return tried
        except errors.NotFound as error:
            raise errors.Held(
                f"another agent serves the vault {agent.local}: {error.message}", "use another vault, with local="
            ) from error
        except (errors.Unreachable, errors.Interrupted) as error:
            # It does not listen yet, or is about to end: the next one begins where it ends.
            why = error
        if start.process is None:
            start.process = start.begin()
        code = start.process.poll()
        if code == _HELD:
            # Another process was faster, or the agent of an earlier one still drains.
            start.process = None
            time.sleep(10 * _POLL_SECONDS)
        elif code is not None:
            refusal = start.refusal()
            if refusal is not None:
                raise refusal
            raise errors.AgentEnded(
                f"the agent ended at its start with code {code}", "look for the cause in its messages"
            )
        time.sleep(_POLL_SECONDS)
    raise errors.Held(
        f"no agent serves the vault {agent.local} within {within_seconds:g} s: {why}",
        "see which process holds it: stepvault status --local VAULT",
    )


def end_at_sigterm() -> None:
    """Lets SIGTERM end this process as `sys.exit` does, so that what is registered for the end runs."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def end(number: int, _frame: Optional[FrameType]) -> None:
        # A second one ends it at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # It is about to end anyway, and waits for the agent.
        if not _ending.is_set():
            sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
