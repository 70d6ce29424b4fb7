"""An example of Ray Train under stepvault, on one machine:

    export STEPVAULT_CONFIG=$PWD/stepvault.toml    # Ray's workers have other working directories
    stepvault run --run my-run --into checkpoints/my-run -- python train.py checkpoints my-run

Ray copies each reported checkpoint to checkpoints/my-run/step_N. `train.report` returns when it is there, and the worker
of rank 0 announces it, so that the agent in `stepvault run` seals and uploads it at once. After a loss of the machine,
`stepvault run` puts the newest valid step back, and training begins from STEPVAULT_RESTORED_PATH.

Replace `new_state` and `train_step` by your model. With torch, use TorchTrainer in place of DataParallelTrainer.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray import train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

STEPS = int(os.environ.get("STEPS", "1000"))
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "1"))


def new_state():
    return {"step": 0, "sum": 0}


def train_step(state):
    time.sleep(SECONDS_PER_STEP)
    step = state["step"] + 1
    return {"step": step, "sum": state["sum"] + step}


def load(checkpoint):
    with checkpoint.as_directory() as directory:
        return json.loads((Path(directory) / "state.json").read_text())


def train_loop(config):
    # After a failure of a worker alone, Ray itself has the newest checkpoint; after a loss of the machine stepvault has.
    checkpoints = [train.get_checkpoint()]
    if config["restored"]:
        checkpoints.append(Checkpoint.from_directory(config["restored"]))
    states = [load(checkpoint) for checkpoint in checkpoints if checkpoint]
    state = max(states, key=lambda state: state["step"], default=new_state())
    print(f"training begins after step {state['step']}", flush=True)
    while state["step"] < STEPS:
        state = train_step(state)
        name = f"step_{state['step']}"
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "state.json").write_text(json.dumps(state))
            checkpoint = Checkpoint.from_directory(directory)
            # Returns when Ray has copied the files of all workers.
            train.report({"sum": state["sum"]}, checkpoint=checkpoint, checkpoint_dir_name=name)
        if train.get_context().get_world_rank() == 0:
            # A step that cannot be announced is found by the agent later, if at all possible.
            subprocess.run(["stepvault", "announce", str(Path(config["run"]) / name)], check=False)


def main():
    storage, run = Path(sys.argv[1]).resolve(), sys.argv[2]
    ray.init()
    # Ends Ray's own processes, too. Without it they live on until `stepvault run` kills them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    trainer = DataParallelTrainer(
        train_loop,
        train_loop_config={"run": str(storage / run), "restored": os.environ.get("STEPVAULT_RESTORED_PATH")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=run,
            storage_path=str(storage),
            # Ray deletes older ones; the vault and the remotes have rules of their own.
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
