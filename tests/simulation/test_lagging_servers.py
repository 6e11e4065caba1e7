"""A session whose server lags behind the creation of a queue still gets correct answers about the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from tests.simulation.stories.acts import simulated_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Receives the session that is ahead, and the one that lags behind it.
Program: TypeAlias = "Callable[[zq.QueueSession, zq.QueueSession], Awaitable[None]]"


async def acknowledge(ahead: zq.QueueSession, behind: zq.QueueSession) -> None:
    """A lease taken elsewhere is acknowledged permanently."""
    [lease] = await ahead.queue("jobs").leases.take()
    await behind.queue("jobs").leases.acknowledge([lease.token])
    assert await ahead.queue("jobs").size() == 1


async def renew(ahead: zq.QueueSession, behind: zq.QueueSession) -> None:
    """A lease taken elsewhere is ended."""
    [lease] = await ahead.queue("jobs").leases.take()
    await behind.queue("jobs").leases.renew([lease.token], lifetime=0)
    assert len(await ahead.queue("jobs").leases.take(2)) == 2


async def cancel(ahead: zq.QueueSession, behind: zq.QueueSession) -> None:
    """A message put elsewhere is removed by its key."""
    assert await behind.queue("jobs").cancel(key="k") is zq.Alteration.DONE
    assert await ahead.queue("jobs").size() == 1


async def move(ahead: zq.QueueSession, behind: zq.QueueSession) -> None:  # noqa: ARG001 - as the others
    """Messages put elsewhere are moved."""
    reference = await behind.admin.moves.start("jobs", "elsewhere")
    while (status := await behind.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - in ZooKeeper
        await asyncio.sleep(0.1)
    assert status.moved == 2


async def exists(ahead: zq.QueueSession, behind: zq.QueueSession) -> None:  # noqa: ARG001 - as the others
    """Return whether the message exists."""
    assert await behind.queue("jobs").exists()


@pytest.mark.parametrize("program", [acknowledge, renew, cancel, move, exists])
def test_calls_for_a_queue_that_a_lagging_server_does_not_know_yet_succeed(program: Program) -> None:
    async def main() -> None:
        async with (
            simulated(servers=3) as cluster,
            cluster.connect(name="ahead") as ahead,
            cluster.connect(name="behind") as behind,
        ):
            for name, session, server in (("ahead", ahead, 0), ("behind", behind, 1)):
                zookeeper = simulated_client(session)
                zookeeper.session.server = cluster.ensemble.servers[server]
                cluster.cut(name)
                await zookeeper.session.wait_connected()
            cluster.ensemble.servers[1].lag = 2.0
            await ahead.queue("jobs").put(b"1", key="k")
            await ahead.queue("jobs").put(b"2")
            await program(ahead, behind)

    run_virtual(main)
