#!/usr/bin/env python3
"""A trainer for torchrun: FSDP over gloo, with checkpoints by torch.distributed.checkpoint (DCP).

Each rank writes its own shards into DIRECTORY/step_N on its own disk; rank 0 also writes the metadata. The training is
deterministic: the weights after a step do not depend on the number of ranks, apart from rounding.

Prints one line for each event, with the time, the start's token and the rank, so that the scenarios can check what was
resumed and what was saved: `resume STEP restored RESTORED` or `resume none ...`, `loaded STEP`, `broken STEP: REASON`,
`disagree STEPS`, `saved STEP` (after a barrier: all ranks have saved it), `end`.

    train.py DIRECTORY --until STEP --every STEPS --seconds SECONDS_OF_A_STEP [--rename] [--told] [--hang]
    train.py --check STEP_DIRECTORY ...     checks that each step is whole and right; needs no process group

--rename writes a step under a temporary name and renames it, instead of writing it in place, as DCP does by itself.
--told resumes from the step that stepvault names in STEPVAULT_RESTORED_STEP, instead of the newest in DIRECTORY.
--hang keeps a rank alive whose collective failed, as a rank that waits for its peers does until its timeout.
"""

import argparse
import os
import secrets
import shutil
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import fully_shard

WIDTH, HIDDEN, BATCH = 128, 1024, 8
TOLERANCE = 1e-4


def build_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH)
    )


def train_step(model, optimizer, step):
    """One step on a batch that follows from the step's number; all ranks take the same batch."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(BATCH, WIDTH, generator=generator)
    loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def problems_of(path):
    """Returns what is wrong with a step's directory, which has to hold the files of all ranks."""
    step = int(path.name.rpartition("_")[2])
    try:
        reader = dcp.FileSystemReader(path)
        names = [name for name in reader.read_metadata().state_dict_metadata if name.startswith("rank_")]
        model = build_model()
        ranks = {name: torch.zeros(4, dtype=torch.int64) for name in names}
        dcp.load({"model": model.state_dict(), **ranks}, storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as error:  # which is no Exception
        return f"cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    rows = sorted(row.tolist() for row in ranks.values())
    worlds, starts, steps = ({row[index] for row in rows} for index in (1, 2, 3))
    if steps != {step}:
        return f"holds the shards of steps {sorted(steps)}"
    if len(starts) != 1:
        return f"mixes the shards of {len(starts)} starts"
    if len(worlds) != 1 or [row[0] for row in rows] != list(range(rows[0][1])):
        return f"holds the shards of ranks {[row[0] for row in rows]}, and the world has {sorted(worlds)}"
    expected = build_model()
    optimizer = build_optimizer(expected)
    for number in range(1, step + 1):
        train_step(expected, optimizer, number)
    for (name, value), wanted in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        difference = (value - wanted).abs().max().item()
        if difference > TOLERANCE:
            return f"{name} differs by {difference} from what {step} steps give"
    return None


def newest_step(directory):
    """The step with the highest number that has metadata, as most trainers look for it; 0 without any."""
    found = [path for path in directory.glob("step_*") if (path / ".metadata").exists()]
    return max((int(path.name.rpartition("_")[2]) for path in found), default=0)


class Trainer:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.start = 0

    def report(self, *words):
        # One call, so that the lines of several processes do not mix.
        text = " ".join(map(str, words))
        line = f"{time.time():.2f} train {self.start:08x} rank{self.rank}/{self.world}: {text}\n"
        os.write(1, line.encode())

    def save(self, model, step):
        directory = self.arguments.directory / f"step_{step}"
        into = self.arguments.directory / f".tmp_step_{step}" if self.arguments.rename else directory
        if self.arguments.rename:
            # What an interrupted save left, or a save of this step that was given up.
            shutil.rmtree(into, ignore_errors=True)
            shutil.rmtree(directory, ignore_errors=True)
        row = torch.tensor([self.rank, self.world, self.start, step])
        state = {"model": model.state_dict(), f"rank_{self.rank}": row}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(into))
        if self.arguments.rename:
            into.rename(directory)
        dist.barrier()
        self.report("saved", step)

    def resume(self, model):
        """Loads the newest step; all ranks have to find the same one, whole."""
        restored = os.environ.get("STEPVAULT_RESTORED_STEP", "") or "none"
        step = newest_step(self.arguments.directory)
        if self.arguments.told:
            step = 0 if restored == "none" else int(restored)
        self.report("resume", step or "none", "restored", restored)
        found = [None] * self.world
        dist.all_gather_object(found, step)
        if len(set(found)) != 1:
            self.report("disagree", *found)
            sys.exit(3)
        if not step:
            self.report("loaded", 0)
            return 0
        path = self.arguments.directory / f"step_{step}"
        problem = problems_of(path)
        if problem:
            files = ",".join(sorted(file.name for file in path.iterdir()))
            self.report(f"broken {step}: {problem}; files {files}")
            sys.exit(3)
        dcp.load({"model": model.state_dict()}, storage_reader=dcp.FileSystemReader(path))
        self.report("loaded", step)
        return step

    def run(self):
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
        start = torch.tensor([secrets.randbits(32)])
        dist.broadcast(start, 0)
        self.start = int(start)
        model = build_model()
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=dist.init_device_mesh("cpu", (self.world,)))
        optimizer = build_optimizer(model)
        step = self.resume(model)
        while step < self.arguments.until:
            time.sleep(self.arguments.seconds)
            step += 1
            train_step(model, optimizer, step)
            if step % self.arguments.every == 0 or step == self.arguments.until:
                self.save(model, step)
        self.report("end")
        # torch 2.15 aborts where one rank takes down its group while another still uses it, and torchrun starts it again.
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--until", type=int)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--check", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        problems = {path: problems_of(path) for path in arguments.check}
        for path, problem in problems.items():
            print(f"{path}: {problem or 'whole'}")
        sys.exit(1 if any(problems.values()) else 0)
    trainer = Trainer(arguments)
    try:
        trainer.run()
    except Exception as error:
        trainer.report("failed", type(error).__name__, str(error).splitlines()[:1])
        if not arguments.hang:
            raise
        traceback.print_exc()
        time.sleep(600)


if __name__ == "__main__":
    main()
