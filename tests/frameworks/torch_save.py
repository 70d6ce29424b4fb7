"""A plain loop with torch.save. Variants: in-place (checkpoint.pt), renamed (likewise, atomically), numbered."""

import os
import re

import common
import torch


def path_of(step):
    return arguments.directory / (f"checkpoint_{step}.pt" if arguments.variant == "numbered" else "checkpoint.pt")


def save(step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    state["rng"] = torch.get_rng_state()
    path = path_of(step)
    if arguments.variant == "renamed":
        torch.save(state, path.with_suffix(".pt.tmp"))
        os.replace(path.with_suffix(".pt.tmp"), path)
    else:
        torch.save(state, path)
    return path


arguments = common.arguments()
model, optimizer, train_step = common.small_torch_model()
steps = [int(re.search(r"_(\d+)", path.name)[1]) for path in arguments.directory.glob("checkpoint_*.pt")]
newest = path_of(max(steps, default=0))
step = 0
if newest.exists():
    state = torch.load(newest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
common.resume(step)
while step < arguments.until:
    common.pause()
    step += 1
    common.loss(step, train_step(step))
    if step % arguments.every == 0:
        common.saving(step)
        common.saved(step, save(step))
common.end(common.torch_weights(model))
