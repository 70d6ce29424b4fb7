"""DeepSpeed's engine with ZeRO on the CPU, one rank. Variants: zero1, zero3."""

import os
import socket

with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
}  # fmt: skip

import common
import deepspeed
import torch

arguments = common.arguments()
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
model, optimizer, _ = common.small_torch_model()
config = {
    "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": int(arguments.variant[-1:] or 1)},
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
}  # fmt: skip
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
step = 0
if (arguments.directory / "latest").exists():
    _, state = engine.load_checkpoint(str(arguments.directory))
    torch.set_rng_state(state["rng"])
    step = engine.global_steps
common.resume(step)
while step < arguments.until:
    common.pause()
    step += 1
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
    value = (engine(batch) - batch.roll(1, dims=1)).square().mean()
    engine.backward(value)
    engine.step()
    common.loss(step, value)
    if step % arguments.every == 0:
        common.saving(step)
        client_state = {"rng": torch.get_rng_state()}
        if common.AGENT:
            from stepvault.callbacks.deepspeed import save_checkpoint

            directory = str(arguments.directory)
            save_checkpoint(engine, common.AGENT, directory, metrics={"loss": value}, client_state=client_state)
        else:
            engine.save_checkpoint(str(arguments.directory), client_state=client_state)
        common.saved(step, f"global_step{step}")
common.end([])
engine.destroy()
torch.distributed.destroy_process_group()
