"""Requests to an agent on its control socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, Dict, Optional

from . import errors

#: How long an answer may take beyond the time that the request itself waits.
GRACE_SECONDS = 10.0
#: The system's limit of a socket's path.
MAXIMUM_PATH_BYTES = 107


class NoAnswer(errors.Unreachable):
    """An agent that is there and does not answer in time."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))
        # Who listens is told where checkpoints are, and answers what is durable.
        _, user, _ = struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (os.geteuid(), 0):
            raise errors.Denied(
                f"refusing to use the socket: {self._path}: user {user} listens on it",
                "use another vault, with local=",
            )


def ask(
    path: Path,
    method: str,
    route: str,
    body: Optional[Dict[str, Any]] = None,
    *,
    within_seconds: float = 0.0,
    grace_seconds: float = GRACE_SECONDS,
) -> Dict[str, Any]:
    """Sends one request and returns the answer.

    Raises:
        NoAnswer: the agent is there and does not answer in time.
        Unreachable: there is no agent.
        Denied: another user's process listens there.
        StepvaultError: the agent refused; the class follows the kind of the error.
    """
    connection = _UnixConnection(path, within_seconds + grace_seconds)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, route, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        document: Dict[str, Any] = json.loads(response.read())
    except PermissionError as error:
        raise errors.Denied(
            f"cannot use the socket: {path}: {error.strerror}", "use another vault, with local="
        ) from error
    except socket.timeout as error:
        raise NoAnswer(f"the agent does not answer: {path}", "see whether it is stopped or its disk hangs") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise errors.Unreachable(f"no agent answers: {path}: {error}", "start one with stepvault.watch") from error
    finally:
        connection.close()
    if response.status >= 400:
        raise errors.from_document(document["error"])
    return document
