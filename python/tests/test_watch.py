"""The agent's life beside scripts that end in every way."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import PATIENCE_SECONDS, until

import stepvault
from stepvault import _progress, _socket


def finished(script, code=0):
    output, messages = script.communicate(timeout=120)
    assert script.returncode == code, messages
    return output, messages


def test_a_step_is_durable_when_the_script_has_ended(place):
    script = place.script(
        """
        agent = place.watch()
        announced = agent.announce(place.save(100), metrics={"loss": 0.5, "nan": float("nan")})
        assert announced.is_sealed and announced.is_newly_sealed and announced.step == 100
        """
    )
    finished(script)
    assert place.steps() == [100]
    until("the agent has ended", lambda: not place.agents())
    (step,) = stepvault.list_steps(run="my-run", remote=place.remote, local=place.vault)
    assert step.metrics == {"loss": 0.5} and step.remotes == ("file-remote",) and step.local == "durable"


def test_steps_are_found_without_an_announcement(place):
    with place.watch(settings={"run.my-run.complete": "rename", "agent.poll-interval": "1s"}) as agent:
        place.save(7)
        progress = agent.wait(7, timeout=60)
        assert (progress.step, progress.attempt, progress.reached) == (7, 1, "durable")
    until("the agent has ended", lambda: not place.agents())


def test_a_step_that_should_be_announced_keeps_its_metrics(place):
    settings = {"run.my-run.complete": "rename", "agent.poll-interval": "1s"}
    with place.watch(settings=settings, announced=True) as agent:
        path = place.save(7)
        time.sleep(2.5)
        assert agent.announce(path, metrics={"loss": 0.5}).is_newly_sealed
        place.save(8)
    steps = stepvault.list_steps(run="my-run", remote=place.remote, local=place.vault)
    assert [(step.step, step.metrics) for step in steps] == [(8, {}), (7, {"loss": 0.5})]


def test_an_exception_ends_the_script_and_drains(place):
    script = place.script(
        """
        place.watch().announce(place.save(1))
        raise ValueError("of the trainer")
        """
    )
    _, messages = finished(script, 1)
    assert "of the trainer" in messages
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1]


def test_sigterm_drains_and_ends_as_signals_do(place):
    script = place.script(
        """
        agent = place.watch()
        agent.announce(place.save(1))
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    assert script.stdout.readline() == "ready\n"
    script.send_signal(signal.SIGTERM)
    finished(script, 143)
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1]


def test_a_handler_of_the_scripts_own_stays(place):
    script = place.script(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        agent = place.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    finished(script, 7)
    until("the agent has ended", lambda: not place.agents())


def test_the_agent_drains_after_a_script_that_was_killed(place):
    script = place.script(
        """
        agent = place.watch()
        print("ready", flush=True)
        agent.announce(place.save(1))
        print("announced", flush=True)
        time.sleep(600)
        """
    )
    assert [script.stdout.readline() for _ in range(2)] == ["ready\n", "announced\n"]
    script.kill()
    script.wait()
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1]


def test_the_interpreter_may_be_killed_while_it_drains(place):
    script = place.script(
        """
        agent = place.watch()
        agent.announce(place.save(1))
        print("ready", flush=True)
        """
    )
    script.stdout.readline()
    script.kill()
    script.wait()
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1]


def test_one_agent_serves_all_ranks_and_drains_after_the_last(place):
    text = """
        rank = int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ["RANK_OF_TEST"])
        agent = place.watch()
        assert agent.is_followed
        print("ready", flush=True)
        sys.stdin.readline()
        agent.announce(place.save(rank))
    """
    ranks = [
        place.script(text, stdin=subprocess.PIPE, env={**os.environ, "RANK_OF_TEST": str(rank)}) for rank in (1, 2, 3)
    ]
    for rank in ranks:
        assert rank.stdout.readline() == "ready\n"
    until("the agents that came too late have ended", lambda: len(place.agents()) == 1)
    for rank in ranks:
        assert len(place.agents()) == 1
        finished_rank = rank.communicate("go\n", timeout=120)
        assert rank.returncode == 0, finished_rank
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1, 2, 3]


def test_ranks_restore_the_same_step_once(place):
    with place.watch() as agent:
        agent.announce(place.save(1), wait_until="durable")
    shutil.rmtree(place.checkpoints)
    shutil.rmtree(place.vault)
    text = "print(place.watch().restore(), flush=True)"
    # The second time they are processes that no launcher numbers, and take turns.
    for variables in ({"LOCAL_WORLD_SIZE": "4"}, {}):
        environments = [{**os.environ, **variables, "LOCAL_RANK": str(rank)} for rank in range(4)]
        ranks = [place.script(text, env=environment) for environment in environments]
        ended = [finished(rank) for rank in ranks]
        assert {output for output, _ in ended} == {f"{place.checkpoints / 'step_1'}\n"}
        assert not [messages for _, messages in ended if "error" in messages]
        until("the agent has ended", lambda: not place.agents())
    fetched = [messages for _, messages in ended if "step 1 (attempt 1) started" in messages]
    assert not fetched, "the second start has it already"
    assert "error" not in place.log.read_text(), "the agents that came too late say nothing"


def test_sigterm_while_the_interpreter_exits_does_not_end_the_drain(place):
    script = place.script(
        """
        agent = place.watch(remote="s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=us-east-1", drain_deadline=4)
        agent.announce(place.save(1))
        import atexit
        atexit.register(lambda: print("exits", flush=True))
        """,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
    )
    assert script.stdout.readline() == "exits\n"
    time.sleep(1)
    script.send_signal(signal.SIGTERM)
    _, messages = finished(script)
    assert "Traceback" not in messages
    assert "stepvault: warning: " in messages and "is not" in messages


def test_progress_is_one_line_that_is_cleared(place, capsys):
    shown = [{"step": 3, "attempt": 1, "remote": "main", "bytes": 4_000_000, "done_bytes": 1_000_000}]
    text = _progress.line(shown)
    assert text == f"step 3 to main:  25% {'█' * 5}{'░' * 15} 1/4 MB"
    assert _progress.line([]) == ""
    line = _progress.ProgressLine.__new__(_progress.ProgressLine)
    line._shown = ""
    for written in (text, "", ""):
        line._write(written)
    assert capsys.readouterr().err == f"{text}\r{' ' * len(text)}\r"
    with place.watch(progress=True) as agent:
        agent.announce(place.save(1), wait_until="durable")
    assert agent._progress is not None and not agent._progress._thread.is_alive()


def test_a_forked_process_neither_drains_nor_ends_the_agent(place):
    agent = place.watch()
    child = os.fork()
    if child == 0:
        agent.drain()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    script = place.script(
        """
        agent = place.watch()
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        assert agent.announce(place.save(1)).is_sealed
        """
    )
    finished(script)
    assert agent.announce(place.save(2)).is_sealed
    drained = agent.drain()
    assert drained.is_durable and not drained.not_durable and agent.drain() is drained
    assert place.steps() == [1, 2]


def test_an_agent_that_died_is_started_again(place, capfd):
    agent = place.watch()
    (process_id,) = place.agents()
    os.kill(process_id, signal.SIGKILL)
    until("it has ended", lambda: not place.agents())
    assert agent.announce(place.save(1)).is_sealed
    assert "the agent has ended: starting it again" in capfd.readouterr().err
    assert agent.drain().is_durable
    assert place.steps() == [1]


def test_a_stopped_agent_is_waited_for_once(place, monkeypatch):
    waits = []

    def ask(*arguments, grace_seconds, **more):
        waits.append(grace_seconds)
        return _socket.ask(*arguments, grace_seconds=grace_seconds, **more)

    agent = place.watch()
    (process_id,) = place.agents()
    os.kill(process_id, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr("stepvault._agent.GRACE_SECONDS", 2.0)
        patched.setattr("stepvault._agent.ask", ask)
        for path in (place.save(1), place.save(2)):
            with pytest.raises(stepvault.Unreachable, match="does not answer"):
                agent.announce(path)
        os.kill(process_id, signal.SIGCONT)
        for _ in range(2):
            assert agent.announce(path, wait_until="durable").is_sealed
    assert waits[:3] == [2.0, 1.0, 1.0] and set(waits[3:]) == {2.0}
    assert agent.drain().is_durable


def test_an_agent_that_cannot_start_says_why(place):
    for more, why in [
        ({"settings": {"run.my-run.profile": "no such framework"}}, "no such framework"),
        ({"settings": {"agent.nicer": 5}}, "nicer"),
        ({"run": "my run"}, "my run"),
        ({"remote": "s4://bucket/prefix"}, "s4"),
        ({"keep_last": 0}, "keep"),
    ]:
        with pytest.raises(stepvault.UsageError, match=why):
            place.watch(**more)
    with pytest.raises(stepvault.UsageError, match="too long"):
        place.watch(local=place.path / ("long" * 40))


def test_what_is_not_safe_is_said_while_the_script_runs_and_once(place):
    script = place.script(
        """
        remote = place.remote / "not" / "mounted"
        settings = {"run.my-run.quiet-time": "1s"}
        agent = place.watch(remote=remote, settings=settings, log=None, drain_deadline=5, strict=False)
        place.save(1)
        time.sleep(10)
        print("training ends", file=sys.stderr, flush=True)
        """
    )
    _, heard = script.communicate(timeout=PATIENCE_SECONDS)
    before, after = heard.split("training ends")
    assert "warning: step 1 (attempt 1) of my-run is not durable" in before, heard
    assert sum("is not durable" in line for line in after.splitlines()) <= 1, heard


def test_a_directory_that_does_not_exist_yet_becomes_the_remote(place):
    place.remote = place.path / "new"
    agent = place.watch()
    assert agent.restore() is None
    agent.announce(place.save(1), wait_until="durable")
    assert place.steps() == [1]


def test_a_remote_that_cannot_work_is_an_error_at_once(place):
    missing = place.path / "not" / "mounted"
    regular_file = place.path / "file"
    regular_file.write_text("not a directory")
    cases = [
        (missing, "does not exist"),
        (regular_file, "not a directory"),
        ([place.remote, missing], "does not exist"),
    ]
    for remote, why in cases:
        with pytest.raises(stepvault.StepvaultError, match=why):
            place.watch(remote=remote)
        until("the agent has ended", lambda: not place.agents())


def test_without_strict_a_remote_that_cannot_work_is_a_warning_at_once_and_at_the_end(place):
    script = place.script(
        """
        place.watch(remote=place.remote / "not" / "mounted", drain_deadline=1, strict=False).announce(place.save(1))
        print("training ends", file=sys.stderr, flush=True)
        """
    )
    _, heard = script.communicate(timeout=PATIENCE_SECONDS)
    for part in heard.split("training ends"):
        assert "warning: remote file-mounted cannot be used" in part, heard
    assert script.returncode == 0


def test_a_death_without_a_drain_uses_the_deadline(place):
    script = place.script(
        """
        agent = place.watch(settings={"run.my-run.quiet-time": "60s"}, drain_deadline=12)
        place.save(1)
        os._exit(9)
        """
    )
    assert script.wait() == 9
    until("step 1 is durable", lambda: place.steps() == [1])


def test_a_service_is_found_and_left_running(place):
    arguments = ["agent", "--quiet", "--run=my-run", f"--local={place.vault}", f"--remote={place.remote.as_uri()}"]
    with place.log.open("ab") as log:
        service = subprocess.Popen([stepvault.program(), *arguments], stdout=log, stderr=log)
    until("it listens", (place.vault / "agent.sock").exists)
    agent = place.watch()
    assert not agent.is_followed and place.agents() == [service.pid]
    agent.announce(place.save(1))
    assert agent.drain().is_durable
    assert place.agents() == [service.pid]
    service.terminate()
    assert service.wait() == 0
    with pytest.raises(stepvault.Unreachable, match="no agent answers"):
        agent.announce(place.save(2))


def test_a_vault_of_another_run_is_held(place):
    agent = place.watch()
    with pytest.raises(stepvault.Held, match="another agent serves the vault"):
        stepvault.watch(place.checkpoints, run="another", remote=place.remote, log=place.log)
    assert agent.drain().is_durable


def test_the_next_script_begins_where_the_agent_of_the_last_one_ends(place):
    for step in (1, 2, 3):
        script = place.script(
            f"""
            agent = place.watch()
            agent.announce(place.save({step}))
            print("announced", flush=True)
            time.sleep(600)
            """
        )
        assert script.stdout.readline() == "announced\n"
        # The agent drains while the next one starts.
        script.kill()
        script.wait()
    until("the agent has ended", lambda: not place.agents())
    assert place.steps() == [1, 2, 3]


def test_the_agent_of_a_killed_script_leaves_its_uploads_to_the_next(place):
    slow = "?bandwidth-limit=16KiB"
    script = place.script(
        f"""
        agent = place.watch(remote=f"file://{{place.remote}}{slow}", drain_deadline=3600)
        agent.announce(place.save(1, os.urandom(8 << 20)))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    finished(script, -signal.SIGKILL)
    (first,) = place.agents()
    until("the agent drains", lambda: _socket.ask(place.vault / "agent.sock", "GET", "/v1/status")["stopping"])
    with place.watch() as agent:
        assert agent.is_followed and first not in place.agents()
        assert agent.restore() == place.checkpoints / "step_1"
    assert place.steps() == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_the_socket_of_another_user_is_refused(place):
    place.vault.mkdir()
    place.vault.chmod(0o777)
    for parent in place.path.parents:
        if parent.stat().st_uid == 0 and str(parent).startswith("/tmp/pytest"):
            parent.chmod(0o755)
    place.path.chmod(0o755)
    text = """
        import os, socket, sys
        os.setuid(65534)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(sys.argv[1])
        os.chmod(sys.argv[1], 0o777)
        listener.listen()
        print("ready", flush=True)
        listener.accept()[0].recv(1)
    """
    import textwrap

    command = [sys.executable, "-c", textwrap.dedent(text), str(place.vault / "agent.sock")]
    stranger = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert stranger.stdout.readline() == "ready\n"
    with pytest.raises(stepvault.Denied, match="user 65534 listens on it"):
        place.watch()
    stranger.kill()
    stranger.wait()
    until("the agent has ended", lambda: not place.agents())


def test_what_is_not_reached_in_time_is_told(place):
    agent = place.watch()
    begun = time.monotonic()
    with pytest.raises(stepvault.NotReached, match="step 5 of 'my-run' is not durable"):
        agent.wait(5, timeout=1)
    assert time.monotonic() - begun < 30
    with pytest.raises(TimeoutError):
        agent.wait(5, until="staged", timeout=0)
    with pytest.raises(stepvault.UsageError):
        agent.wait(5, until="safe")
    with pytest.raises(stepvault.NotFound):
        agent.announce(place.checkpoints / "step_9")
    agent.drain()


def test_two_remotes_get_each_step(place):
    second = place.path / "second"
    second.mkdir()
    with place.watch(remote=[place.remote, f"file://{second}"], keep_last=1) as agent:
        agent.announce(place.save(1), wait_until="durable")
        agent.announce(place.save(2), wait_until="durable")
    for remote in (place.remote, second):
        (newest, *_) = stepvault.list_steps(run="my-run", remote=remote, local=place.vault)
        assert newest.step == 2
