"""The rules of ``async for delivery in queue.consume()``."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ImplicitSettleWarning, InvalidNameError, TransactionClosedError
from aiozkqueue.testing import Opcode
from tests.integration.queue.conftest import Locks, Opener, eventually, no_locks, take_one

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    """A queue of three messages."""
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put_many([b"1", b"2", b"3"])
    return jobs


async def test_a_delivery_is_committed_when_the_loop_asks_for_the_next_one(jobs: zq.Queue[bytes], locks: Locks) -> None:
    values = []
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            values.append(delivery.value)
            delivery.put("results", delivery.value)
    assert values == [b"1", b"2", b"3"]
    assert (await jobs.size(), await locks()) == (0, [])


async def test_leaving_the_consumer_waits_for_the_commits_under_way(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, jobs: zq.Queue[bytes]
) -> None:
    worker = await open_session(zookeeper_proxy.hosts)
    zookeeper_proxy.delay(0.05)
    async with worker.queue("jobs").consume(until_idle=0, prefetch=8) as deliveries:
        async for _ in deliveries:
            pass
    assert await jobs.size() == 0


@pytest.mark.parametrize("prefetch", [1, 32])
async def test_break_under_async_with_always_rolls_the_delivery_back(
    prefetch: int, jobs: zq.Queue[bytes], locks: Locks
) -> None:
    async with jobs.consume(prefetch=prefetch) as deliveries:
        async for _ in deliveries:
            break
        assert len(await locks()) >= 1
    assert await locks() == []
    assert await jobs.size() == 3


async def test_an_exception_or_a_cancellation_rolls_the_delivery_back(jobs: zq.Queue[bytes], locks: Locks) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with jobs.consume() as deliveries:
            async for delivery in deliveries:
                delivery.put("results", b"never")
                raise KeyError("mine")
    assert (delivery.outcome, await locks()) == (zq.Outcome.ROLLED_BACK, [])
    started = asyncio.Event()

    async def work() -> None:
        async with jobs.consume() as deliveries:
            async for _ in deliveries:
                started.set()
                await asyncio.sleep(10)

    working = asyncio.create_task(work())
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await locks() == []
    assert await jobs.size() == 3


@pytest.mark.parametrize("until_idle", [None, 30])
async def test_a_loop_that_was_cancelled_while_it_waited_holds_no_message_and_can_continue(
    session: zq.QueueSession, until_idle: float | None, open_session: Opener
) -> None:
    deliveries = session.queue("jobs").consume(until_idle=until_idle)
    waiting = asyncio.create_task(anext(deliveries))
    other = await open_session()
    await other.queue("jobs").put(b"1")
    await waiting
    waiting = asyncio.create_task(anext(deliveries))
    await eventually(lambda: _is_empty(other.queue("jobs")))  # the loop has settled it and waits for the next one
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await other.queue("jobs").put(b"2")
    assert (await take_one(other)).value == b"2"
    await other.queue("jobs").put(b"3")
    assert (await anext(deliveries)).value == b"3"
    await deliveries.aclose()


async def _is_empty(queue: zq.Queue[bytes]) -> bool:
    return await queue.size() == 0


async def test_a_bare_loop_left_by_break_releases_its_messages_if_it_can_and_warns(
    jobs: zq.Queue[bytes], locks: Locks
) -> None:
    async def work() -> None:
        async for _ in jobs.consume():
            break

    with pytest.warns(ResourceWarning, match="async with queue"):
        await work()
        gc.collect()
    await no_locks(locks)
    assert await jobs.size() == 3


async def test_a_bare_loop_that_ends_normally_leaves_no_lock_and_does_not_warn(
    jobs: zq.Queue[bytes], locks: Locks
) -> None:
    values = [delivery.value async for delivery in jobs.consume(until_idle=0)]
    gc.collect()
    assert sorted(values) == [b"1", b"2", b"3"]
    assert (await jobs.size(), await locks()) == (0, [])


async def test_a_delivery_holds_no_reference_to_its_consumer(jobs: zq.Queue[bytes]) -> None:
    consumer = jobs.consume(settle="explicit", prefetch=1)
    delivery = await anext(consumer)
    gone = weakref.ref(consumer)
    await consumer.aclose()
    del consumer
    gc.collect()
    assert gone() is None
    await delivery.commit()
    assert await jobs.size() == 2


async def test_explicit_settling_never_settles_automatically(jobs: zq.Queue[bytes], locks: Locks) -> None:
    async with jobs.consume(settle="explicit", until_idle=0) as deliveries:
        held = [delivery async for delivery in deliveries]
    assert [delivery.outcome for delivery in held] == [zq.Outcome.OPEN] * 3
    assert len(await locks()) == 3
    await asyncio.gather(held[0].commit(), held[1].rollback(delay=0), held[2].reject("no"))
    assert [delivery.outcome for delivery in held] == [
        zq.Outcome.COMMITTED,
        zq.Outcome.ROLLED_BACK,
        zq.Outcome.COMMITTED,
    ]
    assert (await jobs.size(), await jobs.dead_letters.size(), await locks()) == (1, 1, [])


async def test_settling_a_delivery_too_late_in_another_task_raises_with_advice(
    jobs: zq.Queue[bytes],
) -> None:
    async with jobs.consume(until_idle=0) as deliveries:
        first = await anext(deliveries)
        await anext(deliveries)  # commits the first delivery
        with pytest.raises(TransactionClosedError, match="settle='explicit'"):
            await asyncio.create_task(first.commit())
        with pytest.raises(TransactionClosedError):
            first.put("results", b"late")


async def test_the_loop_does_not_settle_a_delivery_that_another_task_settled(jobs: zq.Queue[bytes]) -> None:
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            await asyncio.create_task(delivery.rollback(delay=60))
    assert (await jobs.stats()).delayed == 3


async def test_async_with_delivery_commits_on_success_and_rolls_back_on_an_exception(
    jobs: zq.Queue[bytes],
) -> None:
    outcomes = []
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            try:
                async with delivery:
                    delivery.put("results", delivery.value)
                    if delivery.value == b"2":
                        {2: None}[delivery.attempt]
            except KeyError:
                pass
            outcomes.append((delivery.value, delivery.attempt, delivery.outcome))
    assert sorted(outcomes, key=lambda outcome: outcome[:2]) == [
        (b"1", 1, zq.Outcome.COMMITTED),
        (b"2", 1, zq.Outcome.ROLLED_BACK),
        (b"2", 2, zq.Outcome.COMMITTED),
        (b"3", 1, zq.Outcome.COMMITTED),
    ]


async def test_retry_and_reject_raised_in_the_block_of_a_delivery_settle_it(jobs: zq.Queue[bytes]) -> None:
    errors: dict[bytes, Exception] = {b"1": zq.Retry(delay=60), b"2": zq.Reject("no such order"), b"3": zq.Retry()}
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            with pytest.raises((zq.Retry, zq.Reject)) if delivery.attempt == 1 else pytest.raises(KeyError):
                async with delivery:
                    if delivery.attempt > 1:  # the policy of the queue, which redelivers at once
                        await delivery.commit()
                        raise KeyError
                    raise errors[delivery.value]
    assert (await jobs.stats()).delayed == 1
    assert [(dead.value, dead.reason) for dead in await jobs.dead_letters.peek()] == [(b"2", "no such order")]
    assert [message.value for message in await jobs.peek()] == [b"1"]


async def test_deliveries_that_explicit_loops_leave_unsettled_are_counted_when_the_session_closes(
    zookeeper: str, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[zq.Delivery[bytes]] = []
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        jobs, others = session.queue("jobs"), session.queue("others")
        await jobs.put_many([str(number).encode() for number in range(200)])
        await others.put_many([b"1", b"2"])
        async with jobs.consume(settle="explicit", until_idle=0) as deliveries:
            held += [delivery async for delivery in deliveries]
        for delivery in held[3:]:  # after the loop
            await delivery.commit()
        async with others.consume(settle="explicit") as deliveries:
            async for delivery in deliveries:
                if delivery.value == b"2":
                    break
                await delivery.commit()
        assert not caplog.records
    lines = [record.getMessage() for record in caplog.records]
    unsettled = 'unsettled deliveries of loops with settle="explicit"'
    assert [line.partition(";")[0] for line in lines] == [
        f"queue jobs: {unsettled}: 3",
        f"queue others: {unsettled}: 1",
    ]
    assert all(line.endswith("call commit(), rollback() or reject() of each delivery") for line in lines)


async def test_a_session_whose_loops_have_settled_everything_closes_silently(
    zookeeper: str, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])
        async with jobs.consume(settle="explicit", until_idle=0) as deliveries:
            async for delivery in deliveries:
                await (delivery.rollback(delay=60) if delivery.value == b"2" else delivery.commit())
    assert not caplog.records


async def test_implicit_commits_that_fail_are_reported_once_for_a_queue_and_each_is_logged(
    jobs: zq.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A text with the id of each message is shown for each, and Python keeps every text that it has shown."""
    released: list[str] = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        async with jobs.consume(prefetch=1) as deliveries:
            async for delivery in deliveries:
                if len(released) == 3:
                    break
                await jobs.admin.release_claims()
                released.append(delivery.id)
    assert [warning.category for warning in shown] == [ImplicitSettleWarning]
    assert "a delivery of queue 'jobs' could not be committed" in str(shown[0].message)
    logged = [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.session.failures"]
    assert len(logged) == 3
    assert all(
        f"queue jobs: message {message} is not committed: " in line
        for message, line in zip(released, logged, strict=True)
    )


async def test_an_implicit_commit_of_a_lost_claim_warns_and_the_loop_continues(
    jobs: zq.Queue[bytes], expire: Callable[[zq.QueueSession], Awaitable[None]], session: zq.QueueSession
) -> None:
    values = []
    with pytest.warns(ImplicitSettleWarning) as shown:
        async with jobs.consume(prefetch=1) as deliveries:
            async for delivery in deliveries:
                values.append(delivery.value)
                if len(values) == 1:
                    await jobs.admin.release_claims()
                elif len(values) == 2:
                    await expire(session)
                    assert delivery.lost
                elif len(values) == 5:
                    deliveries.stop()
    assert [warning.category for warning in shown] == [ImplicitSettleWarning] * 2
    assert set(values) == {b"1", b"2", b"3"}
    assert await jobs.size() == 0, "only these two were redelivered, each once"


async def test_an_explicit_commit_always_raises(jobs: zq.Queue[bytes], locks: Locks) -> None:
    async with jobs.consume(prefetch=1) as deliveries:
        async for delivery in deliveries:
            await jobs.admin.release_claims()
            with pytest.raises(zq.ClaimLostError):
                await delivery.commit()
            break
    assert await locks() == []


async def test_put_raises_for_errors_that_can_be_checked_locally(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    numbers = session.queue("numbers", int)
    async with jobs.consume() as deliveries:
        async for delivery in deliveries:
            with pytest.raises(zq.PayloadError):
                delivery.put(numbers, "one")  # type: ignore[misc]
            with pytest.raises(zq.MessageTooLargeError):
                delivery.put("results", bytes(1024 * 1024))
            with pytest.raises(InvalidNameError):
                delivery.put("no/name", b"")
            break
    assert await jobs.size() == 3


async def test_a_slow_loop_claims_few_messages_ahead(jobs: zq.Queue[bytes], locks: Locks) -> None:
    await jobs.put_many([b"more"] * 50)
    most = 0
    finished = set[str]()
    async with jobs.consume(prefetch=32) as deliveries:
        async for delivery in deliveries:
            await asyncio.sleep(0.15)
            most = max(most, len(set(await locks()) - finished))
            # Its lock no longer counts, although its commit may still be in progress.
            finished.add(f"lock-{delivery.id}")
            if len(finished) == 4:
                break
    # The current message and the next one, because no message was finished in the last 100 ms.
    assert most <= 2
    assert await locks() == []


@pytest.mark.parametrize("until_idle", [None, 0])
async def test_a_fast_loop_never_holds_more_than_its_prefetch(
    session: zq.QueueSession, locks: Locks, until_idle: float | None
) -> None:
    jobs = session.queue("many")
    await jobs.put_many([b""] * 300)
    most = 0
    delivered = 0
    async with jobs.consume(prefetch=4, until_idle=until_idle) as deliveries:
        async for _ in deliveries:
            delivered += 1
            if delivered == 300:
                deliveries.stop()
            if delivered % 20 == 0:
                most = max(most, len(await locks("many")))
    assert delivered == 300
    # At most 4 claimed ahead, 1 current message, and 4 whose commit is in progress.
    assert most <= 9


async def test_a_message_claimed_ahead_and_never_handled_counts_no_attempt(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await jobs.put_many([b"%d" % number for number in range(60)])
    handled: list[str] = []
    async with jobs.consume(prefetch=32) as deliveries:
        async for delivery in deliveries:
            handled.append(delivery.id)
            if len(handled) == 30:
                break
    await no_locks(locks)
    attempts = {message.id: message.attempt for message in await jobs.peek(100)}
    assert len(attempts) == 31
    # Peek shows the attempts so far: only the delivered message has one.
    assert {identity: attempt for identity, attempt in attempts.items() if attempt} == {handled[-1]: 1}


async def test_stop_ends_the_loop_when_it_asks_for_the_next_message(jobs: zq.Queue[bytes], locks: Locks) -> None:
    values = []
    async with jobs.consume() as deliveries:
        async for delivery in deliveries:
            values.append(delivery.value)
            deliveries.stop()
            deliveries.stop()
    assert values == [b"1"]
    assert (await jobs.size(), await locks()) == (2, [])


async def test_stop_wakes_a_loop_that_waits(session: zq.QueueSession) -> None:
    consumer = session.queue("jobs").consume()

    async def work() -> int:
        return len([1 async for _ in consumer])

    working = asyncio.create_task(work())
    await asyncio.sleep(0.2)
    consumer.stop()
    assert await asyncio.wait_for(working, 30) == 0
    await consumer.aclose()
    await consumer.aclose()
    consumer.stop()


async def test_an_idle_consumer_receives_a_new_message_at_once(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    waits = list[float]()
    async with session.queue("jobs").consume() as deliveries, asyncio.timeout(60):
        while min(waits, default=1) >= 0.2:  # repeated, since the machine may stall
            coming = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(0.3)
            assert not coming.done()
            start = asyncio.get_running_loop().time()
            await other.queue("jobs").put(b"1")
            await asyncio.wait_for(coming, 30)
            waits.append(asyncio.get_running_loop().time() - start)


@pytest.mark.parametrize(
    "policy", [zq.AtLeastOnce(backoff=zq.Fixed(0)), zq.ConsumeTimes(9, backoff=zq.Fixed(0))], ids=["plain", "counting"]
)
async def test_a_consumer_continues_in_a_new_session_automatically(
    policy: zq.Policy,
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
) -> None:
    worker = await open_session(zookeeper_proxy.hosts)
    results = session.queue("results")
    jobs = session.queue("jobs", policy=policy)
    await jobs.put_many([b"%d" % number for number in range(40)])
    delivered = 0

    async def work() -> None:
        nonlocal delivered
        async with worker.queue("jobs").consume(prefetch=4) as deliveries:
            async for delivery in deliveries:
                delivered += 1
                try:
                    async with delivery:
                        delivery.put("results", delivery.value)
                        await asyncio.sleep(0.01)
                except zq.NotCommittedError:
                    pass

    working = asyncio.create_task(work())
    for number in range(6):
        await asyncio.sleep(0.06)
        if number % 2:
            zookeeper_proxy.reset_connections()
        else:
            await expire(worker)

    async def done() -> bool:
        return working.done() or await jobs.size() == 0

    await eventually(done, 60)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert sorted(message.value for message in await results.peek(100)) == sorted(b"%d" % n for n in range(40))


async def test_a_consumer_can_be_entered_and_left_in_different_tasks(jobs: zq.Queue[bytes], locks: Locks) -> None:
    consumer = jobs.consume()
    deliveries = await asyncio.create_task(consumer.__aenter__())

    async def take(deliveries: AsyncIterator[zq.Delivery[bytes]]) -> zq.Delivery[bytes]:
        return await anext(deliveries)

    delivery = await asyncio.create_task(take(deliveries))
    await asyncio.create_task(consumer.__aexit__(None, None, None))
    assert delivery.outcome is zq.Outcome.ROLLED_BACK
    assert await locks() == []


async def test_a_second_task_that_asks_the_same_loop_for_a_message_is_refused(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs, handled = session.queue("jobs"), list[bytes]()
    async with jobs.consume() as deliveries:

        async def work() -> None:
            async for delivery in deliveries:
                handled.append(delivery.value)
                if len(handled) == 2:
                    deliveries.stop()

        first = asyncio.create_task(work())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="of queue 'jobs' already waits for a message in another task"):
            await work()
        await jobs.put_many([b"1", b"2"])
        await first
    assert sorted(handled) == [b"1", b"2"]
    assert (await jobs.size(), await locks()) == (0, [])


async def test_several_tasks_may_share_a_loop_that_settles_explicitly(session: zq.QueueSession, locks: Locks) -> None:
    jobs, handled = session.queue("jobs"), list[bytes]()
    async with jobs.consume(settle="explicit") as deliveries:

        async def work() -> None:
            async for delivery in deliveries:
                async with delivery:
                    handled.append(delivery.value)
                if len(handled) == 4:
                    deliveries.stop()

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await jobs.put_many([b"1", b"2", b"3", b"4"])
        await asyncio.gather(*tasks)
    assert sorted(handled) == [b"1", b"2", b"3", b"4"]
    assert (await jobs.size(), await locks()) == (0, [])


async def test_lost_is_true_after_the_claim_is_lost(
    session: zq.QueueSession, jobs: zq.Queue[bytes], expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    async with jobs.consume(settle="explicit") as deliveries:
        delivery = await anext(deliveries)
        assert not delivery.lost
        await expire(session)
        assert delivery.lost
        with pytest.raises(zq.SessionExpiredError):
            await delivery.commit()


async def test_a_closed_session_ends_the_loop_with_its_error(zookeeper: str, queue_root: str) -> None:
    async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as closing:
        waiting = asyncio.ensure_future(anext(closing.queue("jobs").consume()))
        await asyncio.sleep(0.2)
    with pytest.raises(zq.SessionClosedError):
        await waiting


async def test_a_message_is_delivered_to_one_of_many_consumers(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("many").put_many([b"%d" % number for number in range(200)])

    async def work(worker: zq.QueueSession) -> list[bytes]:
        async with worker.queue("many").consume(until_idle=0) as deliveries:
            return [delivery.value async for delivery in deliveries]

    shares = await asyncio.gather(work(session), work(other), work(session), work(other))
    assert sorted(value for share in shares for value in share) == sorted(b"%d" % number for number in range(200))


async def test_a_delivery_has_all_fields_of_its_message(session: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"1", key="k", headers={"trace": "é"})
    async with session.queue("jobs").consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            assert (delivery.key, delivery.headers, delivery.priority, delivery.group) == ("k", {"trace": "é"}, 0, None)
            assert (delivery.body, delivery.attempt, delivery.queue) == (b"1", 1, "jobs")
            assert delivery.enqueued_at.tzinfo is not None


async def test_a_claimed_message_is_not_taken_by_another_session(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs").put(b"1")
    async with session.queue("jobs").consume() as deliveries:
        held = await anext(deliveries)
        async with other.transaction() as tx:
            assert await tx.take(other.queue("jobs"), timeout=0.3) is None
        await held.commit()
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs")) is None
    await other.queue("jobs").put(b"2")
    assert (await take_one(session)).value == b"2"


async def test_a_loop_survives_the_end_of_its_session_during_a_delivery(
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0))).put(b"1")
    worker = await open_session(zookeeper_proxy.hosts)
    counting = zookeeper_proxy.hold_request(
        lambda request: request.opcode == Opcode.MULTI and b"/meta/" in request.body
    )
    async with worker.queue("jobs").consume() as deliveries:
        coming = asyncio.ensure_future(anext(deliveries))
        await counting.struck()
        await expire(worker)
        counting.release()
        delivery = await asyncio.wait_for(coming, 30)
        assert (delivery.value, delivery.attempt) == (b"1", 1)  # the count was never applied
        await delivery.commit()
    assert await session.queue("jobs").size() == 0
