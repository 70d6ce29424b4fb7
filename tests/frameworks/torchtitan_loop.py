"""A loop with torchtitan's own CheckpointManager, optimizers and schedulers: DIRECTORY/checkpoint/step-N.

Variants: sync, async.
"""

import os

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}

import common
import torch
import torch.distributed as dist
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw


class Progress:
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


arguments = common.arguments()
common.start_torch_group()
model, _, _ = common.small_torch_model(dropout=0.0)
optimizers = default_adamw(lr=1e-3).build(model_parts=[model])
schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=arguments.until)
progress = Progress()
config = CheckpointManager.Config(
    enable=True, interval=arguments.every, keep_latest_k=3, last_save_model_only=False,
    async_mode="async" if arguments.variant == "async" else "disabled",
)  # fmt: skip
manager = CheckpointManager(
    config, dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers,
    states={"train_state": progress}, sd_adapter=None, base_folder=str(arguments.directory),
)  # fmt: skip
if common.AGENT:
    from stepvault.callbacks.torchtitan import announce_saves

    announce_saves(manager, common.AGENT, metrics=lambda _: {"loss": value})
manager.load()
common.resume(progress.step)
while progress.step < arguments.until:
    common.pause()
    progress.step += 1
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(progress.step))
    value = (model(batch) - batch.roll(1, dims=1)).square().mean()
    optimizers.zero_grad()
    value.backward()
    optimizers.step()
    schedulers.step()
    common.loss(progress.step, value)
    if progress.step % arguments.every == 0:
        common.saving(progress.step)
        manager.save(progress.step, last_step=progress.step == arguments.until)
        manager.maybe_wait_for_saving()
        common.saved(progress.step, f"checkpoint/step-{progress.step}")
manager.close()
common.end(common.torch_weights(model))
dist.destroy_process_group()
