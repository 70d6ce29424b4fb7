#!/usr/bin/env python3
"""A trainer of several nodes, each of which saves its own shard; the first also writes the index of the whole step.

The nodes meet at each step, as ranks do in an all-reduce, and stop at the same one.

Prints one line for each event, with the time, so that the scenarios can check what was resumed and what was saved:
`resume STEP FILES` or `resume none`, `saved STEP`, `signal NAME`, `end`.

    train.py DIRECTORY --until STEP --every STEPS --seconds SECONDS_OF_A_STEP --bytes SIZE_OF_A_SHARD
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

arguments = argparse.ArgumentParser()
arguments.add_argument("directory", type=Path)
arguments.add_argument("--until", type=int, required=True)
arguments.add_argument("--every", type=int, default=10)
arguments.add_argument("--seconds", type=float, default=0.1)
arguments.add_argument("--bytes", type=int, default=1 << 20)
arguments = arguments.parse_args()

rank, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
start = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', 0)}"
stop = False


def report(*words):
    # One call, which a signal's handler may make too.
    os.write(1, f"{time.time():.2f} train {start} node{rank}: {' '.join(map(str, words))}\n".encode())


def on_signal(number, _):
    global stop
    stop = True
    report("signal", signal.Signals(number).name)


signal.signal(signal.SIGTERM, on_signal)


def shard(step, of):
    """The bytes of one shard, which tell the launch that wrote it."""
    seed = hashlib.sha256(f"{step} {of}".encode()).digest()
    return json.dumps({"step": step, "rank": of, "launch": start}).encode().ljust(256) + seed * (arguments.bytes // 32)


def save(step):
    directory = arguments.directory / f"step_{step}"
    temporary = arguments.directory / f".tmp_step_{step}"
    temporary.mkdir(parents=True, exist_ok=True)
    (temporary / f"shard_{rank}.bin").write_bytes(shard(step, rank))
    if rank == 0:
        (temporary / "index.json").write_text(json.dumps({"step": step, "nodes": nodes, "launch": start}))
    temporary.rename(directory)
    report("saved", step)


def newest():
    """The newest step here, with the files that it has; a step that lacks one ends the trainer."""
    steps = sorted((int(path.name[5:]), path) for path in arguments.directory.glob("step_*"))
    if not steps:
        report("resume none")
        return 0
    step, path = steps[-1]
    files = sorted(file.name for file in path.iterdir())
    launches = {json.loads(file.read_bytes()[:256])["launch"] for file in path.glob("shard_*.bin")}
    report("resume", step, ",".join(files), "launches", ",".join(sorted(launches)))
    if "index.json" not in files or len(launches) != 1:
        report("broken", step)
        sys.exit(1)
    index = json.loads((path / "index.json").read_text())
    if len(files) != index["nodes"] + 1:
        report("broken", step)
        sys.exit(1)
    return step


def any_stops(step):
    """Whether a node of this start was asked to stop, by the same answer on all of them: the all-reduce of a step."""
    meeting.mkdir(parents=True, exist_ok=True)
    partial = meeting / f".{rank}"
    partial.write_text(str(int(stop)))
    partial.rename(meeting / f"{step}.{rank}")
    (meeting / f"{step - 2}.{rank}").unlink(missing_ok=True)
    answers = [meeting / f"{step}.{node}" for node in range(nodes)]
    while not all(answer.exists() for answer in answers):
        time.sleep(0.02)
    return any(answer.read_text() == "1" for answer in answers)


meeting = Path(os.environ["SLURM_SUBMIT_DIR"]) / f"meeting-{start}"
step = newest()
while step < arguments.until:
    time.sleep(arguments.seconds)
    step += 1
    stops = any_stops(step)
    if stops or step % arguments.every == 0 or step == arguments.until:
        save(step)
    if stops:
        report("end at", step)
        sys.exit(0)
report("end")
