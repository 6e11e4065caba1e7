"""Waiting messages are cancelled or replaced by id or key; held messages are reported as held."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)

DONE, HELD, NOT_FOUND = zq.Alteration.DONE, zq.Alteration.HELD, zq.Alteration.NOT_FOUND


async def test_a_waiting_message_is_cancelled_by_its_id(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    first, second = await jobs.put_many([b"1", b"2"])
    assert await other.queue("jobs").cancel(id=first)
    assert [message.id for message in await jobs.peek()] == [second]
    assert await server_view.children(f"{queue_root}/jobs/locks") == []
    assert await jobs.cancel(id=first) is NOT_FOUND


async def test_a_waiting_message_is_replaced_in_place(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"1", headers={"trace": "t1"}, key="k")
    await jobs.put(b"2")
    assert await jobs.update(b"new", id=first)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
    assert message is not None
    assert (message.id, message.body, message.headers, message.key) == (first, b"new", {"trace": "t1"}, "k")


async def test_all_waiting_messages_with_a_key_are_altered(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"], key="k")
    await jobs.put(b"3", key="other")
    assert await jobs.update(b"new", key="k")
    assert [message.body for message in await jobs.peek()] == [b"new", b"new", b"3"]
    assert await jobs.cancel(key="k")
    assert [message.body for message in await jobs.peek()] == [b"3"]


async def test_a_message_in_flight_is_reported_as_held_and_not_altered(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    message_id = await jobs.put(b"1", key="k")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        assert await other.queue("jobs").cancel(id=message_id) is HELD
        assert await other.queue("jobs").update(b"new", key="k") is HELD
    assert await jobs.cancel(id=message_id) is NOT_FOUND


async def test_a_leased_message_is_held_until_the_lease_ends(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    message_id = await jobs.put(b"1")
    (lease,) = await jobs.leases.take(lifetime=60, timeout=30)
    assert await jobs.cancel(id=message_id) is HELD
    await jobs.leases.renew([lease.token], lifetime=0)
    assert await jobs.cancel(id=message_id)


async def test_a_retrying_message_is_cancelled(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(600)))
    message_id = await jobs.put(b"1", key="k", unique=True)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback()
    assert await jobs.cancel(id=message_id)
    for folder in ("items", "locks", "due", "meta", "keys", "dlq"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_a_retrying_message_is_replaced_and_redelivered_when_it_is_due(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(600)))
    message_id = await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await tx.rollback()
    async with session.transaction() as tx:
        waiting = asyncio.create_task(tx.take(jobs, timeout=None))
        await eventually(lambda: _taken_from(jobs))
        assert await jobs.update(b"new", id=message_id)
        assert not waiting.done()
        clock.advance(600)
        message = await waiting
    assert message is not None
    assert (message.body, message.attempt) == (b"new", 2)


async def _taken_from(jobs: zq.Queue[bytes]) -> bool:
    return (await jobs.stats()).consumers == 1


async def test_cancelling_frees_the_unique_key(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True)
    assert await jobs.cancel(key="k")
    await jobs.put(b"2", key="k", unique=True)


async def test_a_message_is_cancelled_in_any_lane_of_its_queue(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=4))
    ids = await jobs.put_many([b"%d" % n for n in range(8)])
    ids.append(await jobs.put(b"urgent", priority=-5))
    ids.append(await jobs.put(b"later", delay=3600))
    assert [await jobs.cancel(id=message_id) for message_id in ids] == [DONE] * 10
    assert await jobs.size() == 0


async def test_a_message_of_another_program_is_found_by_its_sequence_number(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    await server_view.create(f"{queue_root}/jobs/items/item-0000000041", b"foreign")
    assert await jobs.update(b"new", id="0000000041")
    assert await server_view.get(f"{queue_root}/jobs/items/item-0000000041") == b"new"
    assert await jobs.cancel(id="0000000041")


async def test_each_message_is_either_consumed_or_cancelled_in_a_race_with_consumers(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    ids = await session.queue("jobs").put_many([b"%d" % n for n in range(200)])
    consumed: list[str] = []
    deliveries = other.queue("jobs").consume()

    async def consume() -> None:
        async with deliveries:
            consumed.extend([delivery.id async for delivery in deliveries])

    async def cancel(message_id: str) -> zq.Alteration:
        return await session.queue("jobs").cancel(id=message_id)

    consumer = asyncio.create_task(consume())
    ids.reverse()
    outcomes = dict(zip(ids, await asyncio.gather(*map(cancel, ids)), strict=True))
    async with asyncio.timeout(30):
        while await session.queue("jobs").size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)
    deliveries.stop()
    await consumer
    assert Counter(consumed) == Counter(message_id for message_id, outcome in outcomes.items() if outcome is not DONE)


async def test_a_commit_cancels_and_replaces_together_with_its_puts(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    first, second, third = await jobs.put_many([b"1", b"2", b"3"])
    async with session.transaction() as tx:
        assert await tx.cancel(jobs, id=first)
        assert await tx.update(jobs, b"new", id=second)
        tx.put(jobs, b"4")
        assert [message.body for message in await other.queue("jobs").peek()] == [b"1", b"2", b"3"], "not yet"
    assert [message.body for message in await jobs.peek()] == [b"new", b"3", b"4"]
    assert (await jobs.peek())[1].id == third


@pytest.mark.parametrize("end", ["rolled back", "left with an error"])
async def test_a_transaction_that_does_not_commit_alters_nothing(session: zq.QueueSession, end: str) -> None:
    jobs = session.queue("jobs")
    first, second = await jobs.put_many([b"1", b"2"])
    with suppress(LookupError):
        async with session.transaction() as tx:
            assert await tx.cancel(jobs, id=first)
            assert await tx.update(jobs, b"new", id=second)
            if end == "rolled back":
                await tx.rollback()
            else:
                raise LookupError
    assert [message.body for message in await jobs.peek()] == [b"1", b"2"]


async def test_a_commit_fails_as_a_whole_if_a_message_it_alters_was_claimed(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    first = await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx, other.transaction() as other_tx:
        assert await tx.cancel(jobs, id=first)
        tx.put(jobs, b"2")
        assert await other_tx.take(other.queue("jobs"), timeout=20) is not None
        with pytest.raises(zq.ConflictError, match=f"{first}.*repeat it"):
            await tx.commit()
    assert await jobs.size() == 0


@pytest.mark.parametrize("options", [{"delay": 600}, {"priority": 1}, {"group": "g"}], ids=str)
@pytest.mark.parametrize("how", ["cancel", "update"])
async def test_a_commit_alters_a_message_of_the_queue_to_which_it_makes_a_first_put_of_its_kind(
    session: zq.QueueSession, how: str, options: zq.PutOptions
) -> None:
    jobs = session.queue("jobs")
    message_id = await jobs.put(b"old")
    async with session.transaction() as tx:
        altered = tx.cancel(jobs, id=message_id) if how == "cancel" else tx.update(jobs, b"new", id=message_id)
        assert await altered
        tx.put(jobs, b"put", **options)
    assert await jobs.size() == (1 if how == "cancel" else 2)
    assert [message.body for message in await jobs.peek() if message.id == message_id] == [b"new"] * (how == "update")


@pytest.mark.parametrize("concerned", [False, True])
async def test_a_commit_alters_a_message_unless_the_configuration_has_changed_in_what_concerns_it(
    session: zq.QueueSession, other: zq.QueueSession, *, concerned: bool
) -> None:
    jobs = session.queue("jobs")
    message_id = await jobs.put(b"old")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.update(jobs, b"new", id=message_id)
        if concerned:  # the message has another lock from now on
            await other.queue("jobs").configure(zq.QueueConfig(ordered=True))
            with pytest.raises(zq.ConflictError, match=f"{message_id}.*repeat it"):
                await tx.commit()
        else:
            await other.queue("jobs").put(b"later", priority=1)
            await tx.commit()
    assert [message.body for message in await jobs.peek()] == ([b"old"] if concerned else [b"new", b"later"])


async def test_messages_of_a_commit_that_lost_a_race_are_redelivered_at_once(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, waiting = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(3600))), session.queue("waiting")
    await jobs.put(b"withdraw the order")
    order = await waiting.put(b"order")
    async with session.transaction() as tx, other.transaction() as other_tx:
        assert await tx.take(jobs, timeout=30) is not None
        assert await tx.cancel(waiting, id=order)
        assert await other_tx.take(other.queue("waiting"), timeout=20) is not None
        with pytest.raises(zq.ConflictError):
            await tx.commit()
    async with session.transaction() as tx:
        redelivered = await tx.take(jobs, timeout=30)
        assert redelivered is not None
        assert redelivered.attempt == 2
        assert await tx.cancel(waiting, id=order) is NOT_FOUND


async def test_a_transaction_sees_its_own_cancellations_and_updates(
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("jobs")
    first, second, third = await jobs.put_many([b"1", b"2", b"3"])
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        assert await tx.cancel(jobs, id=first) is HELD, "this transaction has taken it"
        assert await tx.update(jobs, b"new", id=second)
        assert await tx.update(jobs, b"newer", id=second)
        assert await tx.update(jobs, b"new", id=third)
        assert await tx.cancel(jobs, id=third)
        assert await tx.update(jobs, b"new", id=third) is NOT_FOUND
    assert [message.body for message in await jobs.peek()] == [b"newer"]


async def test_a_commit_cancels_the_holder_of_a_unique_key_and_reuses_the_key_in_a_full_queue(
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(max_size=1, history=zq.History()))
    first = await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        assert await tx.cancel(jobs, key="k")
        second = tx.put(jobs, b"2", key="k", unique=True)
    assert [message.id for message in await jobs.peek()] == [second]
    assert [(record.id, record.outcome.value) async for record in jobs.history()] == [(first, "cancelled")]


async def test_cancelling_in_a_missing_queue_finds_nothing_and_does_not_create_it(session: zq.QueueSession) -> None:
    assert await session.queue("nowhere").cancel(id="x") is NOT_FOUND
    assert not await session.queue("nowhere").exists()


@pytest.mark.parametrize("how", [{}, {"id": "a", "key": "b"}, {"id": ""}, {"key": 7}])
async def test_cancel_and_update_refuse_arguments_that_name_no_message(session: zq.QueueSession, how: Any) -> None:
    with pytest.raises(zq.InvalidOptionError):
        await session.queue("jobs").cancel(**how)


async def test_an_update_with_a_value_of_the_wrong_type_is_refused(session: zq.QueueSession) -> None:
    with pytest.raises(zq.PayloadError):
        await session.queue("jobs", int).update("x", id="a")  # type: ignore[arg-type]
