"""Actions that several stories share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.testing.simulator import SimulatedClient
from tests.simulation.history import Status

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.testing.simulator.server import Server
    from tests.simulation.workload import Run


async def put(run: Run, queue: zq.Queue[bytes], count: int, slowness: int = 2) -> None:
    for _ in range(count):
        unit = run.unit("producer")
        unit.puts = {run.token(): "a"}
        await queue.put(next(iter(unit.puts)).encode())
        run.decide(unit, Status.COMMITTED)
        await asyncio.sleep(run.random.random() * slowness * run.disturbances.scale)


async def put_together(run: Run, name: str, queue: zq.Queue[bytes], count: int) -> None:
    """Put this many messages in one request, as the client with this name."""
    unit = run.unit(name)
    unit.puts = {run.token(): "a" for _ in range(count)}
    await queue.put_many([token.encode() for token in unit.puts])
    run.decide(unit, Status.COMMITTED)


async def take_and_commit(
    run: Run, name: str, slowness: int, patience: float = 0.2, times: int = 8, queue: str = "a"
) -> None:
    """Take and commit one message after another."""
    async with run.cluster.connect(name=name) as session:
        for _ in range(times):
            unit = run.unit(name)
            async with run.outcome_of(unit), session.transaction() as tx:
                message = await tx.take(session.queue(queue), timeout=patience)
                if message is not None:
                    run.show(unit, name, session, message)
                    await asyncio.sleep(run.random.random() * slowness * run.disturbances.scale)
                run.release_unseen(unit)
                await tx.commit()
                run.decide(unit, Status.COMMITTED)


async def end(run: Run) -> None:
    await run.heal()
    await run.drain()
    run.finish()


def simulated_client(session: zq.QueueSession) -> SimulatedClient:
    """Return the ZooKeeper client of a session."""
    zookeeper = session._runtime.zookeeper
    assert isinstance(zookeeper, SimulatedClient)
    return zookeeper


async def move(run: Run, session: zq.QueueSession, name: str, server: Server) -> None:
    """Connect a client to this server."""
    zookeeper = simulated_client(session)
    zookeeper.session.server = server
    run.cluster.cut(name)
    await zookeeper.session.wait_connected()
