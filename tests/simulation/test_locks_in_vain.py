"""Sessions that share a backlog seldom request a lock that another session has, although no session waits for another.

The test runs in virtual time. Requests take milliseconds, and processes are paused at random, as on a machine without a
free core. Then idle sessions take the messages of slow sessions, and both may request the same lock.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.loop import PROCESS, Process

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.claimer import ClaimCounts
    from aiozkqueue.testing.simulator.loop import VirtualLoop

#: Maximum number of locks in vain per message.
MOST = 0.25
SEEDS = 3
PROCESSES = 4
TASKS = 32
#: Mean seconds from a client to the server, between two pauses of processes, and of a pause.
WAY, BETWEEN, PAUSE = 0.004, 0.020, 0.030


class Fleet:
    """Sessions with `TASKS` tasks each, in `PROCESSES` processes."""

    def __init__(self, messages: int, seed: int) -> None:
        self._messages = messages
        self._random = Random(seed)
        self._cluster = make_cluster(seed=seed)
        self._taken = 0
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._counts: list[ClaimCounts] = []

    async def drain(self, sessions: int) -> float:
        """Take all messages, and return the number of locks in vain per message."""
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        processes = [Process(loop, f"process {number}") for number in range(PROCESSES)]
        self._cluster.ensemble.delays.network = self._delay
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(self._cluster.connect())
            await producer.queue("jobs").configure(zq.QueueConfig())
            tasks: list[asyncio.Task[None]] = []
            for number in range(sessions):
                context = copy_context()
                context.run(PROCESS.set, processes[number % PROCESSES])
                tasks.append(loop.create_task(self._take_part(), context=context))
            await asyncio.sleep(1)
            assert len(self._counts) == sessions
            await producer.queue("jobs").put_many([b"x"] * self._messages)
            self._begun.set()
            await asyncio.gather(self._pause(processes), *tasks)
        return sum(counts.contended_locks + counts.gone for counts in self._counts) / self._messages

    def _delay(self) -> float:
        return self._random.uniform(0.2, 1.8) * WAY if self._begun.is_set() else 0

    async def _take_part(self) -> None:
        async with self._cluster.connect() as session:
            jobs = session.queue("jobs")
            async with session.transaction() as tx:
                assert await tx.take(jobs) is None  # registers the session
            self._counts.append(core_of(jobs).dispatcher(state_of(jobs)).counts)
            await self._begun.wait()
            async with asyncio.TaskGroup() as group:
                for _ in range(TASKS):
                    group.create_task(self._work(session, jobs))

    async def _work(self, session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
        while self._taken < self._messages:
            async with session.transaction() as tx:
                message = await tx.take(jobs, timeout=1)
            self._taken += message is not None
        self._ended.set()

    async def _pause(self, processes: list[Process]) -> None:
        while not self._ended.is_set():
            await asyncio.sleep(self._random.expovariate(1 / BETWEEN))
            self._random.choice(processes).pause(self._random.uniform(0, 2) * PAUSE)


def in_vain(sessions: int, messages: int, seed: int) -> float:
    async def main() -> float:
        return await Fleet(messages, seed).drain(sessions)

    return run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "messages"), [(16, 2000), (40, 2500)])
def test_few_locks_are_in_vain_while_sessions_share_a_backlog(sessions: int, messages: int) -> None:
    mean = sum(in_vain(sessions, messages, seed) for seed in range(SEEDS)) / SEEDS
    assert mean <= MOST
