"""Each test has a place of its own: a trainer's directory, a directory as the remote, and the built program."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import stepvault

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
PATIENCE_SECONDS = 120


def until(what, condition):
    """Waits until a condition holds, and returns its value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


class Place:
    """A run of a trainer."""

    def __init__(self, path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.remote = path / "remote"
        self.vault = path / ".stepvault"
        self.log = path / "agent.log"
        self.checkpoints.mkdir()
        self.remote.mkdir()

    def options(self, **more):
        # Only announcements seal: each test that needs the search says so.
        settings = {"run.my-run.quiet-time": "1h", **more.pop("settings", {})}
        return {"run": "my-run", "remote": self.remote, "log": self.log, "settings": settings, **more}

    def watch(self, **more):
        return stepvault.watch(self.checkpoints, **self.options(**more))

    def save(self, step, content=b"weights"):
        path = self.checkpoints / f"step_{step}"
        path.mkdir()
        (path / "weights.bin").write_bytes(content)
        return path

    def script(self, text, **more):
        """Starts a script that has this place's `watch` and `save`."""
        head = f"""
            import os, signal, sys, time
            from pathlib import Path
            sys.path.insert(0, {str(PACKAGE / "tests")!r})
            import stepvault
            from conftest import Place
            place = object.__new__(Place)
            place.checkpoints, place.remote = Path({str(self.checkpoints)!r}), Path({str(self.remote)!r})
            place.log = Path({str(self.log)!r})
        """
        code = textwrap.dedent(head) + textwrap.dedent(text)
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )

    def steps(self):
        """The steps that are durable on the remote."""
        listed = stepvault.list_steps(run="my-run", remote=self.remote, local=self.vault)
        return sorted(step.step for step in listed if step.remotes)

    def agents(self):
        """The process numbers of this place's agents."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                command = (process / "cmdline").read_bytes()
                ended = b"\nState:\tZ" in (process / "status").read_bytes()
            except OSError:
                continue
            if b"\0agent\0" in command and str(self.remote).encode() in command and not ended:
                found.append(int(process.name))
        return found


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for agent in made.agents():
        os.kill(agent, signal.SIGKILL)


def pytest_configure():
    built = ROOT / "target" / "debug" / "stepvault"
    os.environ.setdefault("STEPVAULT_PROGRAM", str(built))
    os.environ["PYTHONPATH"] = str(PACKAGE)
    for name in list(os.environ):
        if name.startswith("STEPVAULT_") and name not in ("STEPVAULT_PROGRAM", "STEPVAULT_BLESS"):
            del os.environ[name]
