"""A queue shared with Curator's clients, which run in a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .test_kazoo import BODIES, drained

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.observer import Observer

    from .peers import Curator

pytestmark = pytest.mark.timeout(120)


async def test_we_take_messages_of_curator_in_their_order(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    await curator.ask("open", "q", "queue", path, f"{path}-locks", 0)
    for body in BODIES:
        await curator.ask("put", "q", body.hex())
    await curator.ask("put", "q", f"{b'one'.hex()},{b'two'.hex()},,{b'four'.hex()}")  # putMulti stores one znode
    await curator.ask("put", "q", b"last".hex())
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    assert await queue.size() == len(BODIES) + 2
    assert [message.body for message in await queue.peek(1)] == [b"plain"]
    assert await drained(session, queue) == [*BODIES, b"one", b"two", b"", b"four", b"last"]
    assert await server_view.children(path) == []
    assert await server_view.children(f"{path}-locks") == []


async def test_curator_consumes_our_messages_in_their_order(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks")
    await queue.put_many(BODIES)
    await queue.put_multi([b"one", b"", b"three"])
    async with session.transaction() as tx:
        tx.put(queue, b"last")
    await curator.ask("consume", "c", "queue", path, f"{path}-locks", "show", 1)
    assert await curator.shown("c", len(BODIES) + 4) == [*BODIES, b"one", b"", b"three", b"last"]
    await server_view.until(lambda: not server_view._children(path))
    assert await curator.shown_until_now("c") == []
