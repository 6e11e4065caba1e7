"""Locks that change although their items are missing do not keep a consumer busy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import key_hash
from benchmarks.lock_creates import LockCreates

from .test_kazoo import awaited

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    QueueOf = Callable[[zq.QueueSession, str], zq.Queue[bytes]]

pytestmark = pytest.mark.timeout(120)

MESSAGES = 100
#: More than this kind of defect needs, and fewer than a batch of claims.
OLD = 8
MOST_LOCKS_PER_MESSAGE = 1.1


KINDS: dict[str, QueueOf] = {
    "Curator's queue": lambda session, path: session.curator_queue(f"{path}/items", lock_path=f"{path}/locks"),
    "Curator's priority queue": lambda session, path: session.curator_queue(
        f"{path}/items", lock_path=f"{path}/locks", kind="priority"
    ),
    "Curator's delay queue": lambda session, path: session.curator_queue(
        f"{path}/items", lock_path=f"{path}/locks", kind="delay"
    ),
    "kazoo's locking queue": lambda session, path: session.kazoo_queue(path),
}
ITEMS = {"kazoo's locking queue": ("entries", "taken")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "batches", [lambda names: [[name] for name in names], lambda names: [names]], ids=["one by one", "all at once"]
)
async def test_changing_old_locks_do_not_hide_later_puts_from_a_consumer(
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    server_view: Observer,
    path: str,
    kind: str,
    batches: Callable[[list[str]], list[list[str]]],
) -> None:
    items, locks = (f"{path}/{part}" for part in ITEMS.get(kind, ("items", "locks")))
    ours = await open_session(zookeeper_proxy.hosts)
    queue, puts = KINDS[kind](ours, path), KINDS[kind](session, path)
    await puts.put_many([b"%d" % number for number in range(MESSAGES)])
    names = await server_view.children(items)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        taking = group.create_task(awaited(ours, queue, 2 * MESSAGES))
        await server_view.until(lambda: not server_view._children(items))
        creates = LockCreates(zookeeper_proxy, locks)
        for batch in batches(names[:OLD]):
            for name in batch:
                await server_view.create(f"{locks}/{name}", b"10.0.0.1", ephemeral=True)
            for name in batch:
                await server_view.delete(f"{locks}/{name}")
        await asyncio.sleep(0.5)  # a defect would continue without traffic
        assert creates.count == 0
        await puts.put_many([b"%d" % number for number in range(MESSAGES)])
    assert len(taking.result()) == 2 * MESSAGES
    assert creates.count <= MOST_LOCKS_PER_MESSAGE * MESSAGES
    await server_view.until(lambda: not server_view._children(locks))


@pytest.mark.parametrize(
    ("config", "options"),
    [(zq.QueueConfig(), {}), (zq.QueueConfig(), {"group": "a"}), (zq.QueueConfig(ordered=True), {})],
    ids=["plain", "of groups", "ordered"],
)
async def test_old_locks_of_a_native_queue_do_not_keep_a_consumer_busy(
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    server_view: Observer,
    queue_root: str,
    config: zq.QueueConfig,
    options: zq.PutOptions,
) -> None:
    """Locks of empty groups, of removed messages, and of names that no client has ever locked."""
    ours, locks = await open_session(zookeeper_proxy.hosts), f"{queue_root}/jobs/locks"
    await session.queue("jobs").configure(config)
    queue, puts = ours.queue("jobs"), session.queue("jobs")
    ids = [await puts.put(b"%d" % number, **options) for number in range(OLD)]
    groups = [f"g{key_hash(name)}" for name in ("a", "b", "")]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        taking = group.create_task(awaited(ours, queue, 2 * OLD))
        await server_view.until(lambda: not server_view._children(f"{queue_root}/jobs/items"))
        await server_view.until(lambda: not server_view._children(locks))
        creates = LockCreates(zookeeper_proxy, locks)
        for name in (*ids, *groups, "junk", "queue-0000000000"):
            await server_view.create(f"{locks}/lock-{name}", b"junk", ephemeral=True)
            await server_view.delete(f"{locks}/lock-{name}")
        await asyncio.sleep(0.5)  # a defect would continue without traffic
        assert creates.count == 0
        for number in range(OLD):
            await puts.put(b"%d" % number, **options)
    assert len(taking.result()) == 2 * OLD
    await server_view.until(lambda: not server_view._children(locks))
