"""TRL's SFTTrainer on a tiny Llama and a tokenizer made here. Variants: full, lora (with peft)."""

import hf_trainer  # first: it keeps the hub offline

import common
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

arguments = common.arguments()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=hf_trainer.tiny_tokenizer(), pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
)
rows = [" ".join(f"w{(row * 7 + column * (row + 3)) % 61}" for column in range(14)) for row in range(40)]
lora = None
if arguments.variant == "lora":
    from peft import LoraConfig

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
trainer = hf_trainer.reporting(SFTTrainer)(
    model=hf_trainer.tiny_llama(), args=SFTConfig(max_length=16, bf16=False, **hf_trainer.settings(arguments)),
    train_dataset=Dataset.from_dict({"text": rows}), processing_class=tokenizer, peft_config=lora,
)  # fmt: skip
hf_trainer.train(trainer, arguments)
