"""A process killed at each of its requests in turn, before or after the request was applied."""

from __future__ import annotations

import asyncio
import enum
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from aiozkqueue.testing.simulator import Fault, Process, VirtualLoop, run_virtual, simulated
from aiozkqueue.testing.simulator.loop import PROCESS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiozkqueue as zq
    from aiozkqueue.testing.simulator import Cluster, Request
    from aiozkqueue.testing.simulator.server import ServerConnection

SESSION_TIMEOUT = 6.0
LIMIT = 500.0
FOR_EVER = 10 * LIMIT


class When(enum.Enum):
    """The time of the kill."""

    BEFORE = Fault.LOST_BEFORE
    AFTER = Fault.LOST_AFTER


def killed_at(
    number: int,
    when: When,
    *,
    before: Callable[[zq.QueueSession], Awaitable[None]],
    work: Callable[[zq.QueueSession], Awaitable[None]],
    after: Callable[[zq.QueueSession], Awaitable[list[str]]],
) -> tuple[bool, list[str]]:
    """Prepare, kill a working process at its request ``number``, and check the state that another process then finds.

    Returns whether the process sent this many requests, and the faults that ``after`` finds.
    """
    found: list[str] = []
    killed = False

    async def main() -> None:
        nonlocal killed
        async with simulated() as cluster:
            cluster.ensemble.tick = 0.1
            cluster.ensemble.delays.network = lambda: 0.001
            async with cluster.connect(name="before", node="before", session_timeout=SESSION_TIMEOUT) as session:
                await before(session)
            process = Process(cast("VirtualLoop", asyncio.get_running_loop()), "struck")
            sent = 0

            def judge(connection: ServerConnection, _: Request) -> Fault | None:
                nonlocal sent, killed
                if connection.client.name != "struck":
                    return None
                sent += 1
                if killed:
                    return Fault.LOST_BEFORE
                if sent < number:
                    return None
                killed = True
                process.pause(FOR_EVER)
                return when.value

            cluster.ensemble.judge = judge
            context = copy_context()
            context.run(PROCESS.set, process)
            working = asyncio.get_running_loop().create_task(_work(cluster, work), context=context)
            await asyncio.wait({working}, timeout=3 * SESSION_TIMEOUT)
            cluster.ensemble.judge = lambda *_: None
            if working.done():
                working.result()
            async with cluster.connect(name="after", session_timeout=SESSION_TIMEOUT) as session:
                found.extend(await after(session))
            process.resume()  # otherwise its remaining tasks would never end
            working.cancel()
            await asyncio.wait({working}, timeout=10 * SESSION_TIMEOUT)
            loop: Any = asyncio.get_running_loop()
            found.extend(loop.failures)

    run_virtual(main, limit=LIMIT)
    return killed, found


async def _work(cluster: Cluster, work: Callable[[zq.QueueSession], Awaitable[None]]) -> None:
    async with cluster.connect(name="struck", session_timeout=SESSION_TIMEOUT) as session:
        await work(session)
