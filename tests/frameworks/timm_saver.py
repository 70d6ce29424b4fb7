"""timm's CheckpointSaver, as its training script calls it: checkpoint-E, last and model_best. A step is an epoch."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import logging

import common
import timm
import torch
from timm.models import resume_checkpoint
from timm.utils import CheckpointSaver

arguments = common.arguments()
logging.basicConfig(level=logging.WARNING)
torch.manual_seed(0)
torch.set_num_threads(1)
model = timm.create_model("test_resnet", num_classes=4, in_chans=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
last = arguments.directory / "last.pth.tar"
step = resume_checkpoint(model, str(last), optimizer=optimizer) if last.exists() else 0
saver = CheckpointSaver(
    model=model, optimizer=optimizer, args=argparse.Namespace(model="test_resnet"),
    checkpoint_dir=str(arguments.directory), recovery_dir=str(arguments.directory), decreasing=True, max_history=3,
)  # fmt: skip
common.resume(step)
while step < arguments.until:
    common.pause()
    generator = torch.Generator().manual_seed(step)
    images, labels = torch.randn(4, 1, 32, 32, generator=generator), torch.randint(0, 4, (4,), generator=generator)
    value = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    common.loss(step + 1, value)
    common.saving(step + 1)
    saver.save_checkpoint(step, metric=value.item())
    names = [f"checkpoint-{step}.pth.tar", "last.pth.tar"]
    names = [name for name in names if (arguments.directory / name).exists()]
    common.saved(step + 1, *names, beside=["model_best.pth.tar"])
    step += 1
common.end(common.torch_weights(model))
