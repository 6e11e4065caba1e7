"""The behaviour in Curator's own tests of its plain queue, on a queue that it shares with us; see README.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode

from .test_kazoo import awaited, drained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    from .peers import Curator

pytestmark = pytest.mark.timeout(180)

TEN = [b"%d" % number for number in range(10)]
HUNDRED = [b"%d" % number for number in range(100)]


async def test_a_failed_item_keeps_its_name_through_retries(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    """A name that grew with each retry would become too long."""
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    await queue.put(b"fails")
    names = []
    for _ in range(4):
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(queue, timeout=60) is not None
            names += await server_view.children(path)
            await tx.rollback(delay=0)
    assert len(names) == 4
    assert len(set(names)) == 1


async def test_a_failed_message_is_redelivered_to_its_java_consumer(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await queue.put_multi([b"first", b"second"])
    await curator.ask("consume", "c", "queue", path, locks, "fail", 1, "REQUEUE")
    assert await curator.shown("c", 3) == [b"first", b"first", b"second"]
    await server_view.until(lambda: not server_view._children(path))
    assert await curator.shown_until_now("c") == []


async def test_a_message_requeued_by_java_goes_unchanged_to_the_end_and_is_taken_by_us(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    """Its REQUEUE creates another item with the same bytes and a name of the same length."""
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await queue.put_multi([b"first", b"second"])
    await queue.put(b"behind")
    before, behind = await server_view.children(path)
    data = await server_view.get(f"{path}/{before}")
    await curator.ask("consume", "c", "queue", path, locks, "hold-fail", 1, "REQUEUE")
    assert await curator.shown("c") == [b"first"]
    assert await server_view.children(locks) == [before]
    await curator.ask("go", "c")
    assert await curator.shown("c") == [b"behind"]  # its consumer holds this message, so that it takes no other one
    (after,) = set(await server_view.children(path)) - {behind}
    assert after > behind
    assert len(after) == len(before)
    assert await server_view.get(f"{path}/{after}") == data
    assert await awaited(session, queue, 2) == [b"first", b"second"]
    await curator.ask("go", "c")
    await server_view.until(lambda: not server_view._children(path))
    assert await curator.shown_until_now("c") == []


async def test_a_failed_message_is_deleted_by_either_side_in_delete_mode(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, policy=zq.ConsumeOnce(exhausted="drop"))
    await queue.put(b"fails there")
    await curator.ask("consume", "c", "queue", path, locks, "failing", 1, "DELETE")
    assert await curator.shown("c") == [b"fails there"]
    await server_view.until(lambda: not server_view._children(path))
    await curator.ask("close", "c")
    assert await curator.shown_until_now("c") == []

    await curator.ask("open", "q", "queue", path, locks, 0)
    await curator.ask("put", "q", b"fails here".hex())
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(queue, timeout=60)
        assert message is not None
        assert message.body == b"fails here"
        await tx.rollback()
    assert await drained(session, queue) == []
    assert (await queue.size(), await queue.dead_letters.size()) == (0, 0)


async def test_messages_of_a_failing_consumer_are_handled_by_a_java_one(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    """Our consumer fails from its eleventh message on, and the Java consumer handles the failed messages."""
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await curator.ask("open", "q", "queue", path, locks, 0)
    for body in HUNDRED:
        await curator.ask("put", "q", body.hex())
    handled: list[bytes] = []
    failed: list[bytes] = []
    enough = asyncio.Event()

    async def on_message(delivery: zq.Delivery[bytes]) -> None:
        if len(handled) == 10:
            failed.append(delivery.body)
            enough.set()
            raise zq.Retry(delay=0)
        handled.append(delivery.body)

    async with session.listener(queue, on_message, concurrency=1) as listener:
        await enough.wait()
        listener.stop()
    await curator.ask("consume", "c", "queue", path, locks, "show", 1)
    await server_view.until(lambda: not server_view._children(path))
    theirs = await curator.shown_until_now("c")
    assert Counter([*handled, *theirs]) == Counter(HUNDRED)
    assert failed
    assert set(failed) <= set(theirs)


@pytest.mark.parametrize("locking", [True, False], ids=["safe mode", "unsafe mode"])
async def test_one_consumer_gets_all_messages_in_order(
    session: zq.QueueSession, curator: Curator, path: str, *, locking: bool
) -> None:
    lock_path = f"{path}-locks" if locking else None
    queue = session.curator_queue(path, lock_path=lock_path)
    await curator.ask("open", "q", "queue", path, lock_path or "-", 0)
    for body in TEN:
        await curator.ask("put", "q", body.hex())
    assert await awaited(session, queue, 10) == TEN
    await curator.ask("consume", "c", "queue", path, lock_path or "-", "show", 1)
    await queue.put_many(TEN)
    assert await curator.shown("c", 10) == TEN


async def test_a_hundred_messages_in_one_item_are_delivered_in_order(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await curator.ask("open", "q", "queue", path, locks, 0)
    await curator.ask("put", "q", ",".join(body.hex() for body in HUNDRED))
    assert len(await server_view.children(path)) == 1
    assert await awaited(session, queue, 100) == HUNDRED
    await queue.put_multi(HUNDRED)
    await curator.ask("consume", "c", "queue", path, locks, "show", 1)
    assert await curator.shown("c", 100) == HUNDRED


async def test_one_consumer_gets_messages_of_producers_of_both_sides_once(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    queue = session.curator_queue(path)
    await curator.ask("open", "q", "queue", path, "-", 0)

    async def theirs() -> None:
        for body in HUNDRED[:50]:
            await curator.ask("put", "q", body.hex())

    async def ours() -> None:
        for body in HUNDRED[50:]:
            await queue.put(body)

    _, _, bodies = await asyncio.gather(theirs(), ours(), awaited(session, queue, 100))
    assert sorted(bodies) == sorted(HUNDRED)
    assert [body for body in bodies if body in HUNDRED[:50]] == HUNDRED[:50]
    assert [body for body in bodies if body in HUNDRED[50:]] == HUNDRED[50:]
    assert await queue.size() == 0


async def test_each_put_is_reported_once_when_it_is_stored(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    """Curator calls its put listener for each message; our put returns."""
    queue = session.curator_queue(path)
    await curator.ask("open", "q", "queue", path, "-", 0)
    for body in TEN:
        await curator.ask("put", "q", body.hex())
    assert await curator.ask("flush", "q", 0) == "true"
    # Waits, since a flush of Curator may end before its listeners are called.
    assert await curator.ask("completed", "q", 10) == "10"
    assert await queue.size() == 10
    for number, body in enumerate(TEN, 11):
        await queue.put(body)
        assert await queue.size() == number


async def test_a_put_is_pending_until_the_server_stores_it(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, path: str, server_view: Observer
) -> None:
    """The counterpart of Curator's flush, which fails while a put is in progress: our put waits."""
    session = await open_session(zookeeper_proxy.hosts, session_timeout=30)
    queue = session.curator_queue(path)
    await queue.put(b"before")
    fault = zookeeper_proxy.hold_request(lambda request: request.opcode == Opcode.MULTI)
    put = asyncio.create_task(queue.put(b"in progress"))
    await fault.struck(60)
    done, _ = await asyncio.wait({put}, timeout=0.2)
    assert not done
    assert len(await server_view.children(path)) == 1
    fault.release()
    await put
    assert len(await server_view.children(path)) == 2


async def test_an_idle_consumer_gets_new_messages_after_its_session_expired(
    session: zq.QueueSession,
    other: zq.QueueSession,
    path: str,
    server_view: Observer,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    waiting = asyncio.create_task(awaited(session, queue, 1))
    await server_view.until_there(f"{path}-locks")
    await expire(session)
    await other.curator_queue(path, lock_path=f"{path}-locks").put(b"later")
    assert await waiting == [b"later"]


async def test_several_bounded_producers_and_consumers_keep_the_bound(
    session: zq.QueueSession, other: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    """Two of our producers and a Java producer have a bound of ten, which the puts in progress may exceed."""
    most, each, locks = 10, 60, f"{path}-locks"
    queues = [opened.curator_queue(path, lock_path=locks) for opened in (session, other)]
    await queues[0].configure(zq.QueueConfig(max_size=most))
    await curator.ask("open", "q", "queue", path, locks, most)
    sizes: list[int] = []

    async def ours(queue: zq.CuratorQueue[bytes]) -> None:
        for _ in range(each):
            await queue.put(b"ours", timeout=60)

    async def theirs() -> None:
        for _ in range(each):
            assert await curator.ask("put", "q", b"theirs".hex(), 60_000) == "true"

    async def look() -> None:
        while True:
            sizes.append(len(await server_view.children(path)))

    looking = asyncio.create_task(look())
    puts = asyncio.gather(*(ours(queue) for queue in queues), theirs())
    bodies = await awaited(session, queues[0], 3 * each)
    await puts
    looking.cancel()
    assert Counter(bodies) == {b"ours": 2 * each, b"theirs": each}
    assert max(sizes) <= 2 * most


async def test_a_full_bounded_queue_accepts_a_put_when_a_message_is_handled(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    """The size is one: a put without capacity stores nothing at its timeout, and a later one waits for capacity."""
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks)
    await queue.configure(zq.QueueConfig(max_size=1))
    await curator.ask("consume", "c", "queue", path, locks, "hold", 1)
    await queue.put(b"1")
    assert await curator.shown("c") == [b"1"]
    with pytest.raises(zq.QueueFullError):
        await queue.put(b"2", timeout=0.3)
    assert await queue.size() == 1
    for last, body in ((b"1", b"3"), (b"3", b"4"), (b"4", b"5")):
        waiting = asyncio.create_task(queue.put(body, timeout=60))
        await curator.ask("go", "c")  # it finishes the previous message
        await waiting
        assert await curator.shown("c") == [body], last
    await curator.ask("go", "c")
