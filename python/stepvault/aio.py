"""The functions of this package for asyncio: each runs in a thread, so that the event loop is not blocked.

```python
agent = await stepvault.aio.watch("checkpoints", run="my-run", remote="s3://bucket/prefix")
await stepvault.aio.call(agent.announce, path, step=100)
```
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, TypeVar

from . import _agent, _commands, _follow
from ._results import FollowedStep

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    Parameters = ParamSpec("Parameters")

Result = TypeVar("Result")


async def call(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Runs a function of this package, such as a method of an agent, and returns what it returns."""
    bound = functools.partial(function, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(None, bound)


def _asynchronous(function: Callable[Parameters, Result]) -> Callable[Parameters, Awaitable[Result]]:
    @functools.wraps(function)
    async def wrapper(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        return await call(function, *arguments, **options)

    return wrapper


@functools.wraps(_agent.watch)
async def _watch(*arguments: Any, handle_sigterm: bool = True, **options: Any) -> _agent.Agent:
    agent = await call(_agent.watch, *arguments, handle_sigterm=False, **options)
    if handle_sigterm:
        # Only the main thread may, which runs the event loop.
        _agent.end_at_sigterm()
    return agent


async def follow(*arguments: Any, **options: Any) -> AsyncIterator[FollowedStep]:
    """The steps of `stepvault.follow`, with its options: `async for step in stepvault.aio.follow(...)`."""
    steps = await call(_follow.follow, *arguments, **options)
    try:
        while True:
            step = await call(next, steps, None)
            if step is None:
                return
            yield step
    finally:
        # The thread that waits for the next step ends with the program.
        steps.close()


if TYPE_CHECKING:
    watch = _asynchronous(_agent.watch)
else:
    watch = _watch
restore = _asynchronous(_commands.restore)
push = _asynchronous(_commands.push)
list_steps = _asynchronous(_commands.list_steps)
status = _asynchronous(_commands.status)
pin = _asynchronous(_commands.pin)
