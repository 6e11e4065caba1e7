"""The ledger of a stream on a queue with bundles: whole bundles are locked, read and removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import aiozkqueue as zq
from aiozkqueue.layout import BundleName, BundleRecord, is_bundle
from aiozkqueue.operations.bundles import bundle_pages
from aiozkqueue.operations.ledger_pages import mark, read_page
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark import reading
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.zookeeper import SetData
from tests.spark.test_ledger import CountingClient, DyingClient, Stream, _DriverKilledError, bodies_of, driver, fill
from tests.spark.test_parts import found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)

NUMBER = 128


async def folders(view: Observer, root: str) -> dict[str, list[str]]:
    """Return the contents of the folders of a queue, as an independent client reads them."""
    return {folder: await view.children(f"{root}/orders/{folder}") for folder in ("items", "locks", "meta", "due")}


async def assert_empty(view: Observer, root: str) -> None:
    assert await folders(view, root) == {"items": [], "locks": [], "meta": [], "due": []}


async def taken(hosts: str, root: str) -> list[str]:
    """Take all messages as another consumer."""
    bodies: list[str] = []
    async with zq.connect(hosts, root=root) as session, session.queue("orders").consume(until_idle=1) as deliveries:
        bodies.extend([delivery.body.decode() async for delivery in deliveries])
    return bodies


async def test_a_batch_locks_whole_bundles_and_removes_them_when_it_is_acknowledged(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    before = await folders(server_view, queue_root)
    assert len(before["items"]) == 2
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        ledger._epoch.zookeeper = counting = CountingClient(ledger._epoch.zookeeper, None, applied=False)  # type: ignore[assignment]  # it wraps the client
        batch = await ledger.next_batch(-1, None)
        now = await folders(server_view, queue_root)
        assert now["items"] == before["items"]
        assert (len(now["locks"]), len(now["meta"])) == (2, 2)
        assert await bodies_of(ledger, await ledger.pages(batch)) == bodies
        stats = await session.queue("orders").stats()
        assert (stats.size, stats.in_flight, stats.waiting, stats.ledgers) == (NUMBER, NUMBER, 0, 1)
        async with session.transaction() as tx:
            assert await tx.take(session.queue("orders"), timeout=0.5) is None
        await session.admin.clean("orders")
        assert await folders(server_view, queue_root) == now
        assert await ledger.acknowledge(batch) == NUMBER
        assert counting.most == 4 + 2 * 4  # for the page and for each bundle
    await assert_empty(server_view, queue_root)


@pytest.mark.parametrize("limit", [1, 10, 64, 100])
async def test_batches_have_exactly_the_requested_number_of_messages_in_their_order(
    zookeeper: str, queue_root: str, server_view: Observer, limit: int
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    stream = Stream()
    async with driver(zookeeper, queue_root) as ledger:
        await stream.run(ledger, limit)
    assert [len(batch) for batch in stream.sink.values()][:-1] == [limit] * (-(-NUMBER // limit) - 1)
    assert [body for batch in stream.sink.values() for body in batch] == bodies
    await assert_empty(server_view, queue_root)


async def test_a_frozen_ledger_takes_the_bundles_that_were_there(zookeeper: str, queue_root: str) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    async with driver(zookeeper, queue_root) as ledger:
        await ledger.freeze()
        await fill(zookeeper, queue_root, NUMBER, 64)
        batch = await ledger.next_batch(-1, None)
        assert await bodies_of(ledger, await ledger.pages(batch)) == bodies
        await ledger.acknowledge(batch)
        assert await ledger.next_batch(batch, None) == batch


async def test_messages_that_are_left_of_a_dead_consumers_bundle_are_taken_as_single_items(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, 64, 64)
    (name,) = (await folders(server_view, queue_root))["items"]
    bundle = BundleName.parse(name)
    assert bundle is not None
    record = BundleRecord("of a dead consumer", 0b111, {5: 2})
    await server_view.create(f"{queue_root}/orders/meta/bundle-{bundle.id}", record.encode())
    async with driver(zookeeper, queue_root) as ledger:
        batch = await ledger.next_batch(-1, None)
        pages = await ledger.pages(batch)
        assert await bodies_of(ledger, pages) == bodies[3:]
        entries = [entry for page in pages for entry in await read_page(ledger._epoch.zookeeper.read, page.path)]
        assert [entry.version for entry in entries] == [0, 0, 1, *[0] * 58]
        await ledger.acknowledge(batch)
    await assert_empty(server_view, queue_root)


async def test_a_released_bundle_is_claimed_by_consumers_as_a_new_one(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    before = await folders(server_view, queue_root)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        batch = await ledger.next_batch(-1, None)
        assert await session.queue("orders").admin.release_ledger("spark") == NUMBER
        assert await folders(server_view, queue_root) == before
        with pytest.raises(zq.ClaimLostError, match="taken over or released"):
            await ledger.acknowledge(batch)
    assert sorted(await taken(zookeeper, queue_root)) == sorted(bodies)


async def test_a_bundle_that_was_forced_open_is_not_removed(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        batch = await ledger.next_batch(-1, None)
        assert await session.queue("orders").admin.release_claims() == NUMBER
        await ledger.acknowledge(batch)
    assert sorted(await taken(zookeeper, queue_root)) == sorted(bodies)
    await assert_empty(server_view, queue_root)


async def test_only_the_bundle_that_was_forced_open_is_kept(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    async with driver(zookeeper, queue_root) as ledger:
        batch = await ledger.next_batch(-1, None)
        (first, _) = sorted((await folders(server_view, queue_root))["items"], key=lambda name: name[-10:])
        bundle = BundleName.parse(first)
        assert bundle is not None
        await server_view.set(f"{queue_root}/orders/meta/bundle-{bundle.id}", BundleRecord("x").encode())
        await server_view.delete(f"{queue_root}/orders/locks/lock-{bundle.id}")
        await ledger.acknowledge(batch)
        assert await ledger.batches() == []
    assert sorted(await taken(zookeeper, queue_root)) == sorted(bodies[:64])


async def test_each_message_of_a_bundle_has_a_record_in_the_history(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    bodies = await fill(zookeeper, queue_root, NUMBER, 64)
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        await queue.configure(zq.QueueConfig(history=zq.History(payload=True)))
        async with driver(zookeeper, queue_root) as ledger:
            batch = await ledger.next_batch(-1, None)
            assert await ledger.acknowledge(batch) == NUMBER
        records = [record async for record in queue.history()]
        assert {record.outcome.value for record in records} == {"finished"}
        assert Counter(record.payload for record in records) == Counter(body.encode() for body in bodies)
    await assert_empty(server_view, queue_root)


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_an_undecodable_message_of_a_bundle_becomes_a_dead_letter_though_drivers_die(
    zookeeper: str, queue_root: str, *, applied: bool
) -> None:
    step, died = 0, True
    while died:
        step += 1
        root = f"{queue_root}/{step}"
        await fill(zookeeper, root, 12, 4)
        async with driver(zookeeper, root) as ledger:
            batch = await ledger.next_batch(-1, None)
            (page,) = await ledger.pages(batch)
            name = BundleName.parse(
                (await read_page(ledger._epoch.zookeeper.read, page.path))[1].place.rpartition("/")[2]
            )
            assert name is not None
            await mark(ledger._epoch.zookeeper, page.path, name.last, "no JSON", -1)
            ledger._epoch.zookeeper = DyingClient(ledger._epoch.zookeeper, step, applied=applied)  # type: ignore[assignment]  # it wraps the client
            died = False
            try:
                await ledger.acknowledge(batch)
            except _DriverKilledError:
                died = True
        async with driver(zookeeper, root) as successor:
            await successor.acknowledge(batch)
            await successor.finish()
        async with zq.connect(zookeeper, root=root) as session:
            queue = session.queue("orders")
            assert [letter.body for letter in await queue.dead_letters.peek()] == [b"7"], f"killed at write {step}"
            stats = await queue.stats()
            assert (stats.size, stats.in_flight, stats.ledgers) == (0, 0, 0)
    assert step > 4


async def test_znodes_below_a_bundle_do_not_block_an_acknowledgement(
    zookeeper: str, queue_root: str, server_view: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(zookeeper, queue_root, NUMBER, 64)
    (first, _) = (await folders(server_view, queue_root))["items"]
    await server_view.create(f"{queue_root}/orders/items/{first}/child")
    async with driver(zookeeper, queue_root) as ledger, asyncio.timeout(60):
        batch = await ledger.next_batch(-1, None)
        await ledger.acknowledge(batch)
        assert (await folders(server_view, queue_root))["items"] == [first]
        assert await ledger.next_batch(batch, None) == batch
    assert await taken(zookeeper, queue_root) == []
    assert "a bundle cannot be removed" in caplog.text


def ids_of(reader: QueueStreamReader, shares: Iterable[object]) -> list[str]:
    return [message_id for share in shares for batch in reader.read(share) for message_id in batch["id"].to_pylist()]  # type: ignore[arg-type]  # Spark yields Arrow batches


async def put(options: dict[str, str], number: int) -> list[str]:
    async with zq.connect(options["hosts"], root=options["root"]) as session:
        queue = session.queue("orders")
        await queue.configure(zq.QueueConfig(bundle=64))
        return await queue.put_many([b"%d" % body for body in range(number)])


async def damage(options: dict[str, str]) -> str:
    """Damage one bundle; return its id."""
    async with zq.connect(options["hosts"], root=options["root"]) as session:
        zookeeper, paths = core_of(session).zookeeper, core_of(session).queue_state("orders").paths
        names = sorted(filter(is_bundle, await zookeeper.children(paths.items)), key=lambda name: name[-10:])
        bundle = BundleName.parse(names[0])
        assert bundle is not None
        await zookeeper.multi([SetData(f"{paths.items}/{names[0]}", b"damaged")])
        return bundle.id


def test_tasks_read_their_shares_of_bundles_and_notice_that_one_is_gone(options: dict[str, str]) -> None:
    ids = asyncio.run(put(options, NUMBER))
    parsed = parse_options({**options, "minPartitions": "5"})
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        shares = reader.partitions(start, end)
        assert [len(ids_of(reader, [share])) for share in shares] == [26, 25, 26, 25, 26]
        assert ids_of(reader, shares) == ids

        async def force_open() -> None:
            async with zq.connect(options["hosts"], root=options["root"]) as session:
                assert await session.queue("orders").admin.release_claims() == NUMBER
            await taken(options["hosts"], options["root"])

        asyncio.run(force_open())
        with pytest.raises(zq.ClaimLostError, match="26 messages of a batch no longer exist"):
            ids_of(reader, shares)
    finally:
        reader.stop()


def test_a_damaged_bundle_becomes_one_dead_letter_with_its_batch(options: dict[str, str]) -> None:
    ids = asyncio.run(put(options, NUMBER))
    bundle = asyncio.run(damage(options))
    failing = parse_options({**options, "mode": "FAILFAST"})
    parsed = parse_options(options)
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(NUMBER))
        shares = reader.partitions(start, end)
        strict = QueueStreamReader(default_schema(failing.content), failing)
        with pytest.raises(zq.PayloadError, match=f"bundle {bundle} does not decode"):
            ids_of(strict, shares)
        assert ids_of(reader, shares) == ids[64:]
        reader.commit(end)
    finally:
        reader.stop()

    async def dead() -> list[bytes]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            assert (await queue.size(), (await queue.stats()).in_flight) == (0, 0)
            return [letter.body for letter in await queue.dead_letters.peek()]

    assert asyncio.run(dead()) == [b"damaged"]


def test_a_batch_read_returns_the_messages_that_are_left_in_bundles(options: dict[str, str]) -> None:
    ids = asyncio.run(put(options, NUMBER))
    assert sorted(found(options)[1]) == sorted(ids)
    assert found(options, EqualTo(("id",), ids[70]))[1] == [ids[70]]

    async def read_while_held() -> list[str]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            async with session.transaction() as tx:
                await tx.take_many(session.queue("orders"), 10)
                await tx.commit()
            async with session.transaction() as tx:
                await tx.take_many(session.queue("orders"), 100)
                return (await asyncio.to_thread(found, options))[1]

    assert sorted(asyncio.run(read_while_held())) == sorted(ids[10:])


@pytest.mark.parametrize("shares", [1, 3])
def test_messages_whose_bundles_are_taken_apart_during_a_batch_read_are_read_once(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, shares: int
) -> None:
    ids = asyncio.run(put(options, NUMBER))
    done = False

    async def after_they_are_taken_apart(handle: Any, places: Sequence[str]) -> AsyncIterator[Any]:
        nonlocal done
        if places and not done:
            done = True
            async with zq.connect(options["hosts"], root=options["root"]) as session:
                assert await session.queue("orders").admin.unbundle() == 0
        async for page in bundle_pages(handle, places):
            yield page

    monkeypatch.setattr(reading, "bundle_pages", after_they_are_taken_apart)
    assert Counter(found(options, minPartitions=str(shares))[1]) == Counter(ids)
    assert done


def test_messages_that_leave_their_bundle_after_it_was_read_are_read_once(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = asyncio.run(put(options, NUMBER))
    taken: list[str] = []

    async def and_taken_apart(handle: Any, places: Sequence[str]) -> AsyncIterator[Any]:
        first = bool(places) and not taken
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            if first:
                async with session.transaction() as tx:
                    taken.append((await tx.take_many(session.queue("orders"), 1))[0].id)
            async for page in bundle_pages(handle, places):
                yield page
            if first:
                for _ in range(100):
                    if await session.queue("orders").admin.unbundle() == 0:  # the transaction may still hold one
                        break
                    await asyncio.sleep(0.05)

    monkeypatch.setattr(reading, "bundle_pages", and_taken_apart)
    assert Counter(found(options)[1]) == Counter(set(ids) - set(taken))


def test_the_tasks_of_a_batch_read_are_counted_by_messages_and_not_by_bundles(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = asyncio.run(put(options, NUMBER))
    monkeypatch.setattr(reading, "SHARE", 50)
    tasks, read = found(options)
    assert (tasks, Counter(read)) == (3, Counter(ids))
