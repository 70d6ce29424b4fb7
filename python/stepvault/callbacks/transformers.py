"""Hugging Face Trainer, and TRL, whose trainers are trainers of transformers.

import stepvault
import torch
from stepvault.callbacks.transformers import StepvaultCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2))
dataset = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(256, (1000, 32))]
arguments = TrainingArguments("checkpoints", max_steps=1000, save_steps=100, save_total_limit=2)
agent = stepvault.watch("checkpoints", run="my-run", remote="s3://bucket/prefix", announced=True)
callback = StepvaultCallback(agent)
trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_path())
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .._agent import Agent
from . import _announce


class StepvaultCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types for mypy
    """Announces each checkpoint with the last metrics logged, and waits at the end until all are durable."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def resume_path(self) -> Optional[str]:
        """Restores the newest valid step, and returns what `train(resume_from_checkpoint=…)` takes: None without one.

        Raises:
            StepvaultError: as `stepvault.restore`.
        """
        path = self.agent.restore()
        return None if path is None else str(path)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_options: Any) -> None:
        """Every rank of the node announces when it has written its files: no rank waits for the others."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        metrics = {}
        for entry in state.log_history:
            if entry.get("step") == state.global_step:
                metrics.update(entry)
        for name in ("step", "epoch"):
            metrics.pop(name, None)
        _announce.announce(self.agent, path, metrics=metrics, is_of_all_ranks=args.world_size > 1)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_options: Any
    ) -> None:
        """Waits for what was announced."""
        _announce.wait_at_end(self.agent)
