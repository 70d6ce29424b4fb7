"""Progress of the uploads, as one line of a terminal or a notebook that is written again and again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, Dict, List

from . import errors
from ._socket import ask

_INTERVAL_SECONDS = 0.5
_BAR_CHARACTERS = 20


class ProgressLine:
    """Shows the uploads of the agent behind a socket until it is closed."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._closed = threading.Event()
        self._shown = ""
        self._thread = threading.Thread(target=self._show, name="stepvault-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Clears the line."""
        self._closed.set()
        self._thread.join()

    def _show(self) -> None:
        while not self._closed.wait(_INTERVAL_SECONDS):
            try:
                uploads = ask(self._socket, "GET", "/v1/status").get("uploads", [])
            except errors.StepvaultError:
                uploads = []
            self._write(line(uploads))
        self._write("")

    def _write(self, text: str) -> None:
        if text or self._shown:
            # Other output begins at the start of the line then.
            print(text.ljust(len(self._shown)), end="\r", file=sys.stderr, flush=True)
        self._shown = text


def line(uploads: List[Dict[str, Any]]) -> str:
    """Returns the line that shows these uploads."""
    return "  ".join(_shown(upload) for upload in uploads)


def _shown(upload: Dict[str, Any]) -> str:
    done, size = upload["done_bytes"], upload["bytes"]
    share = done / size if size else 1.0
    full = int(share * _BAR_CHARACTERS)
    bar = "█" * full + "░" * (_BAR_CHARACTERS - full)
    return f"step {upload['step']} to {upload['remote']}: {share:4.0%} {bar} {done / 1e6:,.0f}/{size / 1e6:,.0f} MB"
