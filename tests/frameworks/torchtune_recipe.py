"""torchtune's recipe full_finetune_single_device: epoch_N, and recipe_state/recipe_state.pt which it overwrites."""

import importlib.util
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common
import torch
import torchtune
from omegaconf import OmegaConf
from torchtune import training
from torchtune.models.llama2 import llama2

MODEL = {"vocab_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "embed_dim": 64, "max_seq_len": 32}


class Tokenizer:
    pad_id = 0


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokenizer, count):
        self.rows = torch.randint(3, 64, (count, 16), generator=torch.Generator().manual_seed(1)).tolist()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"tokens": self.rows[index], "labels": self.rows[index]}


def recipe_class():
    path = Path(torchtune.__file__).parent.parent / "recipes/full_finetune_single_device.py"
    specification = importlib.util.spec_from_file_location("recipe", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)

    class Recipe(module.FullFinetuneRecipeSingleDevice):
        step = 0

        def _loss_step(self, batch):
            if not self.step:
                self.step = self.epochs_run * self._steps_per_epoch
                common.resume(self.step)
            common.pause()
            value = super()._loss_step(batch)
            self.step += 1
            common.loss(self.step, value)
            return value

        def save_checkpoint(self, epoch):
            common.saving(self.step)
            super().save_checkpoint(epoch)
            names = [f"epoch_{epoch}", "recipe_state"]
            common.saved(self.step, *(name for name in names if (arguments.directory / name).exists()))

    return Recipe


if __name__ == "__main__":
    arguments = common.arguments()
    torch.set_num_threads(1)
    base = arguments.directory.parent / "base"
    base.mkdir(exist_ok=True)
    torch.manual_seed(0)
    torch.save(llama2(**MODEL).state_dict(), base / "base.pt")
    found = sorted(arguments.directory.glob("epoch_*/*.bin"), key=lambda path: int(path.parent.name.partition("_")[2]))
    is_resumed = bool(found)
    files = [str(found[-1].relative_to(arguments.directory))] if found else ["base.pt"]
    settings = {
        "output_dir": str(arguments.directory), "device": "cpu", "dtype": "fp32", "seed": 1, "shuffle": True,
        "tokenizer": {"_component_": "torchtune_recipe.Tokenizer"},
        "dataset": {"_component_": "torchtune_recipe.Rows", "count": 2 * arguments.every},
        "model": {"_component_": "torchtune.models.llama2.llama2", **MODEL},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer", "checkpoint_dir": str(base),
            "checkpoint_files": files, "model_type": "LLAMA2", "output_dir": str(arguments.directory),
        },
        "resume_from_checkpoint": is_resumed, "batch_size": 2, "epochs": arguments.until // arguments.every,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3}, "optimizer_in_bwd": False,
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"}, "max_steps_per_epoch": None,
        "gradient_accumulation_steps": 1, "compile": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.StdoutLogger"},
    }  # fmt: skip
    recipe = recipe_class()(OmegaConf.create(settings))
    recipe.setup(OmegaConf.create(settings))
    recipe.train()
    recipe.cleanup()
    common.end(common.torch_weights(recipe._model))
