"""Composer's Trainer with autoresume: epE-baB-rank0.pt and the link latest-rank0.pt."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common
import torch
from composer import Callback, ComposerModel, Trainer
from composer.callbacks import CheckpointSaver


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model, _, _ = common.small_torch_model()

    def forward(self, batch):
        return self.model(batch[0])

    def loss(self, outputs, batch):
        return (outputs - batch[0].roll(1, dims=1)).square().mean()


class Reporter(Callback):
    def fit_start(self, state, logger):
        common.resume(int(state.timestamp.batch))

    def batch_end(self, state, logger):
        common.loss(int(state.timestamp.batch), state.loss)
        common.pause()


def saving(self, state, logger):
    batch = int(state.timestamp.batch)
    common.saving(batch)
    save(self, state, logger)
    common.saved(batch, *(path.name for path in arguments.directory.glob(f"ep*-ba{batch}-rank0.pt")))


if __name__ == "__main__":
    arguments = common.arguments()
    save, CheckpointSaver._save_checkpoint = CheckpointSaver._save_checkpoint, saving
    model = Model()
    rows = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    # In one order, which Composer does not resume if it is random.
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
    trainer = Trainer(
        model=model, train_dataloader=loader, max_duration=f"{arguments.until}ba", device="cpu", seed=1,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3), save_folder=str(arguments.directory),
        save_interval=f"{arguments.every}ba", save_num_checkpoints_to_keep=3, run_name="job", autoresume=True,
        callbacks=[Reporter()], progress_bar=False, log_to_console=False,
    )  # fmt: skip
    trainer.fit()
    common.end(common.torch_weights(model))
