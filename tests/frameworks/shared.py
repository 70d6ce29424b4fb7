"""What scripts/test-frameworks and scripts/test-python-guide share: environments, and the processes of a test."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stepvault" / "frameworks"
# The variable by which the processes of one start are found, whatever group they are in.
TAG = "FRAMEWORKS_TEST_LIFE"
# Environments: the packages to install with what they need, and those to install without, as they need other versions
# than their neighbours or libraries of a GPU. Composer and torchtune need an older torch.
ENVIRONMENTS = {
    "torch": (
        ["torch", "torchvision", "transformers", "trl", "peft", "accelerate", "lightning", "timm"]
        + ["ultralytics-opencv-headless", "tensorboard", "einops", "tyro", "omegaconf", "jsonschema", "cloudpickle"]
        + ["orjson", "msgpack"],
        ["torchtitan", "torchdata", "torchao", "torch_checkpointing", "spmd_types==0.2.3", "megatron-core"]
        + ["verl", "ray", "tensordict", "pyvers", "hydra-core", "codetiming"],
    ),
    "jax": (["jax", "flax", "optax", "orbax-checkpoint", "keras"], []),
    "older-torch": (["mosaicml", "deepspeed", "torchtune", "torchao==0.11.0", "torchdata==0.11.0"], []),
    "evaluation": (["torch", "transformers", "accelerate", "lightning", "lm-eval"], []),
    "python": ([], []),
}


def skip(reason):
    print(f"skipped: {reason}", file=sys.stderr, flush=True)
    return os.environ.get("FRAMEWORKS_REQUIRED") == "1"


def wait_until(what, condition, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what() if callable(what) else what}")


def python_of(name):
    if name == "python":
        return Path(sys.executable)
    return CACHE / f"venv-{name}" / "bin/python"


def install(name):
    """Whether the virtual environment exists with all of its packages; installed once."""
    python, stamp = python_of(name), CACHE / f"venv-{name}" / "installed"
    packages, alone = ENVIRONMENTS[name]
    if not packages:
        return True
    if stamp.exists() and stamp.read_text().split() == packages + alone:
        return True
    print(f"installing {name}: {' '.join(packages + alone)}", flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(CACHE / f"venv-{name}")], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, *packages], [*pip, "--no-deps", *alone])[: 1 + bool(alone)]:
        if subprocess.run(command).returncode:
            return False
    stamp.write_text("\n".join(packages + alone))
    return True


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def pids_of(tag):
    """The processes that were started with this tag, and those that they have started."""
    value = f"{TAG}={tag}".encode()
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if value in environment_of(path.name)]


def is_running(pid):
    try:
        # The name may have spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pids):
    """Kills all of these processes, and waits for their ends. They are stopped first, so that none reacts to the end of
    another."""
    killed = set()
    for _ in range(50):
        found = pids()
        killed |= set(found)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        # Neither zombies nor processes that are about to end have an environment, so that they are not found again.
        if not found and not any(map(is_running, killed)):
            return
        time.sleep(0.02)


def built_program(root):
    """The program that STEPVAULT_BINARY names, or else the one that is built."""
    binary = os.environ.get("STEPVAULT_BINARY")
    if not binary:
        subprocess.run(["cargo", "build", "--locked", "--package", "stepvault"], cwd=root, check=True)
        binary = Path(os.environ.get("CARGO_TARGET_DIR", root / "target")) / "debug/stepvault"
    return Path(binary).resolve()
