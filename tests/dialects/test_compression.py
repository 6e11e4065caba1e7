"""Queues of Java clients that use ``enableCompression()``, with the real Curator."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.dialects.compression import MOST_INFLATED
from aiozkqueue.dialects.framing import frame

from .peers import Curator
from .test_kazoo import drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiozkqueue as zq
    from aiozkqueue.dialects import CuratorKind
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

LONG = b"a body that compresses " * 5000


@pytest.fixture(scope="module")
def compressing_curator(zookeeper: str) -> Iterator[Curator]:
    peer = Curator(zookeeper, compressed=True)
    yield peer
    peer.kill()


@pytest.fixture
def compressing(compressing_curator: Curator, path: str) -> Iterator[Curator]:
    del path  # so that the path is removed after the peer has closed its queues
    yield compressing_curator
    compressing_curator.reset()


@pytest.mark.parametrize("kind", ["queue", "priority", "id"])
async def test_we_and_curator_read_each_others_compressed_items(
    session: zq.QueueSession, compressing: Curator, path: str, kind: CuratorKind, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind=kind, compressed=True)
    extra: tuple[object, ...] = {"queue": (), "priority": (3,), "id": ("an-id",)}[kind]
    options: zq.PutOptions = {"key": "an-id"} if kind == "id" else {}
    await compressing.ask("open", "q", kind, path, locks, 0)
    await compressing.ask("put", "q", LONG.hex(), *extra)
    [name] = await server_view.children(path)
    assert (await server_view.get(f"{path}/{name}")).startswith(b"\x1f\x8b")
    assert [message.body for message in await queue.peek()] == [LONG]
    assert await drained(session, queue) == [LONG]

    await queue.put(LONG, **options)
    [name] = await server_view.children(path)
    assert len(await server_view.get(f"{path}/{name}")) < len(LONG) // 10
    await compressing.ask("consume", "c", kind, path, locks, "show", 1)
    assert await compressing.shown("c") == [LONG]


async def test_the_rest_of_a_compressed_item_stays_compressed(
    session: zq.QueueSession, compressing: Curator, path: str
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, compressed=True)
    await compressing.ask("open", "q", "queue", path, locks, 0)
    await compressing.ask("put", "q", ",".join(body.hex() for body in (b"one", b"two", b"three")))
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        assert message is not None
        assert message.body == b"one"
    await compressing.ask("consume", "c", "queue", path, locks, "show", 1)
    assert await compressing.shown("c", 2) == [b"two", b"three"]


async def test_simple_queues_support_compression(session: zq.QueueSession, path: str, server_view: Observer) -> None:
    queue = session.curator_queue(path, kind="simple", compressed=True)
    await queue.put(LONG)
    [name] = await server_view.children(path)
    assert gzip.decompress(await server_view.get(f"{path}/{name}")) == LONG
    assert await drained(session, queue) == [LONG]


async def test_gzip_items_are_read_without_the_compressed_option(
    session: zq.QueueSession, path: str, server_view: Observer
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    await queue.put(b"plain")
    await server_view.create(f"{path}/queue-0000000001", gzip.compress(frame([b"compressed"])))
    assert await drained(session, queue) == [b"plain", b"compressed"]


@pytest.mark.parametrize("moved", [False, True])
async def test_a_gzip_item_that_is_larger_than_a_request_when_decompressed_is_taken_without_the_compressed_option(
    session: zq.QueueSession, path: str, server_view: Observer, *, moved: bool
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    bodies = [b"%d " % number + LONG for number in range(20)]  # more than two megabytes
    await queue.put(b"first")
    await server_view.create(f"{path}/queue-0000000001", gzip.compress(frame(bodies)))
    if not moved:
        assert await drained(session, queue) == [b"first", *bodies]
        return
    reference = await session.admin.moves.start(queue, "moved")
    async with asyncio.timeout(60):
        while (status := await session.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    assert (status.state, status.error) == ("done", None)
    assert await drained(session, session.queue("moved")) == [b"first", *bodies]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip.compress(frame([bytes(MOST_INFLATED)])), "more than"),
        (gzip.compress(frame([b"x"] * 100))[:-9], "is truncated"),
        (b"\x1f\x8b" + bytes(20), "not gzip"),
    ],
    ids=["a bomb", "cut off", "a header alone"],
)
async def test_broken_and_oversized_gzip_items_become_dead_letters(
    session: zq.QueueSession, path: str, server_view: Observer, data: bytes, reason: str
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", compressed=True)
    await queue.put(b"before")
    await server_view.create(f"{path}/queue-0000000001", data)
    await queue.put(b"behind")
    assert await drained(session, queue) == [b"before", b"behind"]
    [letter] = await queue.dead_letters.peek()
    assert reason in letter.reason
    assert letter.body == data
