"""Finds the program, runs its commands, and reads their JSON documents."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import IO, Any, Dict, List, Match, Optional, Sequence, Union

from . import errors
from ._version import __version__

PathLike = Union[str, "os.PathLike[str]"]
Remotes = Union[PathLike, Sequence[PathLike]]

#: Names the program where the wheel's own must not be used.
PROGRAM_VARIABLE = "STEPVAULT_PROGRAM"


@functools.cache
def _checked(program: str) -> str:
    try:
        told = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.ProgramMissing(
            f"cannot run the program: {program}: {error}", "install the package again"
        ) from error
    version = told.stdout.split()[-1] if told.stdout.split() else ""
    if version != __version__:
        raise errors.ProgramMissing(
            f"the program is of another version: {program}: it is {version or 'of no version'}, "
            f"and this package is {__version__}",
            f"install stepvault=={__version__}, or let {PROGRAM_VARIABLE} name a program of this version",
        )
    return program


def program() -> str:
    """Returns the path of the program: `STEPVAULT_PROGRAM`, the one beside this interpreter, or the one on the PATH.

    Raises:
        ProgramMissing: there is none, or it is of another version than this package.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        return _checked(named)
    own = Path(sysconfig.get_path("scripts"), "stepvault")
    found = str(own) if os.access(own, os.X_OK) else shutil.which("stepvault")
    if found is None:
        raise errors.ProgramMissing(
            "the program 'stepvault' is missing",
            f"install the package with pip, or let {PROGRAM_VARIABLE} name the program",
        )
    return _checked(found)


def environment() -> Dict[str, str]:
    """Returns the environment of the program, for which the variable that names it is a mistake."""
    return {name: value for name, value in os.environ.items() if name != PROGRAM_VARIABLE}


def remote_url(remote: PathLike) -> str:
    """Returns the URL of a remote: a directory's is `file://`."""
    text = os.fspath(remote)
    if "://" in text:
        return text
    return Path(text).absolute().as_uri()


def remote_urls(remotes: Optional[Remotes]) -> List[str]:
    """Returns the URLs of one remote, of several or of none."""
    if remotes is None:
        return []
    if isinstance(remotes, (str, os.PathLike)):
        return [remote_url(remotes)]
    return [remote_url(remote) for remote in remotes]


def run_name(run: str) -> str:
    """Returns the name of a run with its variables: `sweep-{SLURM_ARRAY_TASK_ID}`, `{hostname}`.

    Raises:
        UsageError: a variable is not set.
    """

    def value(match: Match[str]) -> str:
        name = match[1]
        found = os.uname().nodename if name == "hostname" else os.environ.get(name)
        if not found:
            raise errors.UsageError(f"the name of the run is {run}: the variable {name} is not set", "set it")
        return found

    return re.sub(r"{([A-Za-z0-9_]+)}", value, run)


def arguments_of(
    *,
    run: Optional[str] = None,
    remote: Optional[Remotes] = None,
    local: Optional[PathLike] = None,
    config: Optional[PathLike] = None,
    node: Optional[str] = None,
    nodes: Union[int, str, None] = None,
) -> List[str]:
    """Returns the global options."""
    arguments: List[str] = []
    for option, value in [
        ("--run", None if run is None else run_name(run)),
        ("--local", local),
        ("--config", config),
        ("--node", node),
        ("--nodes", nodes),
    ]:
        if value is not None:
            arguments += [f"{option}={os.fspath(value) if not isinstance(value, int) else value}"]
    return arguments + [f"--remote={url}" for url in remote_urls(remote)]


#: After how long a command's messages are shown while it runs.
_SILENT_SECONDS = 5.0


def answer(arguments: Sequence[str], *, accepts: Sequence[int] = (0,), given: bytes = b"") -> Dict[str, Any]:
    """Runs a command, with this on its standard input, and returns its document.

    Its messages go to this process's standard error: as they come once it has run for some seconds, and at its end
    unless it fails, for the exception has what it says.

    Raises:
        StepvaultError: the command failed; the class follows the kind of the error.
    """
    # A signal of the terminal is for the command too: it ends, and says that it was interrupted.
    command = [program(), "--json", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as ran:
        assert ran.stdin is not None and ran.stdout is not None and ran.stderr is not None
        messages = _Messages(ran.stderr)
        with contextlib.suppress(BrokenPipeError), ran.stdin:
            ran.stdin.write(given)
        printed = ran.stdout.read()
        ran.wait()
        messages.end()
    try:
        document: Dict[str, Any] = json.loads(printed)
    except ValueError as error:
        told = messages.text().strip() or "it printed nothing"
        raise errors.StepvaultError(
            f"stepvault {arguments[0]} ended with code {ran.returncode} and without a document: {told}"
        ) from error
    if isinstance(document.get("error"), dict) and set(document) == {"error", "format"}:
        raise errors.from_document(document["error"])
    messages.show()
    if ran.returncode not in accepts:
        raise errors.StepvaultError(f"stepvault {arguments[0]} ended with code {ran.returncode}: {_reasons(document)}")
    return document


class _Messages:
    """Collects the messages of a command, and shows them from when it has run for some seconds."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: List[str] = []
        self._shown = 0
        self._is_late = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_SILENT_SECONDS, self._show_from_now_on)
        self._timer.daemon = True
        self._timer.start()
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            with self._lock:
                self._lines.append(line.decode(errors="replace"))
            if self._is_late:
                self.show()

    def _show_from_now_on(self) -> None:
        self._is_late = True
        self.show()

    def show(self) -> None:
        with self._lock:
            sys.stderr.write("".join(self._lines[self._shown :]))
            self._shown = len(self._lines)

    def text(self) -> str:
        return "".join(self._lines)

    def end(self) -> None:
        self._timer.cancel()
        self._reader.join()


def _reasons(document: Dict[str, Any]) -> str:
    failed = [*document.get("failed", []), *document.get("remotes", [])]
    told = [entry.get("error") or entry.get("message") for entry in failed if isinstance(entry, dict)]
    texts = [reason["message"] if isinstance(reason, dict) else str(reason) for reason in told if reason]
    return "; ".join(texts) or "its document has the details"
