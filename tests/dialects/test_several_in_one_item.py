"""Items of Curator's ``putMulti``: each message is delivered once and in order, at a bounded cost, despite crashes."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame, unframe
from aiozkqueue.testing.frames import Opcode
from benchmarks.lock_creates import written_by

from .test_kazoo import awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.dialects import CuratorKind
    from aiozkqueue.testing import ZooKeeperProxy
    from aiozkqueue.testing.frames import Request
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    from .conftest import Die, StartCurator
    from .peers import Curator

    Take = Callable[[zq.QueueSession, zq.Queue[bytes], int], Awaitable[list[bytes]]]

pytestmark = pytest.mark.timeout(180)

MESSAGES = 1000
#: The maximum bytes written per byte put: the put writes an item, and the split writes its messages again.
MOST_WRITTEN = 2.5


def bodies(count: int, of: str = "a", length: int = 0) -> list[bytes]:
    return [f"{of}{number}".ljust(length).encode() for number in range(count)]


def locked(session: zq.QueueSession, path: str, kind: CuratorKind = "queue") -> zq.CuratorQueue[bytes]:
    return session.curator_queue(path, lock_path=f"{path}-locks", kind=kind)


async def by_consumer(
    session: zq.QueueSession,  # noqa: ARG001 - as the other readers
    queue: zq.Queue[bytes],
    count: int,
) -> list[bytes]:
    got: list[bytes] = []
    async with queue.consume(prefetch=16) as deliveries:
        async for delivery in deliveries:
            got.append(delivery.body)
            if len(got) == count:
                deliveries.stop()
    return got


async def by_listener(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[bytes]:
    got: list[bytes] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        got.append(delivery.body)
        if len(got) == count:
            listener.stop()

    listener = session.listener(queue, handle, concurrency=1)
    await listener.run()
    return got


async def by_one_transaction(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[bytes]:
    async with session.transaction() as tx:
        return [message.body for message in await tx.take_many(queue, count, timeout=30)]


async def by_transactions(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[bytes]:
    return await awaited(session, queue, count)


class Written:
    """The bytes that are written to items through a proxy."""

    def __init__(self, proxy: ZooKeeperProxy, path: str) -> None:
        self._prefix = f"{path}/queue-"
        self.bytes: int = 0
        proxy.hold_request(self._look)

    def _look(self, request: Request) -> bool:
        if request.opcode == Opcode.MULTI:
            operations = written_by(request.body)
            self.bytes += sum(len(data) for _, path, data in operations if path.startswith(self._prefix))
        return False  # hold no request


@pytest.mark.slow
@pytest.mark.parametrize("take", [by_consumer, by_listener, by_one_transaction, by_transactions])
async def test_taking_an_item_rewrites_its_messages_once_for_any_number(
    open_session: Opener,
    zookeeper_proxy: ZooKeeperProxy,
    path: str,
    server_view: Observer,
    take: Take,
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue, put = locked(session, path), bodies(MESSAGES, length=300)
    written = Written(zookeeper_proxy, path)
    await queue.put_multi(put)
    assert await take(session, queue, MESSAGES) == put
    assert written.bytes < MOST_WRITTEN * len(frame(put))
    await server_view.until(lambda: not server_view._children(path) and not server_view._children(f"{path}-locks"))


@pytest.mark.parametrize("take", [by_consumer, by_listener])
async def test_messages_of_several_items_are_delivered_item_by_item(
    session: zq.QueueSession, path: str, take: Take
) -> None:
    queue = locked(session, path)
    several = [bodies(count, of) for count, of in zip((7, 1, 2, 30, 1, 3, 1, 1), "abcdefgh", strict=True)]
    for put in several:
        await queue.put_multi(put)
    expected = list(chain.from_iterable(several))
    assert await take(session, queue, len(expected)) == expected


@pytest.mark.parametrize(
    ("kind", "options"),
    [("priority", {"priority": 3}), ("delay", {"delay": 0.1}), ("id", {"key": "the|id"})],
)
async def test_parts_keep_the_priority_time_and_id_of_their_item(
    session: zq.QueueSession, path: str, kind: CuratorKind, options: zq.PutOptions
) -> None:
    queue = locked(session, path, kind)
    before: zq.PutOptions = {**options, "priority": 2} if kind == "priority" else options
    await queue.put_multi(bodies(3, "a"), **options)
    await queue.put_multi(bodies(3, "b"), **options)
    await queue.put_multi(bodies(2, "c"), **before)
    expected = [*bodies(3, "a"), *bodies(3, "b"), *bodies(2, "c")]
    if kind == "priority":
        expected = [*expected[6:], *expected[:6]]
    assert await awaited(session, queue, 1) == expected[:1]  # the rest of that item is split into parts
    assert await by_consumer(session, queue, len(expected) - 1) == expected[1:]
    if kind == "id":
        await queue.put_multi(bodies(4), **options)
        assert await awaited(session, queue, 1) == bodies(1)
        assert await queue.remove("the|id") == 3


@pytest.mark.parametrize(("count", "length"), [(8000, 3), (1000, 1030), (12, 87_000)])
async def test_an_item_near_the_size_limit_of_zookeeper_is_taken_in_order(
    session: zq.QueueSession, path: str, server_view: Observer, count: int, length: int
) -> None:
    """Each part has several messages and is split again; if an item has no space for parts, it is cut."""
    queue, put = locked(session, path), bodies(count, length=length)
    assert await queue.size() == 0
    await server_view.create(f"{path}/queue-0000000000", frame(put))
    got: list[bytes] = []
    while len(got) < min(count, 2000):
        got += await by_one_transaction(session, queue, min(500, count - len(got)))
    assert got == put[: len(got)]
    left = [unframe(data) for name, data in sorted((await server_view.tree(path)).items()) if name != path]
    assert list(chain.from_iterable(left)) == put[len(got) :]


async def test_committed_parts_of_an_item_are_not_redelivered_when_their_consumer_dies(
    session: zq.QueueSession, open_session: Opener, path: str, curator: Curator
) -> None:
    """No consumer, ours or Curator's, gets them again; the messages that were not committed are redelivered."""
    dying = await open_session()
    queue, put = locked(dying, path), bodies(20)
    await queue.put_multi(put)
    assert await awaited(dying, queue, 5) == put[:5]
    tx = await dying.transaction(autocommit=False).__aenter__()
    assert [message.body for message in await tx.take_many(queue, 5, timeout=30)] == put[5:10]
    await dying._runtime.close()
    assert sorted(await awaited(session, locked(session, path), 5)) == sorted(put[5:10])
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "show", 1)
    assert await curator.shown("c", 10) == put[10:]


async def test_a_part_that_fails_in_java_is_redelivered_under_a_name_of_constant_length(
    session: zq.QueueSession, path: str, start_curator: StartCurator, die: Die, server_view: Observer
) -> None:
    """The Java session ends at the server, because closing its queue interrupts a create, whose lock can then stay."""
    curator, queue, locks = await start_curator(), locked(session, path), f"{path}-locks"
    await queue.put_multi(bodies(3))
    assert await awaited(session, queue, 1) == bodies(1)
    longest = max(map(len, await server_view.children(path)))
    await curator.ask("consume", "c", "queue", path, locks, "failing", 1)
    await curator.shown("c", 12)
    assert max(map(len, await server_view.children(path))) <= longest
    await die(curator)
    assert sorted(await awaited(session, queue, 2)) == bodies(3)[1:]


async def test_parts_have_the_acl_of_their_item(
    zookeeper: str, queue_root: str, path: str, server_view: Observer
) -> None:
    """A session with credentials restricts its znodes to itself, and a Java consumer has no credentials."""
    await server_view.create(f"{path}/queue-0000000000", frame(bodies(3)))
    await server_view.create(f"{path}-locks")
    item = await asyncio.to_thread(server_view._client.get_acls, f"{path}/queue-0000000000")
    auth = [zq.Auth.digest("carol", "pw")]
    async with zq.connect(zookeeper, root=f"{queue_root}-carol", auth=auth, session_timeout=20) as session:
        assert await awaited(session, locked(session, path), 1) == bodies(1)
        for name in await server_view.children(path):
            acls = await asyncio.to_thread(server_view._client.get_acls, f"{path}/{name}")
            assert acls[0] == item[0]
        assert len(await server_view.children(path)) == 2
    await asyncio.to_thread(delete_as_carol, zookeeper, f"{queue_root}-carol")


def delete_as_carol(hosts: str, path: str) -> None:
    carol = KazooClient(hosts, auth_data=[("digest", "carol:pw")])
    carol.start(60)
    carol.delete(path, recursive=True)
    carol.stop()
    carol.close()


async def test_we_take_all_messages_of_an_item_that_a_killed_java_consumer_held(
    session: zq.QueueSession, path: str, start_curator: StartCurator, die: Die
) -> None:
    curator, queue = await start_curator(), locked(session, path)
    await queue.put_multi(bodies(5))
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "hold", 1)
    assert await curator.shown("c") == bodies(1)
    await die(curator)
    assert await awaited(session, queue, 5) == bodies(5)


async def test_a_peek_shows_each_message_of_an_item_before_and_after_its_split(
    session: zq.QueueSession, path: str
) -> None:
    queue = locked(session, path)
    await queue.put(b"before")
    await queue.put_multi([b"0", b"1", b"2"])
    await queue.put(b"after")
    wanted = [b"before", b"0", b"1", b"2", b"after"]
    assert [message.body for message in await queue.peek()] == wanted
    assert [message.body for message in await queue.peek(3)] == wanted[:3]
    async with session.transaction() as tx:
        for body in wanted[:2]:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            assert message.body == body
    assert [message.body for message in await queue.peek()] == wanted[2:]
