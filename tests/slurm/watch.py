#!/usr/bin/env python3
"""Ranks that use the Python package, several on each node: each watches, restores, writes its shard and announces it.

They print the lines of train.py, with a rank's number for that of a node, and meet at each step as ranks do in an
all-reduce. A rank does not wait for the others after a save.

    watch.py RUN --until STEP --every STEPS --seconds SECONDS_OF_A_STEP [--killed-at STEP]

With --killed-at, a step is written and not announced, and then the agent and all ranks of each node are killed. The first
node's directory may be removed when its steps are durable.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import stepvault

arguments = argparse.ArgumentParser()
arguments.add_argument("run")
arguments.add_argument("--until", type=int, required=True)
arguments.add_argument("--every", type=int, default=10)
arguments.add_argument("--seconds", type=float, default=0.1)
arguments.add_argument("--killed-at", type=int)
arguments = arguments.parse_args()

rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
local_ranks = ranks // int(os.environ["SLURM_NNODES"])
start = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', 0)}"
directory = Path("/mnt/nvme/jobs") / os.environ["SLURM_JOB_ID"] / "checkpoints"
meeting = Path(os.environ["SLURM_SUBMIT_DIR"]) / f"meeting-{start}"


def report(*words):
    os.write(1, f"{time.time():.2f} train {start} node{rank}: {' '.join(map(str, words))}\n".encode())


def meet(step):
    meeting.mkdir(parents=True, exist_ok=True)
    (meeting / f"{step}.{rank}").touch()
    while not all((meeting / f"{step}.{other}").exists() for other in range(ranks)):
        time.sleep(0.02)


def save(step):
    path = directory / f"step_{step}"
    path.mkdir(parents=True, exist_ok=True)
    # Ranks are not equally fast.
    time.sleep(0.2 * (rank % local_ranks))
    head = json.dumps({"step": step, "rank": rank, "launch": start}).encode().ljust(256)
    (path / f"shard_{rank}.bin").write_bytes(head + os.urandom(1 << 20))
    if rank == 0:
        (path / "index.json").write_text(json.dumps({"step": step, "nodes": ranks, "launch": start}))
    if step == arguments.killed_at:
        meet(f"{step}-written")
        if rank == 0:
            (directory.parent / "remove-when-durable").touch()
        subprocess.run(["pkill", "-KILL", "-f", "stepvault agent"], check=False)
        os._exit(1)
    agent.announce(path, metrics={"loss": 1 / step}, rank=(rank % local_ranks, local_ranks))
    report("saved", step)


directory.mkdir(exist_ok=True)
agent = stepvault.watch(directory, run=arguments.run, remote="file:///shared/bucket", announced=True, drain_deadline=20)
path = agent.restore()
if path is None:
    report("resume none")
    step = 0
else:
    step = int(path.name[5:])
    files = sorted(file.name for file in path.iterdir())
    report("resume", step, ",".join(files))
    if len(files) != ranks + 1:
        report("broken", step)
        sys.exit(1)
while step < arguments.until:
    time.sleep(arguments.seconds)
    step += 1
    meet(step)
    if step % arguments.every == 0:
        save(step)
report("end")
