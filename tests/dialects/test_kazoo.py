"""A queue shared with kazoo clients, which run in a separate process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq

from .peers import PATIENCE

if TYPE_CHECKING:
    from tests.observer import Observer

    from .peers import Kazoo

pytestmark = pytest.mark.timeout(120)

BODIES = [b"plain", b"", b"\x00\xff\x01", b"\x00\x01\x00\x01", b"a" * 2000]


async def drained(session: zq.QueueSession, queue: zq.Queue[bytes]) -> list[bytes]:
    """Take all waiting messages, one by one."""
    return [message.body for message in await taken(session, queue, None)]


async def awaited(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[bytes]:
    """Take this many messages one by one, however long they take to arrive."""
    return [message.body for message in await taken(session, queue, count)]


async def wait_for_size(queue: zq.Queue[bytes], count: int) -> None:
    """Wait until the queue has this many messages, because a peer removes a message after its consumer got it."""
    async with asyncio.timeout(PATIENCE):
        while await queue.size() != count:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)


async def taken(session: zq.QueueSession, queue: zq.Queue[bytes], count: int | None) -> list[zq.Message[bytes]]:
    """Take this many messages, or all for None, each in a separate transaction."""
    messages: list[zq.Message[bytes]] = []
    while count is None or len(messages) < count:
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=0 if count is None else PATIENCE)
        if message is None:
            assert count is None, f"{len(messages)} of {count} have arrived"
            break
        messages.append(message)
    return messages


async def test_we_take_messages_of_kazoo_in_their_order(
    session: zq.QueueSession, kazoo: Kazoo, path: str, server_view: Observer
) -> None:
    path = f"{path}-locking"
    for body in BODIES:
        await kazoo.ask("put", path, body.hex(), 100)
    await kazoo.ask("put_all", path, [b"late".hex(), b"later".hex()], 999)
    await kazoo.ask("put", path, b"urgent".hex(), 0)
    queue = session.kazoo_queue(path)
    assert await queue.size() == len(BODIES) + 3
    assert [message.body for message in await queue.peek(2)] == [b"urgent", b"plain"]
    assert await drained(session, queue) == [b"urgent", *BODIES, b"late", b"later"]
    assert await server_view.children(f"{path}/entries") == []
    assert await server_view.children(f"{path}/taken") == []


async def test_kazoo_takes_our_messages_in_their_order(
    session: zq.QueueSession, kazoo: Kazoo, path: str, server_view: Observer
) -> None:
    path = f"{path}-locking"
    queue = session.kazoo_queue(path)
    await queue.put_many(BODIES)
    async with session.transaction() as tx:
        tx.put(queue, b"late", priority=999)
        tx.put(queue, b"urgent", priority=0)
    assert (await server_view.children(f"{path}/entries"))[0].startswith("entry-000-")
    assert await kazoo.ask("len", path) == len(BODIES) + 2
    taken = await kazoo.ask("drain", path, 1)
    assert [bytes.fromhex(body) for body in taken] == [b"urgent", *BODIES, b"late"]
    assert await queue.size() == 0


@pytest.mark.parametrize("priority", [-1, 1000, 5.0])
async def test_a_priority_of_other_than_three_digits_is_refused(
    session: zq.QueueSession, path: str, priority: int
) -> None:
    with pytest.raises(zq.InvalidOptionError, match="from 0, the most urgent, to 999"):
        await session.kazoo_queue(path).put(b"x", priority=priority)
