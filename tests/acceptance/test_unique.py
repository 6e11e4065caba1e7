"""Unique keys: at most one message of a key is waiting or in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.ttl import sweep_expired
from aiozkqueue.session.internals import handle_of

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)


async def test_a_put_with_a_taken_key_is_refused_with_the_id_of_the_holder(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", key="invoice-7", unique=True)
    with pytest.raises(zq.DuplicateKeyError, match=first) as refused:
        await jobs.put(b"2", key="invoice-7", unique=True)
    assert refused.value.message_id == first
    await jobs.put(b"3", key="invoice-8", unique=True)
    assert [message.body for message in await jobs.peek()] == [b"1", b"3"]


async def test_a_put_with_a_taken_key_is_ignored_on_request(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", key="invoice-7", unique="ignore")
    assert await jobs.put(b"2", key="invoice-7", unique="ignore") == first
    assert [message.body for message in await jobs.peek()] == [b"1"]


async def test_the_payload_must_be_unique_if_there_is_no_key(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"same", unique=True)
    await jobs.put(b"other", unique=True)
    with pytest.raises(zq.DuplicateKeyError):
        await jobs.put(b"same", unique=True, headers={"trace": "t1"})


async def test_a_key_stays_taken_in_flight_and_is_freed_by_the_commit(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        await tx.take(jobs, timeout=30)
        with pytest.raises(zq.DuplicateKeyError):
            await other.queue("jobs").put(b"2", key="k", unique=True)
    await jobs.put(b"3", key="k", unique=True)
    assert [message.body for message in await jobs.peek()] == [b"3"]


async def test_a_handler_can_reuse_its_own_key_in_the_commit_of_its_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        await tx.take(jobs, timeout=30)
        tx.put(jobs, b"2", key="k", unique=True)
    assert [message.body for message in await jobs.peek()] == [b"2"]


async def test_a_rollback_keeps_the_key_of_its_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs, timeout=30)
        await tx.rollback(delay=0)
    with pytest.raises(zq.DuplicateKeyError):
        await jobs.put(b"2", key="k", unique=True)


@pytest.mark.parametrize("end", ["commit", "reject", "exhausted", "purge", "lease"])
async def test_each_end_of_a_message_frees_its_key(
    session: zq.QueueSession, server_view: Observer, queue_root: str, end: str
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(1, backoff=zq.Fixed(0)))
    await jobs.put(b"1", key="k", unique=True)
    if end == "purge":
        assert await jobs.purge() == 1
    elif end == "lease":
        (lease,) = await jobs.leases.take(timeout=30)
        await jobs.leases.acknowledge([lease.token])
    else:
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            if end == "exhausted":
                await tx.rollback()
            else:
                if end == "reject":
                    tx.reject(message, "no good")
                await tx.commit()
    assert await server_view.children(f"{queue_root}/jobs/keys") == []
    await jobs.put(b"2", key="k", unique=True)


async def test_a_dead_letter_whose_key_is_taken_again_is_not_redriven(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "no good")
    await jobs.put(b"2", key="k", unique=True)
    assert await jobs.dead_letters.redrive() == 0
    await jobs.purge()
    assert await jobs.dead_letters.redrive() == 1
    with pytest.raises(zq.DuplicateKeyError):
        await jobs.put(b"3", key="k", unique=True)


async def test_dead_letters_that_must_stay_do_not_count_for_the_limit_of_a_redrive(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", key="k", unique=True)
    await jobs.put_many([b"2", b"3"])
    async with session.transaction() as tx:
        for message in await tx.take_many(jobs, 3):
            tx.reject(message, "no good")
    await jobs.put(b"4", key="k", unique=True)
    assert await jobs.dead_letters.redrive(limit=1) == 1
    assert [message.value for message in await jobs.peek()] == [b"4", b"2"]
    assert await jobs.dead_letters.redrive(limit=5) == 1
    assert [dead.id for dead in await jobs.dead_letters.peek()] == [first]


async def test_one_of_many_concurrent_puts_with_the_same_key_succeeds_and_other_puts_are_not_affected(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    async def put(opened: zq.QueueSession, value: bytes, **options: Any) -> str:
        try:
            await opened.queue("jobs").put(value, **options)
        except zq.DuplicateKeyError:
            return "refused"
        return "put"

    outcomes = await asyncio.gather(
        *(
            put(opened, b"key %d" % n, key=f"k{n}", unique=True)
            for n in range(20)
            for opened in (session, other)
            for _ in "ab"
        ),
        *(put(session, b"plain %d" % n) for n in range(50)),
    )
    assert Counter(outcomes[:80]) == {"put": 20, "refused": 60}
    assert set(outcomes[80:]) == {"put"}
    assert await session.queue("jobs").size() == 70


async def test_a_transaction_with_a_taken_key_applies_nothing(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    with pytest.raises(zq.DuplicateKeyError):
        async with session.transaction() as tx:
            tx.put("results", b"done")
            tx.put(jobs, b"2", key="k", unique=True)
    assert await session.queue("results").size() == 0


async def test_a_transaction_commits_without_its_ignored_put(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        tx.put("results", b"done")
        tx.put(jobs, b"2", key="k", unique="ignore")
    assert await session.queue("results").size() == 1
    assert [message.body for message in await jobs.peek()] == [b"1"]


async def test_one_put_many_stores_a_key_once(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first, repeated, different = await jobs.put_many([b"a", b"a", b"b"], unique="ignore")
    assert first == repeated != different
    with pytest.raises(zq.DuplicateKeyError, match="two messages of this commit") as refused:
        await jobs.put_many([b"c", b"c"], unique=True)
    assert refused.value.message_id is None
    assert [message.body for message in await jobs.peek()] == [b"a", b"b"]


async def test_a_key_survives_the_session_that_put_it(
    session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as gone:
        await gone.queue("jobs").put(b"1", key="k", unique=True)
    with pytest.raises(zq.DuplicateKeyError):
        await session.queue("jobs").put(b"2", key="k", unique=True)


async def test_a_message_whose_key_was_removed_by_hand_can_still_end(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    (key,) = await server_view.children(f"{queue_root}/jobs/keys")
    await server_view.delete(f"{queue_root}/jobs/keys/{key}")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
    assert await jobs.size() == 0


@pytest.mark.parametrize("unique", ["yes", 1.5, b"raise"])
async def test_invalid_values_of_unique_are_refused(session: zq.QueueSession, unique: Any) -> None:
    with pytest.raises(zq.InvalidOptionError, match="unique"):
        await session.queue("jobs").put(b"1", key="k", unique=unique)


async def test_stats_count_the_taken_keys(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"], unique=True)
    await jobs.put(b"3", key="k")
    assert (await jobs.stats()).unique_keys == 2
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 3, timeout=30)) == 3
    assert (await jobs.stats()).unique_keys == 0


async def test_a_put_that_does_not_fit_in_a_transaction_does_not_hold_its_key_there(session: zq.QueueSession) -> None:
    queue = session.queue("q")
    async with session.transaction() as tx:
        tx.put(queue, b"x" * 600_000)
        with pytest.raises(zq.TransactionTooLargeError):
            tx.put(queue, b"y" * 600_000, key="k", unique=True)
        tx.put(queue, b"z", key="k", unique=True)
    assert [message.value[:1] for message in await queue.peek(3)] == [b"x", b"z"]


@pytest.mark.parametrize("unique", [True, "ignore"])
@pytest.mark.parametrize("lifetime", ["of the put", "of the queue"])
async def test_a_put_replaces_the_expired_message_of_its_key(
    on_clock: OnClock, clock: TestClock, unique: Any, lifetime: str
) -> None:
    jobs = (await on_clock()).queue("jobs")
    await jobs.configure(zq.QueueConfig(expired="dead-letter", ttl=60 if lifetime == "of the queue" else None))
    ttl: dict[str, Any] = {"ttl": 60} if lifetime == "of the put" else {}
    first = await jobs.put(b"1", key="k", unique=unique, **ttl)
    clock.advance(100)
    second = await jobs.put(b"2", key="k", unique=unique, **ttl)
    assert second != first
    assert [(message.id, message.body) for message in await jobs.peek()] == [(second, b"2")]
    assert [dead.id for dead in await jobs.dead_letters.peek()] == [first]
    assert await jobs.put(b"3", key="k", unique="ignore", **ttl) == second


@pytest.mark.parametrize("state", ["waits for a retry", "is delayed", "is in a group"])
async def test_a_put_replaces_an_expired_message_that_no_consumer_handles(
    on_clock: OnClock, clock: TestClock, state: str
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    every: dict[str, dict[str, Any]] = {"is delayed": {"delay": 30}, "is in a group": {"group": "g"}}
    options = every.get(state, {})
    await jobs.put(b"1", key="k", unique=True, ttl=60, **options)
    if state == "waits for a retry":
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            await tx.rollback(delay=1000)
    clock.advance(100)
    async with session.transaction() as tx:
        second = tx.put(jobs, b"2", key="k", unique="ignore")
        tx.put("results", b"done")
    assert [(message.id, message.body) for message in await jobs.peek()] == [(second, b"2")]
    assert await session.queue("results").size() == 1


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_message_that_was_delivered_in_time_keeps_its_key_while_it_is_handled(
    on_clock: OnClock, clock: TestClock, group: str | None
) -> None:
    session, other = await on_clock(), await on_clock()
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", key="k", unique=True, ttl=60, group=group)
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        clock.advance(100)
        assert await other.queue("jobs").put(b"2", key="k", unique="ignore") == first
        with pytest.raises(zq.DuplicateKeyError, match=first):
            await other.queue("jobs").put(b"3", key="k", unique=True)
    assert await jobs.size() == 0


async def test_each_of_many_puts_of_expired_keys_returns_a_message_that_is_stored(
    on_clock: OnClock, clock: TestClock
) -> None:
    sessions = [await on_clock() for _ in range(3)]
    jobs = sessions[0].queue("jobs")
    old = await asyncio.gather(*(jobs.put(b"old", key=f"k{n}", unique=True, ttl=60) for n in range(30)))
    clock.advance(100)
    consumed = list[bytes]()

    async def take() -> None:
        async with sessions[2].transaction() as tx:
            message = await tx.take(sessions[2].queue("jobs"), timeout=0)
            consumed.extend([] if message is None else [message.body])

    puts = [opened.queue("jobs").put(b"new", key=f"k{n}", unique="ignore") for n in range(30) for opened in sessions]
    *ids, _, _ = await asyncio.gather(*puts, sweep_expired(handle_of(sessions[1].queue("jobs"))), take())
    assert not {*ids} & {*old}
    assert len({*ids}) >= 30
    assert await jobs.size() + len(consumed) == len({*ids})
    assert {*consumed} <= {b"new"}


async def test_a_dead_letter_is_redriven_although_an_expired_message_has_its_key(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "no good")
    await jobs.put(b"2", key="k", unique=True, ttl=60)
    assert await jobs.dead_letters.redrive() == 0
    clock.advance(100)
    assert await jobs.dead_letters.redrive() == 1
    assert [message.id for message in await jobs.peek()] == [first]


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_an_update_of_a_payload_that_is_the_key_changes_the_key(
    session: zq.QueueSession, server_view: Observer, queue_root: str, *, in_transaction: bool
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"before", priority=3)
    message = await jobs.put(b"old", unique=True, ttl=1000, headers={"trace": "t1"}, priority=3)
    await jobs.put(b"after", priority=3)
    enqueued = [message.enqueued_at for message in await jobs.peek()]
    if in_transaction:
        async with session.transaction() as tx:
            assert await tx.update(jobs, b"new", id=message)
            tx.put(jobs, b"old", unique=True, priority=3)
    else:
        assert await jobs.update(b"new", id=message)
        await jobs.put(b"old", unique=True, priority=3)
    assert len(await server_view.children(f"{queue_root}/jobs/keys")) == 2
    for opened in (b"old", b"new"):
        with pytest.raises(zq.DuplicateKeyError):
            await jobs.put(opened, unique=True)
    assert await jobs.put(b"new", unique="ignore") == message
    assert [message.enqueued_at for message in await jobs.peek()][:3] == enqueued
    async with session.transaction() as tx:
        taken = await tx.take_many(jobs, 10, timeout=30)
        assert [message.body for message in taken] == [b"before", b"new", b"after", b"old"]
        assert (taken[1].id, taken[1].headers) == (message, {"trace": "t1"})
    for folder in ("keys", "locks", "meta"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_an_update_to_a_payload_that_another_message_has_as_its_key_is_refused(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"first", unique=True)
    second = await jobs.put(b"second", unique=True)
    with pytest.raises(zq.DuplicateKeyError, match=first) as refused:
        await jobs.update(b"first", id=second)
    assert refused.value.message_id == first
    with pytest.raises(zq.DuplicateKeyError, match=first):
        async with session.transaction() as tx:
            tx.put("results", b"done")
            await tx.update(jobs, b"first", id=second)
    assert await session.queue("results").size() == 0
    assert [message.body for message in await jobs.peek()] == [b"first", b"second"]
    assert await jobs.update(b"second", id=second)
    assert await jobs.cancel(id=first)
    assert await jobs.update(b"first", id=second)
    await jobs.put(b"second", unique=True)


async def test_an_update_replaces_the_expired_message_that_has_the_new_payload(
    on_clock: OnClock, clock: TestClock
) -> None:
    jobs = (await on_clock()).queue("jobs")
    await jobs.put(b"new", unique=True, ttl=60)
    message = await jobs.put(b"old", unique=True)
    clock.advance(100)
    assert await jobs.update(b"new", id=message)
    assert [(message.id, message.body) for message in await jobs.peek()] == [(message, b"new")]


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_retrying_message_with_a_new_payload_as_its_key_keeps_its_attempts(
    on_clock: OnClock, clock: TestClock, group: str | None
) -> None:
    session, other = await on_clock(), await on_clock()
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(100)))
    message = await jobs.put(b"old", unique=True, group=group)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback()
    assert await other.queue("jobs").update(b"new", id=message)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=0) is None
        clock.advance(100)
        taken = await tx.take(jobs, timeout=30)
        assert taken is not None
        assert (taken.id, taken.body, taken.attempt) == (message, b"new", 2)
        await tx.rollback()
    await jobs.put(b"new", unique=True)
    (dead,) = await jobs.dead_letters.peek()
    assert (dead.id, dead.body, dead.attempts) == (message, b"new", 2)


async def test_an_updated_message_without_a_key_is_compacted_by_its_new_payload(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    message = await jobs.put(b"old")
    assert await jobs.update(b"new", id=message)
    await jobs.put(b"old")
    async with session.transaction() as tx:
        assert sorted(message.body for message in await tx.take_many(jobs, 10, timeout=30)) == [b"new", b"old"]
