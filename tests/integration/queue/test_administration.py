"""Operations of operators: inspect, count, purge, release by force, and redrive; also with other programs' items."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import lease_token
from tests.integration.queue.conftest import Locks, eventually, take_one

if TYPE_CHECKING:
    from tests.observer import Observer


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    """A queue of four messages."""
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(4)])
    return jobs


async def test_peek_reads_the_oldest_messages_claimed_ones_too_and_takes_none(
    session: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        assert [message.value for message in await jobs.peek()] == [b"0", b"1", b"2", b"3"]
        assert [message.value for message in await jobs.peek(2)] == [b"0", b"1"]
        assert len(await locks()) == 1
        await tx.rollback(delay=0)
    assert [message.attempt for message in await jobs.peek(2)] == [1, 0]
    assert await session.queue("nothing").peek() == []


async def test_size_claimed_and_stats_count_messages_by_state(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    before = datetime.now(UTC)
    async with session.transaction() as tx, other.transaction() as delaying:
        held, bad = await tx.take_many(jobs, 2)
        later = await delaying.take(other.queue("jobs"))
        assert later is not None
        delaying.release(later, delay=60)
        await delaying.commit()
        assert (await jobs.size(), await jobs.claimed()) == (4, 2)
        stats = await jobs.stats()
        assert (stats.queue, stats.size, stats.in_flight, stats.delayed, stats.dead_letters) == ("jobs", 4, 2, 1, 0)
        assert stats.consumers == 2
        assert stats.oldest is not None
        assert abs(stats.oldest - before) < timedelta(minutes=1)
        tx.reject(bad, "bad")
        assert held.value == b"0"
    stats = await jobs.stats()
    assert (stats.size, stats.in_flight, stats.delayed, stats.dead_letters) == (2, 0, 1, 1)


async def test_the_figures_of_a_missing_queue_are_zero_and_do_not_create_it(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    nothing = session.queue("nothing")
    stats = await nothing.stats()
    assert (stats.size, stats.in_flight, stats.delayed, stats.dead_letters, stats.oldest) == (0, 0, 0, 0, None)
    assert (await nothing.size(), await nothing.claimed(), await nothing.exists()) == (0, 0, False)
    assert (await nothing.purge(), await nothing.admin.release_claims(), await nothing.dead_letters.purge()) == (
        0,
        0,
        0,
    )
    assert (await nothing.admin.reap(), await nothing.dead_letters.redrive(), await nothing.admin.consumers()) == (
        0,
        0,
        [],
    )
    assert await nothing.cancel(key="k") is await nothing.update(b"1", key="k") is zq.Alteration.NOT_FOUND
    assert (await nothing.admin.ledgers(), await nothing.admin.unfinished(), await nothing.admin.pins()) == ([], [], [])
    assert await session.curator_queue(f"{queue_root}/nothing", kind="id").remove("k") == 0
    assert not await server_view.exists(f"{queue_root}/nothing")


async def test_a_token_or_a_move_that_names_a_deleted_queue_does_not_create_it(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    token = lease_token("gone", "items/item-ivictim-0000000001")
    for gone in (session.queue("gone"), other.queue("gone")):
        await gone.leases.acknowledge([token])
        await gone.leases.renew([token], lifetime=60)
        await gone.leases.renew([token], lifetime=0)
    reference = await session.admin.moves.start("gone", "elsewhere")

    async def over() -> bool:
        return (await session.admin.moves.status(reference)).state == "done"

    await eventually(over)
    assert not await server_view.exists(f"{queue_root}/gone")
    assert not await server_view.exists(f"{queue_root}/elsewhere")


async def test_purge_removes_all_messages_that_are_not_held(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes], server_view: Observer, queue_root: str
) -> None:
    async with other.transaction() as delaying:
        later = await delaying.take(other.queue("jobs"))
        assert later is not None
        delaying.release(later, delay=60)
    async with session.transaction() as tx:
        held = await tx.take(jobs)
        assert held is not None
        assert await jobs.purge() == 3
        assert [message.id for message in await jobs.peek()] == [held.id]
        tx.put("results", b"1")
    # The holder could commit, and no message is left.
    assert await session.queue("results").size() == 1
    tree = await server_view.tree(f"{queue_root}/jobs")
    folders = ("items", "locks", "due", "meta")
    assert [path for path in tree if any(path.startswith(f"{queue_root}/jobs/{folder}/") for folder in folders)] == []


async def test_release_claims_releases_every_claim_and_its_holders_can_change_nothing(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(jobs, 2)) == 2
        assert await other.queue("jobs").admin.release_claims() == 2
        assert await locks() == []
        async with other.transaction() as second:
            assert len(await second.take_many(other.queue("jobs"), 4)) == 4
            with pytest.raises(zq.ClaimLostError):
                await tx.commit()
            await tx.rollback()
            assert len(await locks()) == 4
    assert await jobs.size() == 0


# Dead letters


async def test_redrive_restores_dead_letters_with_id_headers_and_time(
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    identity = await jobs.put(b"1", key="k", headers={"trace": "7"})
    (put,) = await jobs.peek()
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.reject(message, "no such order")
    (dead,) = await jobs.dead_letters.peek()
    assert (dead.id, dead.value, dead.key, dead.headers) == (identity, b"1", "k", {"trace": "7"})
    assert (dead.reason, dead.attempts, dead.enqueued_at) == ("no such order", 1, put.enqueued_at)
    assert abs(dead.died_at - datetime.now(UTC)) < timedelta(minutes=1)
    await jobs.put(b"2")
    await asyncio.sleep(0.01)
    assert await jobs.dead_letters.redrive() == 1
    assert await jobs.dead_letters.size() == 0
    second, back = await take_one(session), await take_one(session)
    assert second.value == b"2"  # the redriven message is behind it
    assert (back.id, back.value, back.key, back.headers) == (identity, b"1", "k", {"trace": "7"})
    assert (back.enqueued_at, back.attempt) == (put.enqueued_at, 1)


async def test_redrive_and_purge_take_ids_and_a_limit(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    ids = await jobs.put_many([b"%d" % number for number in range(6)])
    async with session.transaction() as tx:
        for message in await tx.take_many(jobs, 6):
            tx.reject(message, "bad")
    letters = jobs.dead_letters
    assert await letters.size() == 6
    assert [dead.id for dead in await letters.peek(3)] == ids[:3]
    assert await letters.redrive([ids[4], "unknown"]) == 1
    assert await letters.redrive(limit=2) == 2
    assert {message.id for message in await jobs.peek()} == {ids[0], ids[1], ids[4]}
    assert await letters.purge([ids[2]]) == 1
    assert await letters.purge() == 2
    assert await letters.size() == 0
    with pytest.raises(zq.InvalidOptionError, match="not one str"):
        await letters.redrive(ids[0])


async def test_a_long_reason_is_truncated_and_the_message_is_kept(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(bytes(900_000))
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.reject(message, "é" * 100_000)
    (dead,) = await jobs.dead_letters.peek()
    assert dead.reason.startswith("éé")
    assert len(dead.reason.encode()) <= 4096
    assert dead.body == bytes(900_000)


# Another program's queue


async def test_another_programs_plain_items_are_consumed(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    # In the layout of zk-queue, without any znodes of ours.
    items = f"{queue_root}/jobs/items"
    for number in (1, 2, 42):
        await server_view.create(f"{items}/item-{number:010d}", b"%d" % number)
    await server_view.create(f"{items}/stranger", b"no item")
    jobs = session.queue("jobs")
    assert [(message.id, message.value) for message in await jobs.peek()] == [
        ("0000000001", b"1"),
        ("0000000002", b"2"),
        ("0000000042", b"42"),
    ]
    async with session.transaction() as tx:
        messages = await tx.take_many(jobs, 10)
        assert [message.value for message in messages] == [b"1", b"2", b"42"]
        tx.reject(messages[1], "even")
        tx.release(messages[2])
    assert [(dead.id, dead.reason) for dead in await jobs.dead_letters.peek()] == [("0000000002", "even")]
    assert (await take_one(session)).id == "0000000042"
    assert await server_view.children(items) == ["stranger"]
    await server_view.create(f"{items}/item-0000000043", b"43")  # while a consumer has its watches set
    assert (await take_one(session)).value == b"43"


async def test_another_programs_new_item_wakes_an_idle_consumer(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    taking = asyncio.create_task(take_one(session))
    await asyncio.sleep(0.3)
    await server_view.create(f"{queue_root}/jobs/items/item-0000000007", b"7")
    message = await asyncio.wait_for(taking, 30)
    assert (message.id, message.value, message.attempt) == ("0000000007", b"7", 1)


async def test_a_foreign_lock_holds_its_item_until_it_is_removed(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    identity = await session.queue("jobs").put(b"1")
    lock = f"{queue_root}/jobs/locks/lock-{identity}"
    await server_view.create(lock, b"another program's", ephemeral=True)
    async with session.transaction() as tx:
        assert await tx.take(session.queue("jobs"), timeout=0.2) is None
    await server_view.delete(lock)
    # No watch reports the removal of a foreign lock; the next listing finds the item free.
    async with session.transaction() as tx:
        message = await tx.take(session.queue("jobs"))
        assert message is not None
        assert message.id == identity
