"""Sessions that share a backlog rarely ask for a lock that another session has, although none waits for another.

In virtual time. Requests take milliseconds, and processes are paused at random, as on a machine without a free core:
then idle sessions take the messages of sessions that are behind, and both may ask for the same lock.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.internals import core_of, state_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.loop import PROCESS, Process

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.claimer import ClaimCounts
    from aiozkqueue.testing.simulator.loop import VirtualLoop

#: Maximum number of locks in vain for each message.
MOST = 0.05
PROCESSES = 4
TASKS = 32
#: Seconds: the mean time from a client to the server, between two pauses of processes, and of a pause.
WAY, BETWEEN, PAUSE = 0.004, 0.020, 0.030


def counts_of(session: zq.QueueSession) -> ClaimCounts:
    jobs = session.queue("jobs")
    return core_of(jobs).dispatcher(state_of(jobs)).counts


def drained(sessions: int, messages: int, seed: int) -> list[ClaimCounts]:
    """Take all messages with this many sessions of `TASKS` tasks each; return what each session counted."""
    random = Random(seed)

    async def main() -> list[ClaimCounts]:
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        cluster = make_cluster(seed=seed)
        processes = [Process(loop, f"process {number}") for number in range(PROCESSES)]
        begun, ended = asyncio.Event(), asyncio.Event()
        cluster.ensemble.delays.network = lambda: random.uniform(0.2, 1.8) * WAY if begun.is_set() else 0
        taken: list[zq.Message[bytes]] = []
        counts: list[ClaimCounts] = []

        async def work(session: zq.QueueSession) -> None:
            jobs = session.queue("jobs")
            while len(taken) < messages:
                async with session.begin() as tx:
                    message = await tx.take(jobs, timeout=1)
                if message is not None:
                    taken.append(message)
            ended.set()

        async def take_part() -> None:
            async with cluster.connect() as session:
                async with session.begin() as tx:
                    assert await tx.take(session.queue("jobs")) is None  # registers it
                counts.append(counts_of(session))
                await begun.wait()
                async with asyncio.TaskGroup() as group:
                    for _ in range(TASKS):
                        group.create_task(work(session))

        async def pause() -> None:
            while not ended.is_set():
                await asyncio.sleep(random.expovariate(1 / BETWEEN))
                random.choice(processes).pause(random.uniform(0, 2) * PAUSE)

        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(cluster.connect())
            await producer.queue("jobs").configure(zq.QueueConfig())
            tasks: list[asyncio.Task[None]] = []
            for number in range(sessions):
                context = copy_context()
                context.run(PROCESS.set, processes[number % PROCESSES])
                tasks.append(loop.create_task(take_part(), context=context))
            await asyncio.sleep(1)
            assert len(counts) == sessions
            await producer.queue("jobs").put_many([b"x"] * messages)
            begun.set()
            await asyncio.gather(pause(), *tasks)
        assert len(taken) == messages
        return counts

    return run_virtual(main)


@pytest.mark.parametrize(("sessions", "messages"), [(4, 2000), (16, 2000), (16, 6000), (40, 2500)])
def test_few_locks_are_in_vain_while_sessions_share_a_backlog(sessions: int, messages: int) -> None:
    for seed in range(2):
        counts = drained(sessions, messages, seed)
        in_vain = sum(one.locks_in_vain + one.ghosts for one in counts)
        assert in_vain <= MOST * messages, (seed, in_vain / messages)
