"""torch.distributed.checkpoint. Variants: plain (one process without a group), fsdp1 and fsdp2 (FSDP2, so many ranks).

It resumes from the highest step that has metadata, as torchtitan does.
"""

import ctypes
import os
import signal
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def start_ranks(world):
    """A process for each rank; returns this one's. The others end with the first."""
    rendezvous = tempfile.mkdtemp(prefix="frameworks-dcp.")
    rank = 0
    for number in range(1, world):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            rank = number
            break
    common.start_torch_group(rank, world, f"{rendezvous}/store")
    return rank


arguments = common.arguments()
world = int(arguments.variant[4:] or 1) if arguments.variant.startswith("fsdp") else 0
rank = start_ranks(world) if world else 0
if rank:
    # The first rank reports for all of them.
    common.report = common.saved = lambda *_, **__: None


def shard(model):
    if world:
        mesh = dist.init_device_mesh("cpu", (world,))
        for layer in (model[0], model[3], model):
            fully_shard(layer, mesh=mesh)


model, optimizer, train_step = common.small_torch_model(dropout=0.0, shard=shard)
found = arguments.directory.glob("step_*/.metadata")
newest = max((int(path.parent.name.partition("_")[2]) for path in found), default=0)
if newest:
    weights, states = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": states, "step": 0}
    dcp.load(loaded, checkpoint_id=arguments.directory / f"step_{newest}", no_dist=not world)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert loaded["step"] == newest, f"step_{newest} holds step {loaded['step']}"
step = newest
common.resume(step)
while step < arguments.until:
    common.pause()
    step += 1
    value = train_step(step)
    common.loss(step, value)
    if step % arguments.every == 0:
        common.evaluation(step, common.evaluation_loss(model))
        common.saving(step)
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states, "step": step}
        dcp.save(state, checkpoint_id=arguments.directory / f"step_{step}", no_dist=not world)
        common.saved(step, f"step_{step}")
        if common.AGENT:
            from stepvault.callbacks.dcp import announce_saved

            announce_saved(common.AGENT, None, arguments.directory / f"step_{step}", metrics={"loss": value})
weights, _ = get_state_dict(model, optimizer)
common.end([(value.full_tensor() if world else value).detach().numpy() for value in weights.values()])
if world:
    dist.barrier()
    dist.destroy_process_group()
