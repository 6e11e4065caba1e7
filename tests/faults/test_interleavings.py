"""Unlikely interleavings: two concurrent actions that take effect in the wrong order."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from itertools import count
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.testing import Opcode, TestClock
from tests.faults.account import ATTEMPT, CLAIM, SETTLE
from tests.faults.stepping import How, Moment, Suspensions, run_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account


@pytest.fixture
async def session(proxy: ZooKeeperProxy, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as opened, asyncio.timeout(60):
        yield opened


@pytest.fixture
async def other(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(quick, root=root, session_timeout=20) as opened:
        yield opened


async def test_a_handler_aborted_during_its_attempt_record_does_not_affect_the_next_holder(
    session: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account
) -> None:
    """Its claim is released once: a second release would delete the next holder's lock."""
    policy = zq.ConsumeTimes(9)
    await other.queue("jobs", policy=policy).put(b"a")

    async def handle(_: zq.Delivery[bytes]) -> None:
        pytest.fail("it got a message after it was aborted")

    fault = proxy.hold_request(ATTEMPT)
    listener = session.listener(session.queue("jobs"), handle)
    running = asyncio.ensure_future(listener.run())
    await fault.struck()
    async with other.transaction() as tx:
        taking = asyncio.ensure_future(tx.take(other.queue("jobs"), timeout=None))
        listener.abort()
        await asyncio.sleep(0.05)
        fault.release()
        await running
        message = await taking
        assert message is not None
        assert message.attempt == 1, "a message that was not delivered uses no attempt"
        await asyncio.sleep(0.1)
        assert list((await account.view.ephemerals(account.path("jobs", "locks"))).values()) == [
            other._runtime.zookeeper.session_id
        ]
    assert tx.outcome is zq.Outcome.COMMITTED
    assert await account.locks("jobs") == []


async def test_an_attempt_that_is_counted_late_is_undone_when_the_claim_is_released(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(9))
    await jobs.put(b"a")
    fault = proxy.hold_reply(ATTEMPT)
    async with session.transaction(autocommit=False) as tx:
        taking = asyncio.ensure_future(tx.take(jobs))
        await fault.struck()
        taking.cancel()
        await asyncio.sleep(0.05)
        fault.release()
        with pytest.raises(asyncio.CancelledError):
            await taking
    await account.unlocked("jobs")
    assert [json.loads(record)["attempts"] for record in await account.attempts("jobs")] == [0]


@pytest.mark.parametrize("how", ["stop", "abort", "cancel"])
async def test_a_listener_that_ends_while_its_claim_is_in_flight_leaves_no_lock(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, how: str
) -> None:
    async def handle(_: zq.Delivery[bytes]) -> None:
        pytest.fail("a stopped listener delivers nothing")

    await session.queue("jobs").put(b"a")
    fault = proxy.hold_reply(CLAIM)
    listener = session.listener(session.queue("jobs"), handle)
    running = asyncio.ensure_future(listener.run())
    await fault.struck()
    ways_to_end: dict[str, Callable[[], object]] = {
        "stop": listener.stop,
        "abort": listener.abort,
        "cancel": running.cancel,
    }
    ways_to_end[how]()
    await asyncio.wait([running], timeout=18)  # less than a session timeout
    assert running.done()
    assert len(await account.locks("jobs")) == 1
    fault.release()
    await account.unlocked("jobs")


async def test_a_loop_closed_while_its_claim_is_in_flight_leaves_no_lock(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account
) -> None:
    await session.queue("jobs").put_many([b"a", b"b"])
    fault = proxy.hold_reply(CLAIM)
    deliveries = session.queue("jobs").consume()
    waiting = asyncio.ensure_future(anext(deliveries))
    await fault.struck()
    waiting.cancel()
    await asyncio.wait([waiting])
    await deliveries.aclose()
    fault.release()
    await account.unlocked("jobs")


@pytest.mark.parametrize("moment", ["in hand", "claim in flight"])
async def test_an_abandoned_loop_leaves_no_lock(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, moment: str
) -> None:
    await session.queue("jobs").put_many([b"a", b"b", b"c"])
    deliveries = session.queue("jobs").consume()
    if moment == "in hand":
        for _ in range(2):
            await anext(deliveries)
    else:
        fault = proxy.hold_reply(CLAIM)
        waiting = asyncio.ensure_future(anext(deliveries))
        await fault.struck()
        waiting.cancel()
        await asyncio.wait([waiting])
        del waiting
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del deliveries
        gc.collect()
    # A loop that was cancelled while it waited holds nothing, so its end is not worth a warning.
    assert [warning.category for warning in caught] == ([ResourceWarning] if moment == "in hand" else [])
    proxy.heal()
    await account.unlocked("jobs")
    assert await account.bodies("jobs") == ([b"b", b"c"] if moment == "in hand" else [b"a", b"b", b"c"])


async def test_a_take_that_times_out_as_its_reply_arrives_returns_and_holds_nothing(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    clock = TestClock()
    async with zq.connect(proxy.hosts, root=root, clock=clock, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        fault = proxy.hold_reply(CLAIM)
        async with session.transaction(autocommit=False) as tx:
            taking = asyncio.ensure_future(tx.take(jobs, timeout=600))
            await fault.struck()
            clock.advance(600)
            assert await taking is None
            fault.release()
            await account.unlocked("jobs")
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            await tx.commit()


async def test_two_transactions_that_use_up_the_lock_budget_do_not_deadlock(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.queue.state.claim.EPHEMERAL_CAP", 500)
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(20)])
    async with (
        asyncio.timeout(30),
        session.transaction(autocommit=False) as first,
        session.transaction(autocommit=False) as second,
    ):
        held = len(await first.take_many(jobs, 3)) + len(await second.take_many(jobs, 6))
        assert 3 < held < 9
        assert await second.take_many(jobs, 3) == []
        waiting = asyncio.ensure_future(second.take_many(jobs, 3, timeout=None))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.rollback(delay=0)
        assert await waiting
        await second.rollback(delay=0)


async def test_closing_with_pending_releases_while_disconnected_ends_in_time_and_leaves_no_lock(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    loop = asyncio.get_running_loop()
    async with zq.connect(proxy.hosts, root=root, session_timeout=2) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        async with session.transaction(autocommit=False) as tx:
            await tx.take(jobs)
            proxy.refuse()
            proxy.reset_connections()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await tx.rollback(delay=0)
        began = loop.time()
    assert loop.time() - began < 30, "it would wait forever"
    await account.unlocked("jobs")
    assert await account.bodies("jobs") == [b"a", b"b"]


async def test_closing_waits_for_a_commit_whose_caller_was_cancelled(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        tx = await session.transaction(autocommit=False).__aenter__()
        await tx.take(jobs)
        fault = proxy.hold_reply(SETTLE)
        with pytest.raises(zq.OutcomeUnknownError):
            await tx.commit(timeout=0.05)
        asyncio.get_running_loop().call_later(0.2, fault.release)
    assert tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []


async def test_a_message_put_while_an_idle_consumer_lists_is_found(
    session: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy
) -> None:
    jobs = session.queue("jobs")
    await other.queue("jobs").exists()
    for nth in range(1, 7):
        fault = proxy.hold_reply(Opcode.GET_CHILDREN, nth=nth)
        async with session.transaction() as tx:
            taking = asyncio.ensure_future(tx.take(jobs, timeout=None))
            done, _ = await asyncio.wait(
                {taking, asyncio.ensure_future(fault.struck(0.3))}, return_when="FIRST_COMPLETED"
            )
            assert taking not in done
            await other.queue("jobs").put(b"%d" % nth)
            fault.release()
            async with asyncio.timeout(30):
                assert await taking is not None


async def test_a_take_without_waiting_is_answered_while_another_take_waits(
    session: zq.QueueSession, proxy: ZooKeeperProxy
) -> None:
    jobs = session.queue("jobs")
    async with session.transaction() as patient, session.transaction() as impatient:
        waiting = asyncio.ensure_future(patient.take(jobs, timeout=None))
        await asyncio.sleep(0.2)
        for nth in (1, 2, 3):
            fault = proxy.hold_reply(Opcode.GET_CHILDREN, nth=nth)
            async with asyncio.timeout(30):
                asking = asyncio.ensure_future(impatient.take(jobs))
                await asyncio.wait({asking, asyncio.ensure_future(fault.struck())}, return_when="FIRST_COMPLETED")
                second_take = asyncio.ensure_future(impatient.take(jobs))
                await asyncio.sleep(0.02)
                fault.release()
                assert await asking is None
                assert await second_take is None
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_backoff_set_by_another_session_ends_in_time_for_a_disconnected_consumer(
    session: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy
) -> None:
    await other.queue("jobs").put(b"a")
    async with other.transaction(autocommit=False) as tx:
        assert await tx.take(other.queue("jobs")) is not None
        async with session.transaction() as idle:
            taking = asyncio.ensure_future(idle.take(session.queue("jobs"), timeout=None))
            await asyncio.sleep(0.3)
            proxy.refuse()
            proxy.reset_connections()
            await tx.rollback(delay=0.5)
            await proxy.listen()
            async with asyncio.timeout(30):
                assert await taking is not None


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
async def test_connecting_that_is_cancelled_at_any_suspension_leaves_nothing_behind(
    quick: str, root: str, account: Account, moment: Moment
) -> None:
    async def connect() -> None:
        async with zq.connect(quick, root=root, session_timeout=20) as session:
            await session.queue("jobs").put(b"a")

    suspensions = Suspensions()
    suspensions.install()
    before = asyncio.all_tasks()
    for chosen in count(1):
        reached, _ = await run_cancelled(suspensions, chosen, moment, How.NATIVELY, connect, everywhere=True)
        async with asyncio.timeout(30):
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)
        if not reached:
            break
    assert await account.bodies("jobs")


async def test_consumers_recreate_a_deleted_queue_and_continue(
    session: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    async with jobs.consume(settle="explicit") as deliveries:
        await (await anext(deliveries)).commit()
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(0.3)
        await account.view.delete_at_once(account.path("jobs"))
        await other.queue("jobs").put(b"b")
        async with asyncio.timeout(30):
            delivery = await waiting
        assert delivery.body == b"b"
        await delivery.commit()
    assert len(await account.view.children(account.path("jobs", "consumers"))) == 1


class Event(BaseModel):
    """An event of a bus."""


@pytest.mark.parametrize("joins", [True, False], ids=["join", "leave"])
async def test_a_group_joins_and_leaves_although_an_earlier_read_is_answered_late(
    session: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, *, joins: bool
) -> None:
    """A read that another task of the session has sent shows the groups from before a change by another session."""
    bus, elsewhere = Bus(session, "orders", Event), Bus(other, "orders", Event)
    await elsewhere.join("billing")
    if joins:
        await elsewhere.join("audit")
    fault = proxy.hold_reply(lambda request: request.opcode == Opcode.GET_DATA and b"/.buses/" in request.body)
    reading = asyncio.ensure_future(bus.groups())
    await fault.struck()
    await (elsewhere.leave("audit") if joins else elsewhere.join("audit"))
    changing = asyncio.ensure_future(bus.join("audit") if joins else bus.leave("audit"))
    await asyncio.sleep(0.05)
    fault.release()
    await changing
    assert await elsewhere.groups() == (["billing", "audit"] if joins else ["billing"])
    assert "billing" in await reading
