"""Overloaded servers that drop every request (``throttledOpWaitTime``), but still answer pings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

#: The session's `operation_timeout`, the seconds by which a call may exceed it, and the maximum number of requests that
#: a client may send in this time.
PATIENCE, MARGIN, MOST = 30.0, 2.0, 150


async def put(session: QueueSession) -> object:
    return await session.queue("jobs").put(b"2")


async def commit(session: QueueSession) -> object:
    async with session.transaction(commit_timeout=PATIENCE) as tx:
        tx.put("jobs", b"2")
    return tx.outcome


async def take(session: QueueSession) -> object:
    async with session.transaction(autocommit=False) as tx:
        return await tx.take(session.queue("jobs"))


async def peek(session: QueueSession) -> object:
    return await session.queue("jobs").peek()


async def configure(session: QueueSession) -> object:
    await session.queue("others").configure(zq.QueueConfig(max_size=3))
    return None


async def reconfigure(session: QueueSession) -> object:
    await session.queue("jobs").configure(zq.QueueConfig(max_size=3))
    return None


async def delete(session: QueueSession) -> object:
    await session.queue("jobs").admin.delete(force=True)
    return None


async def purge(session: QueueSession) -> object:
    return await session.queue("jobs").purge()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (put, zq.NotCommittedError),
        (commit, zq.NotCommittedError),
        (take, zq.ConnectionLostError),
        (peek, zq.ConnectionLostError),
        (configure, zq.NotCommittedError),
        (reconfigure, zq.NotCommittedError),
        (purge, zq.NotCommittedError),
    ],
)
def test_a_call_whose_requests_are_all_dropped_ends_at_its_deadline_and_nothing_is_applied(
    call: Callable[[QueueSession], Awaitable[object]], error: type[zq.QueueError]
) -> None:
    async def main() -> tuple[float, int, list[bytes]]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs, sent, loop = session.queue("jobs"), list["Request"](), asyncio.get_running_loop()
            await jobs.put(b"1")
            await asyncio.sleep(1)

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                sent.append(request)
                return Fault.DROPPED

            cluster.ensemble.judge = judge
            began = loop.time()
            with pytest.raises(error):
                await call(session)
            lasted, count = loop.time() - began, len(sent)
            await asyncio.sleep(10)
            cluster.ensemble.judge = lambda *_: None
            await asyncio.sleep(10)
            await session.queue("jobs").put(b"3")
            return lasted, count, [message.body for message in await jobs.peek()]

    lasted, count, stored = run_virtual(main)
    assert lasted <= PATIENCE + MARGIN
    assert count <= MOST
    assert stored == [b"1", b"3"]


@pytest.mark.parametrize("call", [reconfigure, delete, purge])
def test_nothing_is_applied_if_the_server_drops_each_change_and_answers_reads(
    call: Callable[[QueueSession], Awaitable[object]],
) -> None:
    """A server that drops a request says so: a change that was dropped is not in doubt."""

    async def main() -> list[bytes]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"1")
            drops = True

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                return Fault.DROPPED if drops and request.kind is Kind.MULTI else None

            cluster.ensemble.judge = judge
            with pytest.raises(zq.NotCommittedError):
                await call(session)
            drops = False
            return [message.body for message in await jobs.peek()]

    assert run_virtual(main) == [b"1"]


def test_a_call_succeeds_when_the_server_processes_requests_again() -> None:
    async def main() -> list[bytes]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs, loop = session.queue("jobs"), asyncio.get_running_loop()
            await jobs.put(b"1")
            until = loop.time() + PATIENCE - 5
            cluster.ensemble.judge = lambda *_: Fault.DROPPED if loop.time() < until else None
            putting = asyncio.create_task(jobs.put(b"2"))
            async with session.transaction() as tx:
                message, _ = await asyncio.gather(tx.take(jobs), jobs.peek())
                assert message is not None
                assert message.body == b"1"
            await putting
            return [message.body for message in await jobs.peek()]

    assert run_virtual(main) == [b"2"]


@pytest.mark.parametrize("number", range(1, 12))
def test_a_call_that_only_read_before_the_servers_were_lost_has_certainly_changed_nothing(number: int) -> None:
    async def main() -> list[Kind]:
        async with simulated() as cluster:
            async with cluster.connect() as session:
                await session.queue("jobs").put(b"1")
            async with cluster.connect() as session:
                sent = list[Kind]()

                def judge(_: ServerConnection, request: Request) -> Fault | None:
                    sent.append(request.kind)
                    if len(sent) == number:
                        cluster.ensemble.die()
                    return None

                cluster.ensemble.judge = judge
                with pytest.raises(zq.NotCommittedError, match="nothing was applied"):
                    await reconfigure(session)
                return sent

    assert Kind.MULTI not in run_virtual(main)
