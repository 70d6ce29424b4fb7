"""The commands as functions, and their errors as exceptions."""

import asyncio
import os
import shutil
import stat

import pytest

import stepvault


def push(place, step, **more):
    return stepvault.push(place.save(step), run="my-run", remote=place.remote, **more)


def test_restore_returns_the_path_to_resume_from(place, capfd):
    options = {"run": "my-run", "remote": place.remote}
    assert stepvault.restore(place.checkpoints, **options) is None
    assert capfd.readouterr().err == ""
    assert push(place, 100, metrics={"loss": 0.25})["remotes"][0]["durable"]
    push(place, 200)
    shutil.rmtree(place.vault)
    shutil.rmtree(place.checkpoints)
    place.checkpoints.mkdir()
    assert stepvault.restore(place.checkpoints, **options) == place.checkpoints / "step_200"
    assert stepvault.restore(place.checkpoints, step=100, **options) == place.checkpoints / "step_100"
    assert (place.checkpoints / "step_100" / "weights.bin").read_bytes() == b"weights"
    with pytest.raises(stepvault.NotFound, match="step 300") as raised:
        stepvault.restore(place.checkpoints, step=300, **options)
    assert raised.value.kind == "not-found" and raised.value.hint in str(raised.value)


def test_a_damaged_or_unreachable_remote_is_no_new_run(place):
    push(place, 100)
    shutil.rmtree(place.vault)
    shutil.rmtree(place.checkpoints / "step_100")
    (uploaded,) = place.remote.rglob("weights.bin")
    uploaded.write_bytes(b"WEIGHTS")
    options = {"run": "my-run", "remote": place.remote}
    with pytest.raises(stepvault.NoneValid, match="no valid checkpoint"):
        stepvault.restore(place.checkpoints, **options)
    place.remote.rename(place.path / "unmounted")
    with pytest.raises(stepvault.Unreachable):
        stepvault.restore(place.checkpoints, **options)
    with pytest.raises(stepvault.Unreachable):
        stepvault.list_steps(**options)


def test_steps_are_listed_and_pinned(place):
    push(place, 100, metrics={"loss": 0.25})
    push(place, 200)
    options = {"run": "my-run", "remote": place.remote, "local": place.vault}
    assert stepvault.pin(100, **options)["pinned"]
    steps = stepvault.list_steps(**options)
    assert [(step.step, step.is_pinned) for step in steps] == [(200, False), (100, True)]
    assert steps[1].metrics == {"loss": 0.25}
    assert "<td>step_100</td>" in steps._repr_html_()
    assert not stepvault.pin(100, pinned=False, **options)["pinned"]
    assert {(step.revision, step.began) for step in steps} == {(1, None)}


def test_a_listed_step_has_its_revision_and_the_evidence_of_its_attempt(place):
    push(place, 100)
    document = stepvault.list_steps(run="my-run", remote=place.remote).document
    document["steps"][0].update(attempt=2, revision=3, began="the attempt was given")
    (step,) = steps = stepvault.Steps(document)
    assert (step.attempt, step.revision, step.began) == (2, 3, "the attempt was given")
    assert "<td>2 (revision 3)</td>" in steps._repr_html_()


def test_the_status_is_shown_in_a_notebook(place):
    agent = place.watch()
    agent.announce(place.save(100), wait_until="durable")
    status = agent.status()
    assert (status.steps, status.newest_step, status.has_agent, status.problems) == (1, 100, True, ())
    table = status._repr_html_()
    assert "an agent answers" in table and "<td>durable</td>" in table
    agent.drain()
    assert not agent.status().has_agent


def test_a_staged_step_is_whole_or_absent(place):
    agent = place.watch()
    with agent.stage(5, metrics={"loss": 0.5}) as staged:
        (staged / "weights.bin").write_bytes(b"weights")
        assert not (place.checkpoints / "step_5").exists()
    agent.wait(5)
    assert agent.list_steps()[0].metrics == {"loss": 0.5}
    assert (place.checkpoints / "step_5" / "weights.bin").exists()
    with pytest.raises(ValueError, match="of the trainer"), agent.stage(6) as staged:
        raise ValueError("of the trainer")
    with pytest.raises(stepvault.StepvaultError, match="no file"), stepvault.stage(place.checkpoints, 7):
        pass
    assert sorted(path.name for path in place.checkpoints.iterdir()) == ["latest", "step_5"]
    agent.drain()


def test_asyncio_has_the_same(place):
    async def script():
        agent = await stepvault.aio.watch(place.checkpoints, **place.options())
        await stepvault.aio.call(agent.announce, place.save(1), wait_until="durable")
        listed = await stepvault.aio.list_steps(run="my-run", remote=place.remote, local=place.vault)
        await stepvault.aio.call(agent.drain)
        return listed

    import stepvault.aio

    assert [step.step for step in asyncio.run(script())] == [1]


def fake(place, text):
    program = place.path / "stepvault"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_program_that_is_missing_or_another_is_told(place, monkeypatch):
    monkeypatch.setenv("STEPVAULT_PROGRAM", str(fake(place, "echo stepvault 9.9.9")))
    with pytest.raises(stepvault.ProgramMissing, match=r"it is 9\.9\.9"):
        place.watch()
    monkeypatch.setenv("STEPVAULT_PROGRAM", str(place.path / "absent"))
    with pytest.raises(stepvault.ProgramMissing, match="cannot run the program"):
        stepvault.list_steps(run="my-run", remote=place.remote)
    monkeypatch.delenv("STEPVAULT_PROGRAM")
    monkeypatch.setenv("PATH", str(place.checkpoints))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(place.checkpoints))
    with pytest.raises(stepvault.ProgramMissing, match="is missing"):
        stepvault.program()


def test_a_program_without_a_document_is_told(place, monkeypatch):
    text = f'[ "$1" = --version ] && echo stepvault {stepvault.__version__} || exit 5'
    monkeypatch.setenv("STEPVAULT_PROGRAM", str(fake(place, text)))
    with pytest.raises(stepvault.StepvaultError, match="ended with code 5 and without a document"):
        stepvault.list_steps(run="my-run", remote=place.remote)


def test_remotes_are_urls_or_directories(place):
    from stepvault._program import remote_urls

    os.chdir(place.path)
    assert remote_urls("s3://bucket/a?region=b") == ["s3://bucket/a?region=b"]
    assert remote_urls(["remote", place.remote]) == [place.remote.as_uri()] * 2
    odd = place.path / "50% of it?"
    odd.mkdir()
    stepvault.push(place.save(1), run="my-run", remote=odd)
    assert [step.step for step in stepvault.list_steps(run="my-run", remote=odd, local=place.vault)] == [1]


def test_the_name_of_a_run_may_contain_variables(place, monkeypatch):
    run = "sweep-{SLURM_ARRAY_TASK_ID}"
    with pytest.raises(stepvault.UsageError, match="SLURM_ARRAY_TASK_ID is not set"):
        stepvault.watch(place.checkpoints, run=run, remote=place.remote)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    place.save(100)
    with stepvault.watch(place.checkpoints, run=run, remote=place.remote) as agent:
        assert agent.run == "sweep-3"
    (step,) = stepvault.list_steps(run="sweep-3", remote=place.remote)
    assert step.step == 100
    assert [step.step for step in stepvault.list_steps(run=run, remote=place.remote)] == [100]
