"""An idle stream writes nothing, and lists a folder again only if the folder may have new free messages."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.layout import LockRecord, item_prefix, key_hash
from aiozkqueue.operations.lag import Lag
from aiozkqueue.operations.ledger_pages import read_page
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.testing import EmbeddedZooKeeper, Opcode, ServerOptions, ZooKeeperProxy
from aiozkqueue.testing.node import four_letters
from aiozkqueue.zookeeper import Create, Delete
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiozkqueue.testing import Request

pytestmark = pytest.mark.timeout(120)

HOUR = 3600


class Listings:
    """The folders that clients of a proxy have listed, in order."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def note(self, request: Request) -> bool:
        """Record a listing of a folder of messages or of the locks."""
        if request.opcode in {Opcode.GET_CHILDREN, Opcode.GET_CHILDREN2}:
            path = request.body[4 : 4 + int.from_bytes(request.body[:4], "big")].decode()
            if re.search(r"/(items|locks|later/\d+)$", path):
                self.paths.append(path.rsplit("/", 1)[1])
        return False


@contextmanager
def reading(hosts: str, root: str) -> Iterator[QueueStreamReader]:
    parsed = parse_options({"hosts": hosts, "root": root, "queue": "orders"})
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        yield reader
    finally:
        reader.stop()


def last_transaction(server: EmbeddedZooKeeper) -> str:
    """Return the number of the last transaction, as the server reports it."""
    found = re.search("Zxid: (0x[0-9a-f]+)", four_letters(server.node.ports.client, "srvr", timeout=30))
    assert found is not None
    return found[1]


def test_a_stream_that_repeatedly_looks_for_a_batch_causes_no_transaction(queue_root: str) -> None:
    async def fill(hosts: str) -> None:
        async with zq.connect(hosts, root=queue_root, janitor=False) as session:
            await session.queue("orders").put_many([b"1", b"2"])
            await session.queue("orders").put(b"later", delay=30 * HOUR)

    with EmbeddedZooKeeper(ServerOptions(fsync=False)) as server:
        asyncio.run(fill(server.hosts))
        with reading(server.hosts, queue_root) as reader:
            offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            shares = reader.partitions(reader.initialOffset(), offset)
            assert sum(batch.num_rows for share in shares for batch in reader.read(share)) == 2
            assert reader.latestOffset(offset, ReadAllAvailable()) == offset  # acknowledges the batch
            before = last_transaction(server)
            for _ in range(20):
                assert reader.latestOffset(offset, ReadAllAvailable()) == offset
            assert last_transaction(server) == before


@pytest.fixture
async def listings(zookeeper: str) -> AsyncIterator[tuple[str, Listings]]:
    """The address of a proxy in front of the servers, and the folders that are listed through it."""
    found = Listings()
    async with ZooKeeperProxy(zookeeper) as proxy:
        proxy.hold_request(found.note, times=None)
        yield proxy.hosts, found


async def test_a_folder_without_free_messages_is_not_listed_again_until_it_changes(
    zookeeper: str, queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, listed = listings
    async with (
        zq.connect(zookeeper, root=queue_root) as session,
        zq.connect(hosts, root=queue_root, janitor=False) as driver,
    ):
        queue = session.queue("orders")
        lock = core_of(session).queue_state("orders").paths.lock(await queue.put(b"held"))
        await core_of(session).zookeeper.multi([Create(lock, LockRecord("claim", "another client").encode())])
        ledger = Ledger(core_of(driver).handle("orders"), "spark")
        for _ in range(5):
            assert await ledger.next_batch(-1, None) == -1
        assert listed.paths.count("items") == 1
        assert listed.paths.count("locks") == 1
        await queue.put(b"another")
        batch = await ledger.next_batch(-1, None)
        assert listed.paths.count("items") == 2
        assert [page.messages for page in await ledger.pages(batch)] == [1]
        await ledger.acknowledge(batch)
        listed.paths.clear()
        for _ in range(5):
            assert await ledger.next_batch(batch, None) == batch
        assert listed.paths.count("items") == 1
        await core_of(session).zookeeper.multi([Delete(lock)])
        assert await ledger.next_batch(batch, None) > batch  # a lock has been removed, and no item has changed


async def test_a_message_that_becomes_due_is_found_without_a_change_of_its_folder(
    queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, listed = listings
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue = session.queue("orders")
        await queue.put(b"due soon", delay=2)
        await queue.put(b"due tomorrow", delay=30 * HOUR)
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        polls = 0

        async def found() -> bool:
            nonlocal polls
            polls += 1
            return await ledger.next_batch(-1, None) == 0

        await eventually(found, 30)
        assert [page.messages for page in await ledger.pages(0)] == [1]
        hours = [name for name in listed.paths if name.isdigit()]
        assert len(set(hours)) == 1  # not the message that is due tomorrow
        assert len(hours) <= 2 < polls


async def test_messages_of_an_hour_that_become_due_one_after_the_other_need_one_listing(
    queue_root: str, listings: tuple[str, Listings], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, listed = listings
    monkeypatch.setattr("aiozkqueue.batches.backlog.AGAIN", 1e9)
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue, ledger = session.queue("orders"), Ledger(core_of(session).handle("orders"), "spark")
        await same_hour()
        for seconds in (2, 3, 4):
            await queue.put(b"due in %d s" % seconds, delay=seconds)
        batch = -1
        for _ in range(3):
            following = await next_of(ledger, batch)
            assert [page.messages for page in await ledger.pages(following)] == [1]
            await ledger.acknowledge(following)
            batch = following
        assert len([name for name in listed.paths if name.isdigit()]) == 1


async def test_an_hour_whose_listing_takes_long_is_not_listed_again_for_each_put_and_its_due_messages_come(
    queue_root: str, listings: tuple[str, Listings], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, listed = listings
    monkeypatch.setattr("aiozkqueue.batches.backlog.AGAIN", 1e9)
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue, ledger = session.queue("orders"), Ledger(core_of(session).handle("orders"), "spark")
        await same_hour()
        await queue.put(b"known", delay=3)
        assert await ledger.next_batch(-1, None) == -1
        await queue.put(b"put since", delay=2)
        batch = await next_of(ledger, -1)
        assert [page.messages for page in await ledger.pages(batch)] == [1]
        assert len([name for name in listed.paths if name.isdigit()]) == 1
        monkeypatch.setattr("aiozkqueue.batches.backlog.AGAIN", 10)
        other = Ledger(core_of(session).handle("orders"), "other")
        assert [page.messages for page in await other.pages(await next_of(other, -1))] == [1]


async def test_a_due_message_that_another_client_took_first_and_releases_is_found(
    queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, _ = listings
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue, ledger = session.queue("orders"), Ledger(core_of(session).handle("orders"), "spark")
        await same_hour()
        await queue.put(b"due", delay=2)
        assert await ledger.next_batch(-1, None) == -1  # the message is known now
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            assert await ledger.next_batch(-1, None) == -1
            tx.release(message, delay=0)
            await tx.commit()
        assert [page.messages for page in await ledger.pages(await next_of(ledger, -1))] == [1]


async def same_hour() -> None:
    """Wait for the next hour, if this one ends soon."""
    left = HOUR - time.time() % HOUR
    if left < 30:
        await asyncio.sleep(left + 1)


async def next_of(ledger: Ledger, after: int) -> int:
    """Return the batch that follows another one, once there is one."""

    async def found() -> bool:
        return await ledger.next_batch(after, None) != after

    await eventually(found, 30)
    return (await ledger.batches())[-1]


async def test_ready_messages_do_not_wait_for_a_listing_of_delayed_ones_and_due_ones_come_next(
    queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, listed = listings
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue = session.queue("orders")
        await queue.put(b"due", delay=1)
        clock, due = core_of(session).server_clock, core_of(session).queue_state("orders").paths.due
        put = await clock.learned(due)

        async def is_due() -> bool:
            return await clock.learned(due) > put + 1500

        await eventually(is_due, 30)
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        batch, sizes = -1, []
        for number in range(3):
            await queue.put(b"%d" % number)
            before = len([name for name in listed.paths if name.isdigit()])
            batch = await ledger.next_batch(batch, None)
            sizes.append(sum(page.messages for page in await ledger.pages(batch)))
            assert len([name for name in listed.paths if name.isdigit()]) - before == (number == 1)
        assert sizes == [1, 2, 1]


async def test_the_lag_counts_delayed_messages_without_listing_them(
    queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, listed = listings
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        queue = session.queue("orders")
        await same_hour()
        await queue.put_many([b"later"] * 3, delay=20)
        await queue.put_many([b"now"] * 200)  # in bundles
        listed.paths.clear()
        figures = await Lag(core_of(session).handle("orders")).figures()
        assert figures == {"waiting": 200, "in_flight": 0, "delayed": 3, "dead_letters": 0}
        assert "items" in listed.paths
        assert not [name for name in listed.paths if name.isdigit()]


async def test_the_messages_of_a_pending_batch_are_found_when_its_lock_goes(
    queue_root: str, listings: tuple[str, Listings]
) -> None:
    hosts, listed = listings
    async with zq.connect(hosts, root=queue_root, janitor=False) as session:
        state, zookeeper = core_of(session).queue_state("orders"), core_of(session).zookeeper
        first = await session.queue("orders").put(b"makes the queue")
        stage = key_hash("a batch")
        await zookeeper.multi([Create(state.paths.lock(f"b{stage}"))])
        await zookeeper.multi([Create(f"{state.paths.items}/{item_prefix('x', batch=stage)}", sequential=True)])
        ledger = Ledger(core_of(session).handle("orders"), "spark")
        batch = await ledger.next_batch(-1, None)
        (page,) = await ledger.pages(batch)
        (entry,) = await read_page(zookeeper.read, page.path)
        assert entry.id == first
        listed.paths.clear()
        for _ in range(5):
            assert await ledger.next_batch(batch, None) == batch
        assert listed.paths.count("items") == 1
        await zookeeper.multi([Delete(state.paths.lock(f"b{stage}"))])
        assert await ledger.next_batch(batch, None) > batch
