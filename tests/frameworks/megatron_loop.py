"""A loop with megatron-core's dist_checkpointing: iter_NNNNNNN, and the tracker that Megatron-LM writes after it.

megatron-core has no trainer; the names and the order of the files are those of Megatron-LM's checkpointing.py.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor

# The writer calls these on a CPU too.
torch.cuda.synchronize, torch.cuda.current_device = lambda: None, lambda: "cpu"


def sharded(step):
    """The weights and the states of the optimizer as sharded tensors, and the step."""
    state = {"iteration": step, "args": {"lr": 1e-3}}
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = ShardedTensor.from_rank_offsets(f"model.{name}", parameter.data)
        states = optimizer.state[parameter]
        for key in ("exp_avg", "exp_avg_sq"):
            value = states.setdefault(key, torch.zeros_like(parameter))
            state[f"optimizer.{key}.{name}"] = ShardedTensor.from_rank_offsets(f"optimizer.{key}.{name}", value)
        states.setdefault("step", torch.tensor(float(step)))
    return state


def load(directory):
    state = dist_checkpointing.load(sharded(0), str(directory))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"model.{name}"])
            for key in ("exp_avg", "exp_avg_sq"):
                optimizer.state[parameter][key].copy_(state[f"optimizer.{key}.{name}"])
            optimizer.state[parameter]["step"].fill_(state["iteration"])
    return state["iteration"]


if __name__ == "__main__":  # the writer starts processes
    arguments = common.arguments()
    common.start_torch_group()
    parallel_state.initialize_model_parallel()
    model, optimizer, train_step = common.small_torch_model(dropout=0.0)
    tracker = arguments.directory / "latest_checkpointed_iteration.txt"
    step = 0
    if tracker.exists():
        step = load(arguments.directory / f"iter_{int(tracker.read_text()):07}")
    common.resume(step)
    while step < arguments.until:
        common.pause()
        step += 1
        common.loss(step, train_step(step))
        if step % arguments.every == 0:
            common.saving(step)
            name = f"iter_{step:07}"
            (arguments.directory / name).mkdir(exist_ok=True)
            dist_checkpointing.save(sharded(step), str(arguments.directory / name))
            tracker.write_text(str(step))
            common.saved(step, name)
    common.end(common.torch_weights(model))
    dist.destroy_process_group()
