"""The batch that a ledger prepares while tasks read another one, and that no query knows yet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import aiozkqueue as zq
from tests.spark.test_ledger import (
    DyingClient,
    InterruptedClient,
    OvertakenClient,
    Stream,
    _DriverKilledError,
    driver,
    fill,
)

if TYPE_CHECKING:
    from aiozkqueue.batches.ledger import Ledger
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(120)


async def held(ledger: Ledger, number: int) -> int:
    """Return the number of messages in a batch, sealed or not."""
    return sum(page.messages for page in await ledger._manifests.pages(number, sealed=False))


async def test_a_prepared_batch_is_returned_as_it_is_and_filled_up_when_it_is_requested(
    zookeeper: str, queue_root: str
) -> None:
    await fill(zookeeper, queue_root, 6)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 4)
        await ledger.prepare(first, 4)
        await ledger.prepare(first, 4)
        (_, ahead) = await ledger.batches()
        assert await held(ledger, ahead) == 2
        await session.queue("orders").put_many([b"6", b"7", b"8"])
        assert await ledger.next_batch(first, 4) == ahead
        assert await held(ledger, ahead) == 4
        await ledger.prepare(first, 4)  # it already exists, and Spark has requested it
        assert await ledger.batches() == [first, ahead]
        await ledger.prepare(ahead, 4)
        assert [await held(ledger, number) for number in await ledger.batches()] == [4, 4, 1]


async def test_nothing_is_prepared_if_no_message_is_free(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 4)
    async with driver(zookeeper, queue_root) as ledger:
        first = await ledger.next_batch(-1, 4)
        client = DyingClient(ledger._epoch.zookeeper, None, applied=True)
        ledger._epoch.zookeeper = client  # type: ignore[assignment]
        await ledger.prepare(first, 4)
        assert await ledger.release_unsealed() == 0
        assert client.steps == 0
        assert await ledger.batches() == [first]


async def test_a_frozen_ledger_prepares_no_later_message(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 6)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        await ledger.freeze()
        await session.queue("orders").put(b"too late")
        first = await ledger.next_batch(-1, 4)
        await ledger.prepare(first, 4)
        second = await ledger.next_batch(first, 4)
        assert await held(ledger, second) == 2
        await ledger.prepare(second, 4)
        assert await ledger.next_batch(second, 4) == second


async def test_a_prepared_batch_is_not_returned_while_its_queue_is_paused(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 6)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 3)
        await ledger.prepare(first, 3)
        await session.queue("orders").configure(zq.QueueConfig(paused=True))
        assert await ledger.next_batch(first, 3) == first
        await session.queue("orders").configure(zq.QueueConfig(paused=False))
        assert await held(ledger, await ledger.next_batch(first, 3)) == 3


@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_driver_killed_at_any_write_of_a_return_loses_and_duplicates_nothing(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, bundle: int, *, applied: bool
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 2)
    monkeypatch.setattr("aiozkqueue.batches.preparing.MAX_CONCURRENT", 1)
    step, died = 0, True
    while died:
        step += 1
        root = f"{queue_root}/{step}"
        bodies = await fill(zookeeper, root, 24, bundle)
        stream = Stream()
        died = False
        async with driver(zookeeper, root) as ledger:
            stream.offsets.append(await ledger.next_batch(-1, 8))
            await ledger.prepare(stream.offsets[0], 8)
            ledger._epoch.zookeeper = DyingClient(ledger._epoch.zookeeper, step, applied=applied)  # type: ignore[assignment]
            try:
                assert await ledger.release_unsealed() == 8
            except _DriverKilledError:
                died = True
        async with zq.connect(zookeeper, root=root) as session:
            stats = await session.queue("orders").stats()
            assert stats.in_flight in (range(8, 17) if died else {8})
            assert stats.size == 24
        async with driver(zookeeper, root) as ledger:
            await stream.run(ledger, 8)
            assert await ledger.batches() == []
        taken = [body for batch in stream.sink.values() for body in batch]
        assert Counter(taken) == Counter(bodies), f"killed at write {step}"
        async with zq.connect(zookeeper, root=root) as session:
            stats = await session.queue("orders").stats()
            assert (stats.size, stats.in_flight, stats.ledgers) == (0, 0, 0)
    assert step > (4 if bundle == 1 else 2)


async def test_only_batches_that_no_query_knows_are_returned(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 12)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 4)
        await ledger.hand_out(first, "stream", 1)
        await ledger.hand_out(first, "stream", 1)  # the failed batch is divided
        heir = (await ledger.batches())[-1]
        await ledger.prepare(heir, 4)
        second = await ledger.next_batch(heir, 4)
        await ledger.prepare(second, 4)
        assert len(await ledger.batches()) == 4
        assert await ledger.release_unsealed() == 4
        assert await ledger.batches() == [first, heir, second]
        assert [await held(ledger, number) for number in (first, heir, second)] == [1, 3, 4]
        async with session.transaction() as tx:
            assert len(await tx.take_many(session.queue("orders"), 20)) == 4


async def test_a_batch_that_is_divided_while_a_killed_drivers_next_one_is_unsealed_loses_nothing(
    zookeeper: str, queue_root: str
) -> None:
    bodies = await fill(zookeeper, queue_root, 12)
    async with driver(zookeeper, queue_root) as ledger:
        first = await ledger.next_batch(-1, 8)
        await ledger.hand_out(first, "stream", 1)
        await ledger.prepare(first, 8)
    seen: list[int] = []
    async with driver(zookeeper, queue_root) as ledger:
        await ledger.hand_out(first, "stream", 1)
        seen.append(first)
        while (following := await ledger.next_batch(seen[-1], 8)) != seen[-1]:
            seen.append(following)
        sizes = [await held(ledger, number) for number in seen]
        assert sizes == [1, 4, 7]
        assert sum(sizes) == len(bodies)


async def test_an_unsealed_batch_without_messages_does_not_hide_the_one_after_it(
    zookeeper: str, queue_root: str
) -> None:
    await fill(zookeeper, queue_root, 8)
    async with driver(zookeeper, queue_root) as ledger:
        first = await ledger.next_batch(-1, 8)
        await ledger.hand_out(first, "stream", 1)
        empty = await ledger._manifests.new()
        await ledger.hand_out(first, "stream", 1)
        following = await ledger.next_batch(first, 8)
        assert following > empty
        assert await held(ledger, following) == 7
        assert await ledger.batches() == [first, following]


async def test_a_replaced_driver_can_neither_prepare_nor_return_a_batch(zookeeper: str, queue_root: str) -> None:
    await fill(zookeeper, queue_root, 12)
    async with driver(zookeeper, queue_root) as zombie, driver(zookeeper, queue_root) as successor:
        first = await zombie.next_batch(-1, 4)
        await zombie.prepare(first, 4)
        await successor.open()
        with pytest.raises(zq.ClaimLostError):
            await zombie.release_unsealed()
        ahead = await successor.next_batch(first, 4)
        with pytest.raises(zq.ClaimLostError):
            await zombie.next_batch(ahead, 4)
        with pytest.raises(zq.ClaimLostError):
            await zombie.prepare(ahead, 4)
        assert await successor.batches() == [first, ahead]
        assert [await held(successor, number) for number in (first, ahead)] == [4, 4]


@pytest.mark.parametrize("bundle", [1, 4])
async def test_the_locks_of_consumers_that_claimed_prepared_messages_stay(
    zookeeper: str, queue_root: str, bundle: int
) -> None:
    await fill(zookeeper, queue_root, 16, bundle)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 8)
        await ledger.prepare(first, 8)
        orders = session.queue("orders")
        async with session.transaction(autocommit=False) as holder:

            async def force_open_and_take() -> None:
                await orders.admin.release_claims()
                assert len(await holder.take_many(orders, 16, timeout=30)) == 16

            client: Any = OvertakenClient(ledger._epoch.zookeeper, force_open_and_take)
            ledger._epoch.zookeeper = client
            assert await ledger.release_unsealed() == 0
            assert await ledger.batches() == [first]
            assert (await orders.stats()).in_flight == 16
            await holder.commit()
        assert await orders.size() == 0


async def test_a_user_who_may_not_wake_consumers_can_return_messages(
    zookeeper: str, queue_root: str, server_view: Observer
) -> None:
    await fill(zookeeper, queue_root, 8)
    items = f"{queue_root}/orders/items"
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        first = await ledger.next_batch(-1, 4)
        await ledger.prepare(first, 4)
        everything_else = make_acl("world", "anyone", read=True, create=True, delete=True)
        owner = make_digest_acl("somebody", "else", all=True)
        await server_view.set_acl(items, [everything_else, owner])
        assert await ledger.release_unsealed() == 4
        async with session.transaction() as tx:
            assert len(await tx.take_many(session.queue("orders"), 20)) == 4


async def test_a_halted_ledger_stops_between_two_pages(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 1)
    await fill(zookeeper, queue_root, 40)
    async with driver(zookeeper, queue_root) as ledger:
        first = await ledger.next_batch(-1, 10)

        async def halt() -> None:
            ledger.halt()

        client: Any = InterruptedClient(ledger._epoch.zookeeper, halt)  # once the manifest has been created
        ledger._epoch.zookeeper = client
        await ledger.prepare(first, 30)
        assert await ledger.batches() == [first]
