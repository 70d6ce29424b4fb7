"""Evaluates checkpoints on another machine, each with its framework's own loading code.

    evaluate.py JOB --events FILE [--fails STEP] --step PATH STEP ATTEMPT   for `stepvault follow -- COMMAND`
    evaluate.py JOB --events FILE [--fails NUMBER] --follow OPTIONS         the loop of the Python package

JOB is one of scripts/test-follow. It appends an event `begun` and then `evaluation`, with the loss, to FILE. The evaluation of
STEP fails each time. In the loop, the evaluation of the step with that NUMBER, counted from 0, fails when it is first tried.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import common
import torch


def transformers(path):
    from hf_trainer import evaluation_data
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(path)
    settings = TrainingArguments(tempfile.mkdtemp(), report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model=model, args=settings, eval_dataset=evaluation_data())
    return trainer.evaluate()["eval_loss"]


def lm_eval(path):
    from lm_evaluation import perplexity

    return perplexity(str(path))


def dcp(path):
    from torch.distributed import checkpoint

    model, *_ = common.small_torch_model(dropout=0.0)
    loaded = {"model": model.state_dict()}
    checkpoint.load(loaded, checkpoint_id=path, no_dist=True)
    model.load_state_dict(loaded["model"])
    return common.evaluation_loss(model)


def lightning(path):
    from lightning import Trainer
    from lightning_fit import Module

    class Evaluated(Module):
        def validation_step(self, *_):
            self.log("loss", common.evaluation_loss(self.model))

    # A step is the file of this name, or a directory that has it.
    found = sorted(path.glob("epoch=*.ckpt")) if path.is_dir() else [path]
    module = Evaluated.load_from_checkpoint(found[0], weights_only=False)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(default_root_dir=tempfile.mkdtemp(), **options)
    loader = torch.utils.data.DataLoader([0])
    return trainer.validate(module, loader, verbose=False)[0]["loss"]


EVALUATIONS = {"transformers": transformers, "lm-eval": lm_eval, "lightning": lightning, "dcp": dcp}


class Evaluator:
    def __init__(self, arguments):
        self.fails, self.loss = arguments.fails, EVALUATIONS[arguments.job]

    def evaluate(self, path, step, attempt, is_failing):
        common.report("begun", step=step, attempt=attempt)
        value = self.loss(Path(path))
        if is_failing:
            raise RuntimeError(f"the evaluation of step {step} fails, as it was told")
        common.report("evaluation", step=step, attempt=attempt, value=float(value))

    def follow(self, options):
        """Evaluates each step that the loop gives; one that fails comes again when the loop is entered again."""
        import stepvault

        number = 0
        while True:
            try:
                with stepvault.follow(**options) as steps:
                    for step in steps:
                        number += 1
                        common.report("passed over", steps=list(step.passed_over))
                        self.evaluate(step.path, step.step, step.attempt, number - 1 == self.fails)
                return
            except RuntimeError as error:
                print(error, file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=EVALUATIONS)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fails", type=int)
    tasks = parser.add_mutually_exclusive_group(required=True)
    tasks.add_argument("--step", nargs=3, metavar=("PATH", "STEP", "ATTEMPT"))
    tasks.add_argument("--follow", type=json.loads, metavar="OPTIONS", help="those of stepvault.follow, as JSON")
    arguments = common.ARGUMENTS = parser.parse_args()
    torch.set_num_threads(1)
    evaluator = Evaluator(arguments)
    if arguments.follow is not None:
        evaluator.follow(arguments.follow)
        return
    path, step, attempt = arguments.step
    evaluator.evaluate(path, int(step), int(attempt), int(step) == arguments.fails)


if __name__ == "__main__":
    main()
