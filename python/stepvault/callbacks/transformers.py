"""Hugging Face Trainer, and TRL, whose trainers are trainers of transformers.

import stepvault
from stepvault.callbacks.transformers import StepvaultCallback
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments("checkpoints", save_steps=100, save_total_limit=2)
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
        """Restores the newest valid step, and returns what `train(resume_from_checkpoint=…)` takes: None for a new run.

        Raises:
            StepvaultError: as `stepvault.restore`.
        """
        path = self.agent.restore()
        return None if path is None else str(path)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_options: Any) -> None:
        """Every rank of the node announces; the ones before the last are told that files are missing."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        metrics = {}
        for entry in state.log_history:
            if entry.get("step") == state.global_step:
                metrics.update(entry)
        for name in ("step", "epoch"):
            metrics.pop(name, None)
        _announce.announce(self.agent, path, metrics=metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_options: Any
    ) -> None:
        """Waits for what was announced."""
        _announce.wait_at_end(self.agent)
