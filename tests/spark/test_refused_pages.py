"""A page of a batch that ZooKeeper always refuses does not keep a stream busy forever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.session.internals import core_of
from tests.integration.queue.test_obstacles import set_acl
from tests.spark.test_ledger import bodies_of, fill

if TYPE_CHECKING:
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("size", [1, 250])
async def test_a_copy_of_a_message_comes_in_a_later_batch(
    zookeeper: str, queue_root: str, server_view: Observer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", size)
    await fill(zookeeper, queue_root, 3)
    items = f"{queue_root}/orders/items"
    first = min(await server_view.children(items), key=lambda name: name[-10:])
    copy = f"{items}/{first[:-10]}0000000007"
    await server_view.create(copy, b"copy")
    async with zq.connect(zookeeper, root=queue_root) as session, asyncio.timeout(30):
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        found: list[list[str]] = []
        last = -1
        while (batch := await ledger.next_batch(last, None)) != last:
            found.append(await bodies_of(ledger, await ledger.pages(batch)))
            await ledger.acknowledge(batch)
            last = batch
    assert sorted(map(sorted, found)) == [["0", "1", "2"], ["copy"]]
    assert await server_view.children(items) == []
    assert await server_view.children(f"{queue_root}/orders/locks") == []


async def test_a_stream_that_may_not_lock_messages_is_refused(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    await fill(zookeeper, queue_root, 3)
    await set_acl(server_view, f"{queue_root}/orders/locks", readable=True)
    async with zq.connect(zookeeper, root=queue_root) as session, asyncio.timeout(30):
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        with pytest.raises(AccessDeniedError, match="orders/locks"):
            await ledger.next_batch(-1, None)
