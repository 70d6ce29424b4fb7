"""A loop with Accelerate: automatic checkpoint names in DIRECTORY/checkpoints, save_state and load_state."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import common
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed


class Progress:
    """What the loop registers, so that Accelerate saves and loads it with the rest."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


arguments = common.arguments()
set_seed(1)
project = ProjectConfiguration(str(arguments.directory), automatic_checkpoint_naming=True, total_limit=3)
accelerator = Accelerator(
    cpu=True, project_config=project, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
model, optimizer, _ = common.small_torch_model(dropout=0.0)  # it loads the random state before the loader draws from it
rows = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8, shuffle=True)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, arguments.until)
progress = Progress()
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
accelerator.register_for_checkpointing(progress)
saves = arguments.directory / "checkpoints"
if saves.is_dir() and any(saves.iterdir()):
    accelerator.load_state()
    accelerator.project_configuration.iteration = progress.step // arguments.every
common.resume(progress.step)
while progress.step < arguments.until:
    epoch, batches = divmod(progress.step, len(loader))
    loader.set_epoch(epoch)
    for (batch,) in accelerator.skip_first_batches(loader, batches):
        common.pause()
        value = (model(batch) - batch.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(value)
        optimizer.step()
        schedule.step()
        progress.step += 1
        common.loss(progress.step, value)
        if progress.step % arguments.every == 0:
            common.saving(progress.step)
            name = f"checkpoints/checkpoint_{accelerator.save_iteration}"
            if common.AGENT:
                from stepvault.callbacks.accelerate import save_state

                save_state(accelerator, common.AGENT, metrics={"loss": value})
            else:
                accelerator.save_state()
            common.saved(progress.step, name)
        if progress.step == arguments.until:
            break
common.end(common.torch_weights(accelerator.unwrap_model(model)))
