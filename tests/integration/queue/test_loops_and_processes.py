"""A session belongs to one event loop and one process, and warns if its loop is blocked."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import BlockedLoopWarning, WrongLoopError
from tests.integration.queue.conftest import zookeeper_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener


def uses(session: zq.QueueSession, tx: zq.Transaction) -> list[Callable[[], object]]:
    """Return every use of a session that could reach the server."""
    queue = session.queue("jobs")

    async def enter_transaction() -> None:
        async with session.transaction():
            pass

    async def no_handler(_: zq.Delivery[bytes]) -> None: ...

    return [
        lambda: session.queue("other"),
        lambda: queue.put(b"1"),
        lambda: queue.put_many([b"1"]),
        queue.size,
        queue.peek,
        queue.purge,
        queue.stats,
        queue.admin.release_claims,
        queue.dead_letters.size,
        queue.consume,
        lambda: session.listener(queue, no_handler),
        lambda: session.outcome(tx.id),
        enter_transaction,
        lambda: tx.put("jobs", b"1"),
        lambda: tx.take(queue),
        lambda: tx.take_many(queue, 2),
        tx.commit,
    ]


def connected_of(session: zq.QueueSession) -> Callable[[], object]:
    return lambda: session.connected


async def refused(use: Callable[[], object], error: type[Exception]) -> bool:
    try:
        result = use()
        if asyncio.iscoroutine(result):
            await result
    except error:
        return True
    return False


async def test_a_session_is_refused_on_another_loop(session: zq.QueueSession) -> None:
    async with session.transaction(autocommit=False) as tx:
        used = [*uses(session, tx), connected_of(session)]

        async def on_another_loop() -> list[bool]:
            return [await refused(use, WrongLoopError) for use in used]

        answers = await asyncio.to_thread(lambda: asyncio.run(on_another_loop()))
    assert answers == [True] * len(used)
    await session.queue("jobs").put(b"1")  # it still works on its own loop


async def test_a_session_is_refused_in_a_thread_without_a_loop(session: zq.QueueSession) -> None:
    with pytest.raises(WrongLoopError, match="event loop"):
        await asyncio.to_thread(session.queue, "jobs")


async def test_a_forked_child_is_refused_and_writes_nothing_to_its_parents_connection(
    session: zq.QueueSession,
) -> None:
    identity = zookeeper_session(session)
    async with session.transaction(autocommit=False) as tx:
        used = [*uses(session, tx), connected_of(session)]
        child = os.fork()
        if not child:
            refusals = 0
            for use in used:
                try:
                    result = use()
                    if asyncio.iscoroutine(result):
                        result.send(None)
                except WrongLoopError as error:
                    refusals += "forked" in str(error)
                except BaseException:  # noqa: BLE001 -- any other error counts as not refused
                    continue
            os._exit(0 if refusals == len(used) else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await session.queue("jobs").put(b"1")
    assert zookeeper_session(session) == identity


def in_a_child(use: Callable[[], object]) -> int:
    """Call the function in a forked child, and return its process id. Its exit status is 0 unless the call raises."""
    child = os.fork()
    if not child:
        try:
            use()
        except BaseException:  # noqa: BLE001 -- any: the exit status reports it
            os._exit(1)
        os._exit(0)
    return child


def exit_status(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("use", ["close", "roll back"])
def test_a_forked_child_that_runs_its_parents_loop_leaves_the_parents_claims(
    zookeeper: str, queue_root: str, use: str
) -> None:
    loop = asyncio.new_event_loop()
    connection = zq.connect(zookeeper, root=queue_root, session_timeout=20)
    session = loop.run_until_complete(connection.__aenter__())

    async def claim() -> zq.Transaction:
        jobs = session.queue("jobs")
        await jobs.put(b"1")
        tx = await session.transaction(autocommit=False).__aenter__()
        assert await tx.take(jobs, timeout=30) is not None
        return tx

    async def close() -> None:
        await connection.__aexit__(None, None, None)

    tx = loop.run_until_complete(claim())
    undo = close if use == "close" else partial(tx.rollback, delay=0)
    assert exit_status(in_a_child(lambda: loop.run_until_complete(undo()))) == 0
    assert loop.run_until_complete(committed(session, tx))
    loop.run_until_complete(close())
    loop.close()


async def committed(session: zq.QueueSession, tx: zq.Transaction) -> bool:
    await tx.commit()
    return not await session.queue("jobs").size()


async def test_a_forked_child_can_connect_the_application_of_its_parent(zookeeper: str, queue_root: str) -> None:
    app = zq.App(zookeeper, root=queue_root, session_timeout=20)
    jobs = app.queue("jobs")

    async def use() -> None:
        async with app.connect():
            await jobs.put(b"of the child")

    async with app.connect():
        assert await asyncio.to_thread(exit_status, in_a_child(lambda: asyncio.run(use()))) == 0
        assert [message.body for message in await jobs.peek()] == [b"of the child"]


async def test_each_use_of_a_closed_session_raises(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        tx = await session.transaction(autocommit=False).__aenter__()
        used = uses(session, tx)
        assert session.connected
    assert not session.connected
    assert [await refused(use, zq.SessionClosedError) for use in used] == [True] * len(used)
    with pytest.raises(zq.SessionClosedError, match=r"open another with aiozkqueue\.connect"):
        session.queue("jobs")
    await tx.rollback()  # always succeeds


async def test_a_loop_blocked_for_a_third_of_the_session_timeout_is_logged(open_session: Opener) -> None:
    session = await open_session(session_timeout=12)  # longer than the block, since the machine may stall too
    identity = zookeeper_session(session)
    with pytest.warns(BlockedLoopWarning, match="was blocked"):
        end = time.monotonic() + 5.4
        while time.monotonic() < end:  # blocks the loop
            pass
        await asyncio.sleep(0.2)
    await session.queue("jobs").put(b"1")
    assert zookeeper_session(session) == identity


async def test_connecting_to_no_server_fails_after_the_connect_timeout(zookeeper_proxy: ZooKeeperProxy) -> None:
    zookeeper_proxy.refuse()
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(zq.ConnectionLostError, match=r"127\.0\.0\.1.*within 0\.5 s"):
        async with zq.connect(zookeeper_proxy.hosts, connect_timeout=0.5):
            pass
    assert 0.4 < loop.time() - start < 10  # the default is 15 s


async def test_connecting_to_a_server_that_does_not_answer_fails_after_the_connect_timeout(
    zookeeper_proxy: ZooKeeperProxy,
) -> None:
    zookeeper_proxy.stall()
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(zq.ConnectionLostError):
        async with zq.connect(zookeeper_proxy.hosts, connect_timeout=0.5):
            pass
    assert 0.4 < loop.time() - start < 10


def test_connecting_without_an_asyncio_loop_raises_with_advice() -> None:
    entering = zq.connect("127.0.0.1").__aenter__()
    with pytest.raises(WrongLoopError, match=r'asyncio.run\(main\(\)\) or with anyio.run\(main, backend="asyncio"\)'):
        entering.send(None)  # as another kind of loop does, such as trio's
