"""A loop without any framework: pickles. Variants: numbered (step_12/checkpoint.pkl), renamed (checkpoint.pkl), in-place."""

import array
import os
import pickle
import random

import common


def path_of(step):
    return arguments.directory / (f"step_{step}/checkpoint.pkl" if arguments.variant == "numbered" else "checkpoint.pkl")


def save(step):
    path = path_of(step)
    path.parent.mkdir(exist_ok=True)
    new = path.with_name("checkpoint.pkl.tmp") if arguments.variant == "renamed" else path
    with open(new, "wb") as file:
        pickle.dump({"step": step, "weights": weights, "random": draw.getstate(), "padding": bytes(1 << 20)}, file)
    os.replace(new, path)
    return path


arguments = common.arguments()
draw = random.Random(1)
weights, step = array.array("d", [0.0] * 1000), 0
steps = [int(path.parent.name.partition("_")[2]) for path in arguments.directory.glob("step_*/checkpoint.pkl")]
newest = path_of(max(steps, default=0))
if newest.exists():
    state = pickle.loads(newest.read_bytes())
    weights, step = state["weights"], state["step"]
    draw.setstate(state["random"])
common.resume(step)
while step < arguments.until:
    common.pause()
    step += 1
    errors = [draw.random() - weight for weight in weights]
    weights = array.array("d", [weight + 0.1 * error for weight, error in zip(weights, errors, strict=True)])
    common.loss(step, sum(error * error for error in errors) / len(errors))
    if step % arguments.every == 0:
        common.saving(step)
        common.saved(step, path := save(step))
        if common.AGENT:
            announced = path.parent if arguments.variant == "numbered" else path
            common.AGENT.announce(announced, step=step, metrics={"loss": 1 / step}, wait_until="staged")
common.end([weights])
