"""transformers' Trainer on a tiny Llama. Variants: plain, best (load_best_model_at_end), evaluated, lm-eval (evaluated by that harness)."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}

import common
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


def tiny_llama(dropout=0.1):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, attention_dropout=dropout, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tiny_tokenizer():
    words = ["<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(61))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


class Reporter(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        common.resume(state.global_step)

    def on_step_end(self, args, state, control, **_):
        common.pause()
        if control.should_save:
            common.saving(state.global_step)

    def on_evaluate(self, args, state, control, metrics, model, **_):
        value = metrics["eval_loss"]
        if common.ARGUMENTS.variant == "lm-eval":
            from lm_evaluation import perplexity

            value = perplexity(model)
        common.evaluation(state.global_step, value)

    def on_save(self, args, state, control, **_):
        common.saved(state.global_step, f"checkpoint-{state.global_step}")


def reporting(trainer_class):
    """The trainer's class, which also reports each loss unrounded."""

    class Reporting(trainer_class):
        def training_step(self, *args, **options):
            value = super().training_step(*args, **options)
            common.loss(self.state.global_step + 1, value)
            return value

    return Reporting


def settings(arguments):
    """What both trainers are told. The shuffled data and the dropout need the random states to be restored."""
    evaluated = {"eval_strategy": "steps", "eval_steps": arguments.every}
    more = {"best": evaluated | {"load_best_model_at_end": True}, "evaluated": evaluated, "lm-eval": evaluated}
    return {
        "output_dir": str(arguments.directory), "max_steps": arguments.until, "save_steps": arguments.every,
        "save_total_limit": 3, "per_device_train_batch_size": 4, "learning_rate": 2e-2, "logging_steps": 1,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "seed": 1,
        **more.get(arguments.variant, {}),
    }  # fmt: skip


def train(trainer, arguments):
    trainer.add_callback(Reporter())
    if common.AGENT:
        from stepvault.callbacks.transformers import StepvaultCallback

        trainer.add_callback(StepvaultCallback(common.AGENT))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.directory))
    common.end(common.torch_weights(trainer.model))


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.rows = torch.randint(3, 64, (count, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def evaluation_data():
    return Tokens(8, 2)


if __name__ == "__main__":
    arguments = common.arguments()
    trainer = reporting(Trainer)(
        model=tiny_llama(), args=TrainingArguments(**settings(arguments)), train_dataset=Tokens(40, 1),
        eval_dataset=evaluation_data(),
    )  # fmt: skip
    train(trainer, arguments)
