"""A task of lm-evaluation-harness on data that are made here: the perplexity of a tiny model of hf_trainer."""

import json
import tempfile
from pathlib import Path

import lm_eval
import torch
from hf_trainer import tiny_tokenizer
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

DOCUMENTS = 8


def perplexity(pretrained):
    """`pretrained` is a model, or the path of a checkpoint, which the harness loads."""
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **names)
    model = HFLM(pretrained=pretrained, tokenizer=tokenizer, device="cpu", dtype="float32", batch_size=4, max_length=32)
    with tempfile.TemporaryDirectory() as directory:
        draw = torch.Generator().manual_seed(3)
        rows = torch.randint(0, 61, (DOCUMENTS, 24), generator=draw).tolist()
        lines = [json.dumps({"text": " ".join(f"w{number}" for number in row)}) for row in rows]
        (Path(directory) / "test.jsonl").write_text("\n".join(lines))
        task = {
            "task": "words", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{directory}/test.jsonl"}},
            "test_split": "test", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        }  # fmt: skip
        # Without seeds, which would be those of the training too.
        seeds = dict.fromkeys(["random_seed", "numpy_random_seed", "torch_random_seed"])
        found = lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0, **seeds)
    return found["results"]["words"]["word_perplexity,none"]
