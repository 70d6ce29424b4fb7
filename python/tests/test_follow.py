"""Steps that are followed on another machine."""

import asyncio
import shutil
import threading

import pytest

import stepvault


def push(place, step):
    stepvault.push(place.save(step), run="my-run", remote=place.remote)
    shutil.rmtree(place.vault, ignore_errors=True)


def options(place, **more):
    return {"into": place.path / "followed", "remote": [place.remote], "interval": 1, "timeout": 0, **more}


def test_each_step_comes_once_and_one_that_was_left_comes_again(place):
    push(place, 1)
    for step in stepvault.follow("my-run", **options(place)):
        assert (step.step, step.attempt, step.passed_over) == (1, 1, ())
        assert (step.path / "weights.bin").read_bytes() == b"weights"
        break
    with pytest.raises(ValueError, match="of the loop"):
        for _step in stepvault.follow("my-run", **options(place)):
            raise ValueError("of the loop")
    assert [step.step for step in stepvault.follow("my-run", **options(place))] == [1]
    assert list(stepvault.follow("my-run", **options(place))) == []
    push(place, 2)
    push(place, 3)
    found = [(step.step, step.passed_over) for step in stepvault.follow("my-run", **options(place))]
    assert found == [(3, (2,))]


def test_the_step_of_the_loop_stays_while_newer_ones_come(place):
    push(place, 1)
    seen = []
    for step in stepvault.follow("my-run", **options(place, all_steps=True, keep=1)):
        seen.append(step.step)
        if step.step < 4:
            push(place, step.step + 1)
            assert (step.path / "weights.bin").exists()
    assert seen == [1, 2, 3, 4]
    assert [path.name for path in (place.path / "followed").glob("0*")] == ["000000000004.a1"]


def test_with_all_steps_one_that_is_durable_late_comes_once(place):
    for step in (1, 2, 3):
        push(place, step)
    commit, away = place.remote / "my-run/.stepvault/commits/000000000002.a1.json", place.path / "away"
    commit.rename(away)

    def followed():
        return [step.step for step in stepvault.follow("my-run", **options(place, all_steps=True))]

    assert followed() == [1, 3]
    away.rename(commit)
    assert followed() == [2]
    assert followed() == []


def test_it_waits_for_the_next_step(place):
    push(place, 1)
    steps = stepvault.follow("my-run", **options(place, timeout=60))
    assert next(steps).step == 1
    late = threading.Timer(1.0, push, (place, 2))
    late.start()
    assert next(steps).step == 2
    late.join()
    with pytest.raises(stepvault.Held):
        next(stepvault.follow("my-run", **options(place)))
    steps.close()
    assert [step.step for step in stepvault.follow("my-run", **options(place))] == [2]


def test_errors_are_exceptions(place):
    push(place, 1)
    with pytest.raises(stepvault.UsageError, match="matches no file"):
        next(stepvault.follow("my-run", **options(place, include=["*.safetensors"])))
    place.remote.rename(place.path / "unmounted")
    with pytest.raises(stepvault.Unreachable):
        next(stepvault.follow("my-run", **options(place)))


def test_asyncio_has_the_same_and_can_be_cancelled(place):
    import stepvault.aio

    async def script():
        found = []
        async for step in stepvault.aio.follow("my-run", **options(place)):
            found.append(step.step)
        return found

    async def waiting():
        async for step in stepvault.aio.follow("my-run", **options(place, timeout=600)):
            raise AssertionError(step)

    async def cancelled():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting(), 2)

    push(place, 1)
    assert asyncio.run(script()) == [1]
    asyncio.run(cancelled())
