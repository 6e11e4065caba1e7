"""Batch handlers: several messages per call, one commit for all of them, and failures of single messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import TransactionClosedError
from aiozkqueue.testing import assert_dead_lettered, assert_empty
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch
    from aiozkqueue.testing import QueueServer, TestClock
    from tests.integration.queue.conftest import Locks

    Expire = Callable[[zq.QueueSession], Awaitable[None]]


def values(batch: Batch[bytes]) -> list[bytes]:
    return [message.value for message in batch]


async def ignore(batch: Batch[bytes]) -> None: ...


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
async def test_a_handler_gets_batches_up_to_the_maximum_and_one_commit_removes_each(
    session: zq.QueueSession, other: zq.QueueSession, bundle: int | None, locks: Locks
) -> None:
    orders = session.queue("orders", int)
    await orders.configure(zq.QueueConfig(bundle=bundle, history=zq.History()))
    await orders.put_many(range(250))
    handled: list[list[int]] = []

    async def store(batch: Batch[int]) -> None:
        numbers = [message.value for message in batch]
        handled.append(numbers)
        batch.put("sums", str(sum(numbers)).encode())
        assert await other.queue("orders").size() >= len(batch)

    async with session.listener(orders, store, batch=100, batch_wait=0.5):
        await assert_empty(orders, timeout=60)
    assert sorted(number for numbers in handled for number in numbers) == list(range(250))
    assert max(map(len, handled)) <= 100
    assert len(handled) < 20
    sums = [int(message.value) for message in await session.queue("sums").peek(100)]
    assert sorted(sums) == sorted(map(sum, handled))
    assert len([record async for record in orders.history()]) == 250
    assert await locks("orders") == []


async def test_a_batch_is_handled_when_its_wait_ends_and_a_full_one_at_once(
    queue_server: QueueServer, queue_clock: TestClock
) -> None:
    batches: asyncio.Queue[list[bytes]] = asyncio.Queue()

    async def store(batch: Batch[bytes]) -> None:
        batches.put_nowait(values(batch))

    async with queue_server.connect() as session, asyncio.timeout(60):
        jobs = session.queue("jobs")
        async with session.listener(jobs, store, batch=3, batch_wait=60):
            await jobs.put_many([b"1", b"2", b"3"])
            assert await batches.get() == [b"1", b"2", b"3"]
            await jobs.put_many([b"4", b"5"])

            async def both_held() -> bool:
                return await jobs.claimed() == 2

            await eventually(both_held)
            assert batches.empty()
            queue_clock.advance(61)
            assert await batches.get() == [b"4", b"5"]


async def test_a_handler_fails_single_messages_and_the_rest_is_committed(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    attempts: dict[bytes, list[int]] = {}

    async def store(batch: Batch[bytes]) -> None:
        for message in batch:
            attempts.setdefault(message.value, []).append(message.attempt)
            if message.value == b"reject":
                batch.fail(message, zq.Reject("no such order"))
            elif message.value == b"broken":
                batch.fail(message, ValueError("not a number"))
            elif message.value == b"retry" and message.attempt == 1:
                batch.fail(message, zq.Retry(delay=0.01))
            else:
                batch.put("done", message.value)

    await jobs.put_many([b"a", b"reject", b"broken", b"retry", b"b"])
    with caplog.at_level(logging.WARNING):
        async with session.listener(jobs, store, batch=5, batch_wait=5) as listener:
            await assert_dead_lettered(jobs, b"reject", reason="no such order", timeout=60)
            await assert_dead_lettered(jobs, b"broken", reason="ValueError: not a number", timeout=60)
            await assert_empty(jobs, timeout=60)
    assert attempts == {b"a": [1], b"b": [1], b"reject": [1], b"broken": [1, 2], b"retry": [1, 2]}
    assert sorted(message.value for message in await session.queue("done").peek()) == [b"a", b"b", b"retry"]
    assert "again at once" in caplog.text
    assert "3 messages handled, 4 failed" in listener._summary()
    assert await locks() == []


async def test_a_handler_that_raises_fails_all_messages_and_drops_the_puts(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    sizes: list[int] = []

    async def store(batch: Batch[bytes]) -> None:
        sizes.append(len(batch))
        batch.put("done", b"x")
        if batch[0].attempt == 1:
            raise OSError("the database is down")
        raise zq.Reject("all of them")

    await jobs.put_many([b"1", b"2", b"3"])
    async with session.listener(jobs, store, batch=3, batch_wait=5):
        for body in (b"1", b"2", b"3"):
            letter = await assert_dead_lettered(jobs, body, reason="all of them", timeout=60)
            assert letter.attempts == 2
    assert sizes[0] == 3
    assert await session.queue("done").size() == 0


async def test_the_puts_of_a_batch_whose_messages_all_fail_are_dropped(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")

    async def store(batch: Batch[bytes]) -> None:
        batch.put("done", b"x")
        for message in batch:
            batch.fail(message, zq.Reject("no"))

    await jobs.put_many([b"1", b"2"])
    async with session.listener(jobs, store, batch=2, batch_wait=5):
        await assert_dead_lettered(jobs, b"1", timeout=60)
        await assert_dead_lettered(jobs, b"2", timeout=60)
    assert await session.queue("done").size() == 0


async def test_a_retry_of_a_batch_follows_the_schedule_of_each_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    given_up: list[bytes] = []

    async def last_act(delivery: zq.Delivery[Any]) -> None:
        given_up.append(delivery.body)
        delivery.put("letters", delivery.body)

    async def store(batch: Batch[bytes]) -> None:
        raise zq.Retry(schedule=[0.0] * len(batch), exhausted=last_act)

    await jobs.put_many([b"1", b"2"])
    async with session.listener(jobs, store, batch=2, batch_wait=0.2):
        await assert_dead_lettered(jobs, b"1", timeout=60)
        await assert_dead_lettered(jobs, b"2", timeout=60)
    assert sorted(given_up) == [b"1", b"2"]
    assert sorted(message.value for message in await session.queue("letters").peek()) == [b"1", b"2"]


async def test_a_batch_that_takes_too_long_is_cancelled_and_redelivered(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    cancelled: list[int] = []

    async def slow(batch: Batch[bytes]) -> None:
        if batch[0].attempt == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(len(batch))
                raise

    await jobs.put_many([b"1", b"2"])
    async with session.listener(jobs, slow, batch=2, batch_wait=5, timeout=0.2):
        await assert_empty(jobs, timeout=60)
    assert cancelled == [2]


async def test_a_stopped_listener_finishes_its_batch_and_releases_the_one_that_it_collects(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2))
    begun, go = asyncio.Event(), asyncio.Event()

    async def store(batch: Batch[bytes]) -> None:
        begun.set()
        await go.wait()
        batch.put("done", b"x")

    await jobs.put_many([b"1", b"2"])
    async with asyncio.timeout(60):
        async with session.listener(jobs, store, batch=2, batch_wait=3600, concurrency=2) as listener:
            await begun.wait()
            await jobs.put(b"3")

            async def collected() -> bool:
                return await jobs.claimed() == 3

            await eventually(collected)
            listener.stop()
            go.set()
    assert [message.value for message in await jobs.peek()] == [b"3"]
    assert (await jobs.peek())[0].attempt == 0  # it was not passed to a handler
    assert await session.queue("done").size() == 1
    assert await locks() == []


async def test_an_aborted_listener_releases_its_batches_at_once(session: zq.QueueSession, locks: Locks) -> None:
    jobs = session.queue("jobs")
    begun = asyncio.Event()

    async def store(batch: Batch[bytes]) -> None:
        batch.fail(batch[0], zq.Reject("never settled"))
        begun.set()
        await asyncio.sleep(3600)

    await jobs.put_many([b"1", b"2", b"3"])
    listener = session.listener(jobs, store, batch=3, batch_wait=5)
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(60):
        await begun.wait()
        listener.abort()
        await running
    assert await jobs.size() == 3
    assert await jobs.dead_letters.size() == 0
    assert await locks() == []


@pytest.mark.parametrize("at", ["collecting", "handling"])
async def test_batches_continue_after_their_session_has_ended(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire, at: str
) -> None:
    jobs = session.queue("jobs")
    handled: list[bytes] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def store(batch: Batch[bytes]) -> None:
        begun.set()
        if at == "handling":
            await go.wait()
        handled.extend(values(batch))
        batch.put("done", b"%d" % len(batch))

    async with session.listener(jobs, store, batch=2, batch_wait=3600):
        await jobs.put(b"1")
        if at == "handling":
            await jobs.put(b"2")
            await asyncio.wait_for(begun.wait(), 30)
        else:

            async def held() -> bool:
                return await jobs.claimed() == 1

            await eventually(held)
        await expire(session)
        if at == "collecting":
            await other.queue("jobs").put(b"2")
        go.set()
        await assert_empty(other.queue("jobs"), timeout=60)
    assert sorted(set(handled)) == [b"1", b"2"]
    assert [message.value for message in await other.queue("done").peek()] == [b"2"]  # one commit for both


async def test_a_batch_with_a_lost_claim_commits_nothing(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs")
    calls = 0

    async def store(batch: Batch[bytes]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await other.queue("jobs").admin.release_claims()
            async with other.transaction() as tx:
                taken = await tx.take(other.queue("jobs"), timeout=30)
                assert taken is not None
                assert taken.id in {message.id for message in batch}
        batch.put("done", b"%d" % len(batch))

    await jobs.put_many([b"1", b"2", b"3"])
    with caplog.at_level(logging.WARNING):
        async with session.listener(jobs, store, batch=3, batch_wait=0.5):
            await assert_empty(jobs, timeout=60)
    assert "a batch of 3 messages is not committed" in caplog.text
    assert [message.value for message in await session.queue("done").peek()] == [b"2"]


async def test_undecodable_messages_do_not_reach_the_handler_of_a_batch(session: zq.QueueSession) -> None:
    handled: list[int] = []

    async def store(batch: Batch[int]) -> None:
        handled.extend(message.value for message in batch)

    await session.queue("numbers").put_many([b"1", b"{", b"3"])
    numbers = session.queue("numbers", int)
    async with session.listener(numbers, store, batch=3, batch_wait=0.2):
        await assert_empty(numbers, timeout=60)
    assert handled == [1, 3]
    assert await numbers.dead_letters.size() == 1


async def test_a_batch_holds_one_message_of_a_group(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    handled: list[list[bytes]] = []

    async def store(batch: Batch[bytes]) -> None:
        handled.append(values(batch))

    for number in range(3):
        await jobs.put(b"a%d" % number, group="a")
        await jobs.put(b"b%d" % number, group="b")
    async with session.listener(jobs, store, batch=6, batch_wait=0.2):
        await assert_empty(jobs, timeout=60)
    for batch in handled:
        assert len({body[:1] for body in batch}) == len(batch)
    for group in (b"a", b"b"):
        order = [body for batch in handled for body in batch if body[:1] == group]
        assert order == [group + b"%d" % number for number in range(3)]


async def test_a_batch_is_no_larger_than_one_request(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History(payload=True)))
    sizes: list[int] = []

    async def store(batch: Batch[bytes]) -> None:
        sizes.append(len(batch))

    for _ in range(6):
        await jobs.put_many([b"x" * 300_000])
    async with session.listener(jobs, store, batch=6, batch_wait=1):
        await assert_empty(jobs, timeout=60)
    assert max(sizes) == 1
    assert sum(sizes) == 6


async def test_an_application_declares_a_handler_of_batches(queue_session: zq.QueueSession) -> None:
    app = zq.App("127.0.0.1:1")
    orders = app.queue("orders", int)
    handled: list[int] = []

    @app.listener(orders, batch=10, batch_wait=0.05, concurrency=2)
    async def store(batch: Batch[int]) -> None:
        handled.extend(message.value for message in batch)

    async with app.serve(queue_session):
        await orders.put_many(range(25))
        await assert_empty(orders, timeout=60)
    assert sorted(handled) == list(range(25))


async def test_mistakes_with_batches_are_refused(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    failed: list[str] = []

    async def around(_: zq.Delivery[Any], call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()

    async def nothing() -> None: ...

    for options, remedy in (
        ({"batch": 0}, "batch=0"),
        ({"batch": 1001}, "one commit removes up to 1000 messages"),
        ({"batch": 2, "batch_wait": -1}, "batch_wait"),
        ({"batch": 2, "middleware": [around]}, "call it in the handler"),
        ({"batch": 2, "concurency": 2}, "no option 'concurency'"),
    ):
        bad_options: Any = options
        with pytest.raises(zq.InvalidOptionError, match=remedy):
            session.listener(jobs, ignore, **bad_options)
    with pytest.raises(zq.InvalidOptionError, match="one argument, the batch"):
        session.listener(jobs, cast("Any", nothing), batch=2)

    async def store(batch: Batch[bytes]) -> None:
        other = (await session.queue("others").peek())[0]
        with pytest.raises(zq.InvalidOptionError, match="is not in this batch"):
            batch.fail(other, zq.Retry())
        with pytest.raises(zq.InvalidOptionError, match="fail takes an exception"):
            batch.fail(batch[0], cast("Exception", "bad"))
        failed.append(repr(batch))
        kept.append(batch)

    kept: list[Batch[bytes]] = []
    await session.queue("others").put(b"1")
    await jobs.put(b"1")
    async with session.listener(jobs, store, batch=2, batch_wait=0.1):
        await assert_empty(jobs, timeout=60)
    assert failed == ["<Batch of 1 messages of 'jobs'>"]
    with pytest.raises(TransactionClosedError, match="when its handler returns"):
        kept[0].fail(kept[0][0], zq.Retry())
