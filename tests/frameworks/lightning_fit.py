"""Lightning's Trainer with ModelCheckpoint after each epoch.

Variants: plain (the newest one and last.ckpt, in DIRECTORY), last (last.ckpt alone), logs (Lightning's own place,
lightning_logs/version_N/checkpoints), best (the one with the highest loss and the newest; the former is loaded at the
end).
"""

import logging
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common
import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        # Without dropout, since Lightning does not save the random state.
        self.model, self.optimizer, _ = common.small_torch_model(dropout=0.0)

    def training_step(self, batch, _):
        common.pause()
        (rows,) = batch
        value = (self.model(rows) - rows.roll(1, dims=1)).square().mean()
        common.loss(self.global_step + 1, value)
        self.log("loss", value)
        return value

    def configure_optimizers(self):
        return self.optimizer


class Checkpoint(ModelCheckpoint):
    def on_train_epoch_end(self, trainer, module):
        common.evaluation(trainer.global_step, common.evaluation_loss(module.model))
        common.saving(trainer.global_step)
        before = common.digests([arguments.directory])
        super().on_train_epoch_end(trainer, module)
        names = [name for name, digest in common.digests([arguments.directory]).items() if before.get(name) != digest]
        common.saved(trainer.global_step, *(name for name in names if name.endswith(".ckpt")))


class Best(ModelCheckpoint):
    def on_train_epoch_end(self, trainer, module):
        before = self.best_model_path
        super().on_train_epoch_end(trainer, module)
        if self.best_model_path != before:
            common.saving(trainer.global_step)
            common.saved(trainer.global_step, os.path.basename(self.best_model_path))


class Resumed(Callback):
    def on_train_start(self, trainer, _):
        common.resume(trainer.global_step)


if __name__ == "__main__":
    arguments = common.arguments()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    if arguments.variant == "logs":
        found = sorted(arguments.directory.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
        resume, options, logger = (str(found[-1]) if found else None), {}, CSVLogger(arguments.directory)
    else:
        resume, logger = "last", False
        options = {"dirpath": arguments.directory, "save_last": True}
        if arguments.variant == "last":
            options = {"dirpath": arguments.directory, "filename": "last", "enable_version_counter": False}
        if not list(arguments.directory.glob("last*.ckpt")):
            resume = None
    callbacks = [Checkpoint(**options), Resumed()]
    if arguments.variant == "best":
        # The loss falls, so that the best one is that of the first epochs: it has to outlive all others.
        best = Best(arguments.directory, "best-{epoch}-{step}", monitor="loss", mode="max")
        callbacks.append(best)
    if common.AGENT:
        from stepvault.callbacks.lightning import StepvaultCallback

        callbacks.append(StepvaultCallback(common.AGENT))
    rows = torch.randn(8 * arguments.every, 64, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=arguments.until // arguments.every, logger=logger, log_every_n_steps=1,
        callbacks=callbacks, default_root_dir=arguments.directory,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
    if arguments.variant == "best":
        module.load_state_dict(torch.load(best.best_model_path, weights_only=False)["state_dict"])
    common.end(common.torch_weights(module))
