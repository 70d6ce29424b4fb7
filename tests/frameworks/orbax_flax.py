"""Flax and Orbax's CheckpointManager. Variants: plain (12), prefix (ckpt_000012)."""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import common
import jax
import jax.numpy as jnp
import numpy
import optax
import orbax.checkpoint as ocp
from flax import linen
from flax.training.train_state import TrainState


class Model(linen.Module):
    @linen.compact
    def __call__(self, rows):
        return linen.Dense(64)(linen.relu(linen.Dense(256)(rows)))


@jax.jit
def train_step(state, key):
    batch = jax.random.normal(key, (8, 64))

    def loss_of(parameters):
        return jnp.mean((state.apply_fn({"params": parameters}, batch) - jnp.roll(batch, 1, axis=1)) ** 2)

    value, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), value


arguments = common.arguments()
model = Model()
parameters = model.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]
state = TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adamw(1e-3))
prefix = {"step_prefix": "ckpt", "step_format_fixed_length": 6} if arguments.variant == "prefix" else {}
manager = ocp.CheckpointManager(
    arguments.directory, options=ocp.CheckpointManagerOptions(max_to_keep=3, enable_async_checkpointing=True, **prefix)
)
step = manager.latest_step() or 0
if step:
    state = manager.restore(step, args=ocp.args.StandardRestore(state))
common.resume(step)
while step < arguments.until:
    common.pause()
    step += 1
    state, value = train_step(state, jax.random.fold_in(jax.random.key(1), step))
    common.loss(step, value)
    if step % arguments.every == 0:
        common.saving(step)
        manager.save(step, args=ocp.args.StandardSave(state))
        if common.AGENT:
            from stepvault.callbacks.orbax import announce_finished

            announcing = announce_finished(manager, common.AGENT, step, metrics={"loss": value})
            announcing.join()
        manager.wait_until_finished()
        common.saved(step, f"ckpt_{step:06}" if arguments.variant == "prefix" else str(step))
manager.close()
common.end([numpy.asarray(leaf) for leaf in jax.tree.leaves(state.params)])
