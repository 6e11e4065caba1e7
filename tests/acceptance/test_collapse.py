"""Collapsing queues: waiting messages with the same key are delivered once, with the newest payload."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(collapse=True))
    return queue


async def poll(session: zq.QueueSession, limit: int = 100) -> list[bytes]:
    """Take the waiting messages, and consume them."""
    async with session.transaction() as tx:
        return [message.body for message in await tx.take_many(session.queue("jobs"), limit)]


async def test_equal_messages_put_between_two_polls_are_delivered_once(
    session: zq.QueueSession, jobs: zq.Queue[bytes], server_view: Observer, queue_root: str
) -> None:
    await jobs.put(b"M1")
    await jobs.put(b"M1")
    assert len(await jobs.peek()) == 2, "peek shows duplicates"
    assert await poll(session) == [b"M1"]
    assert await poll(session) == []
    for folder in ("items", "locks", "meta"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_a_message_put_after_the_take_is_delivered_separately(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.put(b"M1")
    async with session.transaction() as tx:
        first = await tx.take(jobs)
        assert first is not None
        await other.queue("jobs").put(b"M1")
    assert await poll(session) == [b"M1"]


async def test_the_newest_payload_of_a_key_is_delivered(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put(b"price 1", key="article 7")
    await jobs.put(b"other", key="article 8")
    await jobs.put(b"price 2", key="article 7")
    await jobs.put(b"price 3", key="article 7")
    assert await poll(session) == [b"price 3", b"other"]


async def test_a_poll_for_one_message_takes_its_whole_set(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put_many([b"a", b"b", b"a", b"a"])
    assert await poll(session, 1) == [b"a"]
    assert await poll(session) == [b"b"]


async def test_a_set_of_any_size_collapses(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put_many([b"a", b"b"] * 500)
    assert sorted(await poll(session)) == [b"a", b"b"]
    assert await jobs.size() == 0


async def test_a_set_that_grew_since_the_last_look_is_not_split(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    """The consumer has listed ten messages; before it lists again, a second message of each key is put."""
    await jobs.put_many([b"%d" % n for n in range(10)])
    taken = await poll(session, 1)
    await other.queue("jobs").put_many([b"%d" % n for n in range(10)])
    for _ in range(20):
        taken += await poll(session, 1)
    assert sorted(taken) == sorted([b"%d" % n for n in range(10)] + [taken[0]])


async def test_a_retrying_message_does_not_collapse(on_clock: OnClock, clock: TestClock) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True, policy=zq.AtLeastOnce(backoff=zq.Fixed(600))))
    await jobs.put(b"old", key="k")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback()
    await jobs.put(b"new", key="k")
    assert await poll(session) == [b"new"]
    clock.advance(600)
    async with session.transaction() as tx:
        redelivered = await tx.take(jobs, timeout=30)
    assert redelivered is not None
    assert (redelivered.body, redelivered.attempt) == (b"old", 2)


async def test_a_released_message_collapses_with_a_newer_one(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0))))
    await jobs.put(b"old", key="k")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback()
    await jobs.put(b"new", key="k")
    async with session.transaction() as tx:
        (message,) = await tx.take_many(jobs, 10, timeout=30)
    assert (message.body, message.attempt) == (b"new", 1)
    assert await jobs.size() == 0


async def test_a_rollback_releases_the_message_that_was_delivered(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.put(b"1", key="k")
    await jobs.put(b"2", key="k")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback(delay=0)
    assert await poll(session) == [b"2"]


async def test_an_ordered_queue_does_not_collapse(jobs: zq.Queue[bytes]) -> None:
    with pytest.raises(ConfigConflictError, match="collapse"):
        await jobs.configure(zq.QueueConfig(ordered=True))


async def test_a_message_in_a_group_does_not_collapse(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put_many([b"1", b"1"], group="g")
    assert [await poll(session), await poll(session)] in ([[b"1", b"1"], []], [[b"1"], [b"1"]])


async def test_messages_with_the_same_key_collapse_across_shards(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.configure(zq.QueueConfig(shards=4))
    await jobs.put_many([b"%d" % (n % 8) for n in range(64)])
    taken: list[bytes] = []
    while messages := await poll(session):
        taken += messages
    assert sorted(taken) == [b"%d" % n for n in range(8)]


@pytest.mark.parametrize(
    "options", [{"priority": 5}, {"priority": -3, "ttl": 600}, {"at": datetime(2020, 1, 1, tzinfo=UTC)}], ids=str
)
async def test_messages_with_a_priority_or_a_time_that_has_passed_collapse_across_shards(
    session: zq.QueueSession, jobs: zq.Queue[bytes], options: zq.PutOptions
) -> None:
    await jobs.configure(zq.QueueConfig(shards=4))
    options["key"] = "article 7"
    for number in range(8):
        await jobs.put(b"price %d" % number, **options)
    assert await poll(session) == [b"price 7"]
    assert await jobs.size() == 0


async def test_a_redriven_message_that_was_delayed_collapses_across_shards(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.configure(zq.QueueConfig(shards=4))
    for number in range(4):
        await jobs.put(b"price %d" % number, key="article 7", delay=0.01 * number)
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            tx.reject(message, "not now")
            await tx.commit()
    assert await jobs.dead_letters.redrive() == 4
    await jobs.put(b"price 4", key="article 7")
    assert await poll(other) == [b"price 4"]
    assert await jobs.size() == 0


async def become_dead(session: zq.QueueSession, jobs: zq.Queue[bytes], body: bytes) -> None:
    await jobs.put(body, key="article 7")
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        assert message.body == body
        tx.reject(message, "not now")
    await asyncio.sleep(0.01)  # the next put is later, in milliseconds


async def move(session: zq.QueueSession, source: str) -> None:
    reference = await session.admin.moves.start(source, "jobs")

    async def moved() -> bool:
        return (await session.admin.moves.status(reference)).state == "done"

    await eventually(moved, 30)


async def test_a_redriven_message_does_not_replace_one_that_was_put_later(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await become_dead(session, jobs, b"costs 10")
    await become_dead(session, jobs, b"costs 11")
    last = await jobs.put(b"costs 12", key="article 7")
    assert await jobs.dead_letters.redrive() == 2
    assert await poll(session) == [b"costs 12"]
    assert await poll(session) == []
    assert (await jobs.state(last)).status is zq.Status.UNKNOWN


async def test_of_several_redriven_messages_the_newest_is_delivered(
    session: zq.QueueSession, jobs: zq.Queue[bytes], server_view: Observer, queue_root: str
) -> None:
    for body in (b"costs 10", b"costs 11", b"costs 12"):
        await become_dead(session, jobs, body)
    letters = {letter.body: letter.id for letter in await jobs.dead_letters.peek()}
    for body in (b"costs 12", b"costs 10", b"costs 11"):
        assert await jobs.dead_letters.redrive([letters[body]]) == 1
    assert await poll(session) == [b"costs 12"]
    await become_dead(session, jobs, b"costs 13")
    assert await jobs.dead_letters.redrive() == 1
    assert await poll(session) == [b"costs 13"]
    for folder in ("items", "locks", "meta", "dlq"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


@pytest.mark.parametrize("first", ["source", "jobs"])
async def test_a_moved_message_replaces_only_one_that_was_put_before(
    session: zq.QueueSession, jobs: zq.Queue[bytes], first: str
) -> None:
    second = "jobs" if first == "source" else "source"
    await session.queue(first).put(b"old", key="article 7")
    await asyncio.sleep(0.01)
    await session.queue(second).put(b"new", key="article 7")
    await move(session, "source")
    assert (await jobs.stats()).duplicates == 1
    assert await poll(session) == [b"new"]
    assert await jobs.size() == 0


@pytest.mark.parametrize("keys", [1, 10])
async def test_duplicates_whose_records_exceed_a_request_collapse(
    jobs: zq.Queue[bytes], server_view: Observer, queue_root: str, keys: int
) -> None:
    await jobs.configure(zq.QueueConfig(history=zq.History(payload=True)))
    puts, size = 30, 60_000
    ids = [await jobs.put(b"%d" % number + bytes(size), key=f"article {number % keys}") for number in range(puts)]
    taken: list[bytes] = []
    async with jobs.consume(until_idle=0) as deliveries:
        taken += [delivery.body async for delivery in deliveries]
    assert sorted(taken) == sorted(b"%d" % number + bytes(size) for number in range(puts - keys, puts))
    ended = {record.id: record async for record in jobs.history()}
    assert [ended[message_id].outcome for message_id in ids] == [
        *[zq.End.COLLAPSED] * (puts - keys),
        *[zq.End.FINISHED] * keys,
    ]
    assert {len(record.payload or b"") > size for record in ended.values()} == {True}
    for folder in ("items", "locks", "meta"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_an_expired_message_does_not_replace_an_older_one(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.put(b"lasting", key="k")
    await jobs.put(b"short", key="k", ttl=0.3)
    await asyncio.sleep(1)
    assert await poll(session) == [b"lasting"]


async def test_collapsed_messages_free_their_unique_keys(
    session: zq.QueueSession, jobs: zq.Queue[bytes], server_view: Observer, queue_root: str
) -> None:
    await jobs.put(b"1", key="k", unique=True)
    await jobs.put(b"2", key="k")
    assert await poll(session) == [b"2"]
    assert await server_view.children(f"{queue_root}/jobs/keys") == []


async def test_each_put_is_followed_by_a_delivery_with_several_consumers(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    """The puts of each key are numbered: its last delivery, to any consumer, has its last number."""
    keys, rounds = 10, 30
    last: dict[int, int] = {}

    async def consume(consumer_session: zq.QueueSession) -> None:
        async with consumer_session.queue("jobs").consume() as deliveries:
            async for delivery in deliveries:
                key, number = map(int, delivery.body.split())
                last[key] = max(last.get(key, 0), number)

    async def produce() -> None:
        for number in range(1, rounds + 1):
            await asyncio.gather(*(jobs.put(b"%d %d" % (key, number), key=str(key)) for key in range(keys)))

    async def emptied() -> bool:
        return await jobs.size() == 0

    consumers = [asyncio.create_task(consume(consumer_session)) for consumer_session in (session, other)]
    await produce()
    await eventually(emptied, 30)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert last == dict.fromkeys(range(keys), rounds)


async def test_stats_count_the_messages_that_would_collapse(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put_many([b"1", b"2", b"3"], key="k")
    await jobs.put(b"4", key="other")
    stats = await jobs.stats()
    assert (stats.size, stats.duplicates) == (4, 2)
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 10, timeout=30)) == 2
    assert (await jobs.stats()).duplicates == 0


async def test_an_expired_message_is_no_duplicate(on_clock: OnClock, clock: TestClock) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    await jobs.put(b"old", key="k", ttl=100)
    clock.advance(200)
    await jobs.put(b"new", key="k")
    assert (await jobs.stats()).duplicates == 0
    async with session.transaction() as tx:
        assert [message.value for message in await tx.take_many(jobs, 10, timeout=30)] == [b"new"]
