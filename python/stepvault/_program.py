"""Finds the program, runs its commands, and reads their JSON documents."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

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
        ("--run", run),
        ("--local", local),
        ("--config", config),
        ("--node", node),
        ("--nodes", nodes),
    ]:
        if value is not None:
            arguments += [f"{option}={os.fspath(value) if not isinstance(value, int) else value}"]
    return arguments + [f"--remote={url}" for url in remote_urls(remote)]


def answer(arguments: Sequence[str], *, accepts: Sequence[int] = (0,)) -> Dict[str, Any]:
    """Runs a command and returns its document. Its messages go to this process's standard error at its end, unless it
    fails: the exception has what it says.

    Raises:
        StepvaultError: the command failed; the class follows the kind of the error.
    """
    # A signal of the terminal is for the command too: it ends, and says that it was interrupted.
    command = [program(), "--json", *arguments]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment())
    try:
        document: Dict[str, Any] = json.loads(ran.stdout)
    except ValueError as error:
        told = ran.stderr.decode(errors="replace").strip() or "it printed nothing"
        raise errors.StepvaultError(
            f"stepvault {arguments[0]} ended with code {ran.returncode} and without a document: {told}"
        ) from error
    if isinstance(document.get("error"), dict) and set(document) == {"error", "format"}:
        raise errors.from_document(document["error"])
    sys.stderr.write(ran.stderr.decode(errors="replace"))
    if ran.returncode not in accepts:
        raise errors.StepvaultError(f"stepvault {arguments[0]} ended with code {ran.returncode}: {_reasons(document)}")
    return document


def _reasons(document: Dict[str, Any]) -> str:
    failed = [*document.get("failed", []), *document.get("remotes", [])]
    told = [entry.get("error") or entry.get("message") for entry in failed if isinstance(entry, dict)]
    texts = [reason["message"] if isinstance(reason, dict) else str(reason) for reason in told if reason]
    return "; ".join(texts) or "its document has the details"
