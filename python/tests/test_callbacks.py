"""Callbacks with an agent, and with what they use of a framework; `scripts/test-frameworks` has the real ones."""

import concurrent.futures
import importlib
import logging
import sys
import types
from types import SimpleNamespace

import pytest

import stepvault
from stepvault import _ranks
from stepvault.callbacks import _announce


@pytest.fixture
def agent(place):
    agent = place.watch()
    yield agent
    agent.drain()


@pytest.fixture
def framework(monkeypatch):
    def install(name, **members):
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return install


def callback(name):
    return importlib.reload(importlib.import_module(f"stepvault.callbacks.{name}"))


def metrics_of(agent, step):
    agent.wait(step, timeout=60)
    return {listed.step: listed.metrics for listed in agent.list_steps()}[step]


def test_transformers(place, agent, framework):
    names = ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
    framework("transformers", **{name: type(name, (), {}) for name in names})
    made = callback("transformers").StepvaultCallback(agent)
    assert made.resume_path() is None
    (place.checkpoints / "checkpoint-5").mkdir()
    (place.checkpoints / "checkpoint-5" / "weights.bin").write_bytes(b"weights")
    log = [{"step": 4, "loss": 3.0}, {"step": 5, "loss": 2.0, "epoch": 0.5}, {"step": 5, "eval_loss": 1.0}]
    arguments, state = (
        SimpleNamespace(output_dir=str(place.checkpoints), world_size=1),
        SimpleNamespace(global_step=5, log_history=log),
    )
    made.on_save(arguments, state, None)
    made.on_train_end(arguments, state, None)
    assert metrics_of(agent, 5) == {"loss": 2.0, "eval_loss": 1.0}
    assert made.resume_path() == str(place.checkpoints / "checkpoint-5")


def test_accelerate(place, agent, framework):
    framework("accelerate", Accelerator=object)
    save_state = callback("accelerate").save_state
    for is_main in (True, False):
        accelerator = SimpleNamespace(
            save_state=lambda directory, **_: str(place.save(int(directory))),
            wait_for_everyone=lambda: None,
            is_local_main_process=is_main,
        )
        save_state(accelerator, agent, str(1 if is_main else 2), metrics={"loss": 0.5})
    assert metrics_of(agent, 1) == {"loss": 0.5}
    assert [step.step for step in agent.list_steps()] == [1]


def test_lightning(place, agent, framework):
    for name in ("lightning", "lightning.pytorch.callbacks"):
        framework(name, Callback=object)
    framework("lightning.pytorch", LightningModule=object, Trainer=object)
    made = callback("lightning").StepvaultCallback(agent)
    trainer = SimpleNamespace(
        save_checkpoint=lambda path, weights_only: place.save(int(path.name.split("_")[1])),
        callback_metrics={"loss": 0.5},
        world_size=1,
    )
    made.setup(trainer, None, "fit")
    made.setup(trainer, None, "fit")
    trainer.save_checkpoint(place.checkpoints / "step_3", False)
    made.on_fit_end(trainer, None)
    assert metrics_of(agent, 3) == {"loss": 0.5}


def test_dcp_announces_when_the_future_is_done(place, agent):
    announce_saved = callback("dcp").announce_saved
    future = concurrent.futures.Future()
    announce_saved(agent, SimpleNamespace(upload_completion=future), place.save(1), metrics={"loss": 0.5})
    assert agent.status().steps == 0
    future.set_result(None)
    assert metrics_of(agent, 1) == {"loss": 0.5}
    failed = concurrent.futures.Future()
    announce_saved(agent, failed, place.save(2))
    failed.set_exception(OSError("of the trainer"))
    announce_saved(agent, None, place.save(3))
    assert sorted(step.step for step in agent.list_steps()) == [1, 3]


def test_torchtitan_and_deepspeed(place, agent):
    checkpointer = SimpleNamespace(folder=str(place.checkpoints), save_future=None)

    def save(step, last_step=False):
        path = place.checkpoints / f"step-{step}"
        path.mkdir()
        (path / "weights.bin").write_bytes(b"weights")

    checkpointer.save = save
    callback("torchtitan").announce_saves(checkpointer, agent, metrics=lambda step: {"loss": 1 / step})
    checkpointer.save(4, last_step=True)
    assert metrics_of(agent, 4) == {"loss": 0.25}

    def save_checkpoint(directory, tag):
        (place.checkpoints / tag).mkdir()
        (place.checkpoints / tag / "weights.bin").write_bytes(b"weights")
        return True

    engine = SimpleNamespace(global_steps=6, world_size=1, save_checkpoint=save_checkpoint)
    assert callback("deepspeed").save_checkpoint(engine, agent, str(place.checkpoints), metrics={"loss": 0.5})
    assert metrics_of(agent, 6) == {"loss": 0.5}
    assert sorted(step.step for step in agent.list_steps()) == [4, 6]


def test_orbax(place, agent):
    manager = SimpleNamespace(directory=place.checkpoints, wait_until_finished=lambda: place.save(8).rename(path))
    path = place.checkpoints / "8"
    callback("orbax").announce_finished(manager, agent, 8, metrics={"loss": 0.5}).join()
    assert metrics_of(agent, 8) == {"loss": 0.5}


def test_ray_and_keras(place, agent, framework):
    reports = []
    framework("ray")
    framework("ray.train", report=lambda metrics, checkpoint: reports.append((metrics, checkpoint)))
    sys.modules["ray"].train = sys.modules["ray.train"]
    callback("ray").report(agent, 1, {"loss": 0.5}, path=str(place.save(1)))
    assert reports == [({"loss": 0.5}, None)]
    keras = framework("keras")
    keras.callbacks = SimpleNamespace(Callback=object)
    made = callback("keras").StepvaultCallback(agent, SimpleNamespace(filepath=str(place.checkpoints / "step_{epoch}")))
    place.save(2)
    made.on_epoch_end(1, {"loss": 0.25})
    made.on_epoch_end(2, {"loss": 0.25})
    made.on_train_end()
    assert metrics_of(agent, 2) == {"loss": 0.25}


def test_a_fault_of_storage_is_a_warning(place, caplog):
    agent = place.watch()
    agent.drain()
    with caplog.at_level(logging.INFO, "stepvault"):
        assert _announce.announce(agent, place.save(1)) is None
        assert _announce.wait_at_end(agent).is_durable
    assert "cannot announce" in caplog.text
    assert _announce.numbers({"a": 1, "b": "2.5", "c": "x", "d": None}) == {"a": 1.0, "b": 2.5}


def test_a_step_of_several_ranks_is_sealed_with_the_last(place, agent, monkeypatch, caplog):
    path = place.save(1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in (1, 1, 0):
        assert not agent.status().steps
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        announced = _announce.announce(agent, path, metrics={f"of-{rank}": 1.0}, is_of_all_ranks=True)
    assert announced.is_newly_sealed
    assert metrics_of(agent, 1) == {"of-0": 1.0, "of-1": 1.0}
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with caplog.at_level(logging.INFO, "stepvault"):
        assert _announce.announce(agent, place.save(2), is_of_all_ranks=True) is None
    assert "how many ranks this node has" in caplog.text
    with pytest.raises(stepvault.UsageError, match="there is no rank 2 of 2"):
        agent.announce(path, rank=(2, 2))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "SLURM_LOCALID": "0"}, (3, 8)),
        ({"LOCAL_RANK": "0", "LOCAL_SIZE": "2"}, (0, 2)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (1, 2)),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, (1, 4)),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, None),
        ({"LOCAL_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_a_rank_on_its_node_is_that_of_the_launcher(variables, rank, monkeypatch):
    for names in _ranks._LOCAL_RANKS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _ranks.local_rank() == rank


def test_metrics_of_a_step_that_was_sealed_before_are_not_kept(place, agent, caplog):
    path = place.save(1)
    assert agent.announce(path).is_newly_sealed
    with caplog.at_level(logging.INFO, "stepvault"):
        announced = _announce.announce(agent, path, metrics={"loss": 0.5})
    assert not announced.is_newly_sealed
    assert "without these metrics" in caplog.text
    with pytest.raises(stepvault.NotFound):
        agent.announce(place.checkpoints / "step_9")
