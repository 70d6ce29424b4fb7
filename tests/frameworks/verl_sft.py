"""verl's CheckpointHandler and FSDPCheckpointManager, as its SFT trainer calls them: global_step_N and the tracker.

verl's trainers need Ray and a GPU; the loop here is our own.
"""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}

import common
import hf_trainer
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import PreTrainedTokenizerFast
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager


class Engine:
    """The part of verl's engines that the handler calls."""

    def __init__(self, manager):
        self.manager = manager

    def is_mp_src_rank_with_outputs(self):
        return True

    def get_data_parallel_rank(self):
        return 0

    def save_checkpoint(self, local_path, global_step, max_ckpt_to_keep):
        self.manager.save_checkpoint(local_path, None, global_step, max_ckpt_to_keep)

    def load_checkpoint(self, path):
        self.manager.load_checkpoint(path)


arguments = common.arguments()
common.start_torch_group()
# Without dropout: the random state is loaded before the loader draws from it.
model = hf_trainer.tiny_llama(dropout=0.0)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, arguments.until)
contents = ["model", "optimizer", "extra"]
manager = FSDPCheckpointManager(
    model, optimizer, schedule, PreTrainedTokenizerFast(tokenizer_object=hf_trainer.tiny_tokenizer()),
    {"save_contents": contents, "load_contents": contents},
)  # fmt: skip
rows = torch.randint(3, 64, (4 * arguments.until, 16), generator=torch.Generator().manual_seed(1))
loader = StatefulDataLoader(rows, batch_size=4)
handler = CheckpointHandler(
    Engine(manager), loader, default_local_dir=str(arguments.directory), max_ckpt_to_keep=3
)
step = handler.load_checkpoint()
common.resume(step)
for batch in loader:
    common.pause()
    value = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    schedule.step()
    step += 1
    common.loss(step, value)
    if step % arguments.every == 0:
        common.saving(step)
        handler.save_checkpoint(step)
        common.saved(step, f"global_step_{step}")
common.end([value.full_tensor().numpy() for value in model.state_dict().values()])
dist.destroy_process_group()
