"""Keras' fit. Variants: backup (BackupAndRestore), models (ModelCheckpoint, one .keras file for each epoch)."""

import os
import re

os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import common
import keras
import numpy


class Reporter(keras.callbacks.Callback):
    """Stands on both sides of the callback that saves."""

    def __init__(self, is_first):
        super().__init__()
        self.is_first = is_first

    def on_epoch_begin(self, epoch, logs=None):
        if not self.is_first and not hasattr(self, "resumed"):
            self.resumed = True
            common.resume(epoch)

    def on_epoch_end(self, epoch, logs=None):
        if self.is_first:
            common.loss(epoch + 1, logs["loss"])
            common.pause()
            common.saving(epoch + 1)
        else:
            common.saved(epoch + 1, "" if arguments.variant == "backup" else f"ckpt-{epoch + 1:03}.keras")


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((64,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(64)]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss="mse")
    return model


arguments = common.arguments()
rows = numpy.random.default_rng(1).normal(size=(32, 64)).astype("float32")
model, begin = build(), 0
if arguments.variant == "backup":
    saver = keras.callbacks.BackupAndRestore(str(arguments.directory), delete_checkpoint=False)
else:
    saver = keras.callbacks.ModelCheckpoint(str(arguments.directory / "ckpt-{epoch:03d}.keras"))
    names = [path.name for path in arguments.directory.glob("ckpt-*.keras")]
    begin = max((int(re.search(r"-(\d+)", name)[1]) for name in names), default=0)
    if begin:
        model = keras.models.load_model(arguments.directory / f"ckpt-{begin:03}.keras")
if begin >= arguments.until:
    common.resume(begin)
callbacks = [Reporter(True), saver, Reporter(False)]
if common.AGENT and arguments.variant == "models":
    from stepvault.callbacks.keras import StepvaultCallback

    callbacks.append(StepvaultCallback(common.AGENT, saver))
model.fit(
    rows, numpy.roll(rows, 1, axis=1), batch_size=8, epochs=arguments.until, initial_epoch=begin, shuffle=False,
    verbose=0, callbacks=callbacks,
)  # fmt: skip
common.end([numpy.asarray(weight) for weight in model.get_weights()])
