"""Lost connections and sessions: callers get true outcomes, and everything else continues automatically."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from tests.faults.account import ATTEMPT, BACKOFF, PUT, REJECT, SETTLE, multi_of
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account


Blackout = Callable[[zq.QueueSession], AbstractAsyncContextManager[None]]


@pytest.fixture
def blackout(proxy: ZooKeeperProxy, account: Account, quick: str) -> Blackout:
    """Disconnects a consumer of ``jobs`` until the server has ended its session; afterwards it can reconnect."""

    @asynccontextmanager
    async def of(session: zq.QueueSession) -> AsyncIterator[None]:
        proxy.refuse()
        proxy.reset_connections()
        disposition = session._runtime.zookeeper._session._resumable  # type: ignore[attr-defined]  # no interface has the password
        close_elsewhere(quick, disposition.session_id, disposition.password)
        async with asyncio.timeout(60):
            while await account.view.children(account.path("jobs", "consumers")):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.02)
        yield
        await proxy.listen()

    return of


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_commit_in_doubt_when_its_session_ends_is_read_from_its_slot(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        await session.queue("results").put(b"first")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            tx.put("results", b"from a")
            fault = (proxy.hold_reply if applied else proxy.hold_request)(SETTLE)
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            async with blackout(session):
                assert not committing.done()
            async with asyncio.timeout(30):
                if applied:
                    await committing
                else:
                    with pytest.raises(zq.SessionExpiredError):
                        await committing
        assert tx.outcome is (zq.Outcome.COMMITTED if applied else zq.Outcome.ROLLED_BACK)
    assert await account.bodies("jobs") == ([] if applied else [b"a"])
    assert await account.bodies("results") == [b"first", *([b"from a"] if applied else [])]
    assert await account.locks("jobs") == []


async def test_a_commit_in_doubt_whose_slot_has_been_collected_is_unknown(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            tx.put("jobs", b"from a")
            fault = proxy.hold_reply(SETTLE)
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            async with blackout(session):
                await account.view.delete_at_once(f"{account.root}/.clients")
            async with asyncio.timeout(60):
                with pytest.raises(zq.OutcomeUnknownError, match="removed, by clean-up after a day without commits"):
                    await committing
        assert tx.outcome is zq.Outcome.UNKNOWN
    assert await account.bodies("jobs") == [b"from a"]
    assert await account.locks("jobs") == []


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_the_messages_of_a_commit_that_stays_unknown_are_available_while_its_session_lives(
    proxy: ZooKeeperProxy, account: Account, root: str, *, ordered: bool, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(ordered=ordered))
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            fault = (proxy.hold_reply if applied else proxy.hold_request)(SETTLE)
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            async with asyncio.timeout(60):
                with pytest.raises(zq.OutcomeUnknownError):
                    await committing
            assert await account.locks("jobs") == []
        assert await account.bodies("jobs") == ([] if applied else [b"a"])
        assert tx.outcome is zq.Outcome.UNKNOWN


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_the_messages_of_a_rollback_that_stays_unknown_are_available_while_its_session_lives(
    proxy: ZooKeeperProxy, account: Account, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            fault = (proxy.hold_reply if applied else proxy.hold_request)(SETTLE)
            undoing = asyncio.ensure_future(tx.rollback(delay=0))
            await fault.struck()
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            await undoing
            assert await account.locks("jobs") == []
    assert await account.bodies("jobs") == [b"a"]


async def test_a_rollback_that_stays_unknown_does_not_shorten_the_delay_that_it_has_set(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            fault = proxy.hold_reply(BACKOFF)
            undoing = asyncio.ensure_future(tx.rollback(delay=600))
            await fault.struck()
            delayed = await account.locks("jobs")
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            await undoing
            assert await account.locks("jobs") == delayed


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_message_whose_attempt_record_stays_unknown_is_redelivered(
    proxy: ZooKeeperProxy, account: Account, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs", policy=zq.ConsumeTimes(3))
        await jobs.put(b"a")
        fault = (proxy.hold_reply if applied else proxy.hold_request)(ATTEMPT)
        async with session.transaction() as tx, asyncio.timeout(30):
            taking = asyncio.ensure_future(tx.take(jobs, timeout=None))
            await fault.struck()
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            message = await taking
            assert message is not None
            assert (message.value, message.attempt) == (b"a", 2 if applied else 1)
        assert core_of(session).zookeeper.generation == 1
    assert await account.locks("jobs") == await account.bodies("jobs") == []


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_message_that_an_unknown_commit_delays_is_not_redelivered_early_if_the_commit_was_applied(
    proxy: ZooKeeperProxy, account: Account, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            tx.release(message, delay=600)
            tx.put("results", b"from a")
            fault = (proxy.hold_reply if applied else proxy.hold_request)(BACKOFF)
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            with pytest.raises(zq.OutcomeUnknownError):
                await committing
        async with session.transaction() as tx:
            again = await tx.take(jobs, timeout=2 if applied else 30)
            assert (again is None) is applied


async def test_a_reply_that_was_lost_before_leaves_no_doubt_about_a_put_whose_slot_has_been_collected(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"first")
        fault = proxy.hold_reply(PUT)
        putting = asyncio.ensure_future(jobs.put(b"second"))
        await fault.struck()
        proxy.reset_connections()
        await putting
        await account.view.delete_at_once(f"{account.root}/.clients")
        await jobs.put(b"third")
        await jobs.put(b"fourth")
        assert core_of(session).zookeeper.generation == 1, "a new slot is not taken for an older one"
    assert await account.bodies("jobs") == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_an_undecodable_message_whose_dead_lettering_stays_unknown_is_available_while_its_session_lives(
    proxy: ZooKeeperProxy, account: Account, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        await session.queue("jobs").put(b"no JSON")
        jobs = session.queue("jobs", list)
        fault = (proxy.hold_reply if applied else proxy.hold_request)(REJECT)
        async with session.transaction() as tx, asyncio.timeout(30):
            taking = asyncio.ensure_future(tx.take(jobs, timeout=None))
            await fault.struck()
            await account.view.delete_at_once(f"{account.root}/.clients")
            proxy.reset_connections()
            while not await account.bodies("jobs", "dlq"):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.02)
            taking.cancel()
        await account.unlocked("jobs")
        assert await account.bodies("jobs") == []


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_put_in_doubt_when_its_session_ends_is_stored_once(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, root: str, *, applied: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"first")
        async with session.transaction() as tx:
            assert await tx.take(jobs) is not None  # registers the session, so that its end can be observed
        fault = (proxy.hold_reply if applied else proxy.hold_request)(PUT)
        putting = asyncio.ensure_future(jobs.put(b"second"))
        await fault.struck()
        async with blackout(session):
            pass
        async with asyncio.timeout(30):
            await putting
    assert await account.bodies("jobs") == [b"second"]


async def slot_writes(account: Account) -> int:
    """Return how often the commit slots below a root have been written."""
    tree = await account.view.tree(f"{account.root}/.clients")
    return sum([await account.view.version(path) for path in tree if "/slot-" in path])


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "lost once"])
async def test_a_refusal_after_a_lost_request_seals_the_slot_before_a_retry(
    proxy: ZooKeeperProxy, account: Account, root: str, *, lost: bool
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"first")
        before = await slot_writes(account)
        fault = proxy.hold_request(PUT)
        putting = asyncio.ensure_future(jobs.put(b"second"))
        await fault.struck()
        await account.view.set(account.path("jobs"), await account.view.get(account.path("jobs")))
        # The request is lost; sent again, it is refused because the configuration has changed.
        sealing = proxy.hold_request(multi_of(b"/slot-", without=b"/items/")) if lost else None
        proxy.reset_connections()
        if sealing is not None:
            await sealing.struck()
            proxy.reset_connections()
        async with asyncio.timeout(30):
            await putting
        assert await slot_writes(account) == before + 2, "one write of the slot alone, one with the put"
    assert await account.bodies("jobs") == [b"first", b"second"]


async def test_a_cancelled_commit_that_was_repaired_and_sent_again_reports_that_it_was_applied(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    sent = count()
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"first")
        await account.view.set(account.path("jobs"), await account.view.get(account.path("jobs")))
        fault = proxy.hold_reply(lambda request: PUT(request) and next(sent) == 1)  # the first one is refused
        async with session.transaction(autocommit=False) as tx:
            tx.put(jobs, b"second")
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            committing.cancel()
            await asyncio.wait((committing,), timeout=1)  # time to withdraw it, if it counted as not sent
            proxy.reset_connections()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == [b"first", b"second"]


async def test_a_claim_released_by_force_while_its_commit_is_in_doubt_fails_the_commit(
    proxy: ZooKeeperProxy, account: Account, quick: str, root: str
) -> None:
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        zq.connect(quick, root=root, session_timeout=20) as operator,
    ):
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            tx.put("results", b"from a")
            fault = proxy.hold_request(SETTLE)
            committing = asyncio.ensure_future(tx.commit())
            await fault.struck()
            assert await operator.queue("jobs").admin.release_claims() == 1
            proxy.reset_connections()
            async with asyncio.timeout(30):
                with pytest.raises(zq.ClaimLostError):
                    await committing
        assert tx.outcome is zq.Outcome.ROLLED_BACK
        assert await account.bodies("jobs") == [b"a"]
        assert await account.bodies("results") == []
        assert await account.locks("jobs") == []


async def test_a_commit_that_is_not_answered_in_time_reports_its_outcome_later(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=60) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            tx.put("jobs", b"b")
            proxy.stall()
            began = time.monotonic()
            with pytest.raises(zq.OutcomeUnknownError) as raised:
                await tx.commit(timeout=0.2)
            assert time.monotonic() - began < 30  # half of a session timeout
            assert raised.value.transaction_id == tx.id
            assert tx.outcome is zq.Outcome.UNKNOWN
            assert await session.outcome(tx.id, timeout=0.1) is zq.Outcome.UNKNOWN
        proxy.heal()
        assert await session.outcome(tx.id, timeout=30) is zq.Outcome.COMMITTED
        assert await account.bodies("jobs") == [b"b"]


async def test_a_commit_that_could_not_be_sent_in_time_is_undone_without_waiting(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=60) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"%d" % number for number in range(8)])
        async with asyncio.TaskGroup() as other_puts:
            proxy.stall()
            for _ in range(6):  # more than there are slots
                other_puts.create_task(jobs.put(b"late"))
                await asyncio.sleep(0)
            async with session.transaction(autocommit=False) as tx:
                tx.put("jobs", b"mine")
                began = time.monotonic()
                with pytest.raises((zq.NotCommittedError, zq.OutcomeUnknownError)):
                    await tx.commit(timeout=0.2)
                assert time.monotonic() - began < 30  # half of a session timeout
            proxy.heal()
        outcome = await session.outcome(tx.id, timeout=30)
        stored = b"mine" in await account.bodies("jobs")
        assert outcome is (zq.Outcome.COMMITTED if stored else zq.Outcome.ROLLED_BACK)


@pytest.mark.parametrize("timeout", [None, 30])
async def test_a_commit_that_is_not_sent_because_of_an_error_has_released_its_messages(
    proxy: ZooKeeperProxy, account: Account, root: str, timeout: float | None
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(ordered=True, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
        await jobs.put_many([b"1", b"2"])
        async with session.transaction(autocommit=False) as tx:
            first, _ = await tx.take_many(jobs, 2, timeout=30)
            tx.release(first)
            fault = proxy.hold_request(SETTLE)
            committing = asyncio.ensure_future(tx.commit(timeout=timeout))
            await fault.struck()
            assert not committing.done()
            proxy.reset_connections()
            with pytest.raises(zq.InvalidOptionError, match="overtake"):
                await committing
            assert await account.locks("jobs") == []


async def test_a_rollback_past_its_deadline_returns_and_removes_the_lock_later(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=4) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            proxy.refuse()
            proxy.reset_connections()
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await tx.rollback(delay=0)
            assert time.monotonic() - began < 30, "at most a session timeout after the deadline"
            assert tx.outcome is zq.Outcome.ROLLED_BACK
        await proxy.listen()
        await account.unlocked("jobs")
        assert await account.bodies("jobs") == [b"a"]


async def test_an_idle_connection_reset_costs_the_next_call_less_than_half_a_second(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=10) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        async with session.transaction() as tx:
            assert await tx.take(jobs) is not None
            owners = set((await account.view.ephemerals(account.path("jobs", "locks"))).values())
            times = []
            for idle in (0.0, 0.01, 0.1, 0.5):
                proxy.reset_connections()
                await asyncio.sleep(idle)
                began = time.monotonic()
                assert await jobs.size() == 2
                times.append(time.monotonic() - began)
            assert sorted(times)[1] < 0.5, times  # two of the four, since the machine may stall
            assert set((await account.view.ephemerals(account.path("jobs", "locks"))).values()) == owners
            assert owners == {session._runtime.zookeeper.session_id}
        assert await account.locks("jobs") == []
    print(f"\nthe slowest call after a reset took {max(times) * 1000:.0f} ms")  # noqa: T201 - reports the measurement


async def test_a_listener_survives_resets_and_handles_each_message_once(
    proxy: ZooKeeperProxy, account: Account, quick: str, root: str
) -> None:
    total = 300
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        zq.connect(quick, root=root, session_timeout=20) as producer,
    ):
        await producer.queue("jobs").put_many([b"%d" % number for number in range(total)])

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(0.001)
            delivery.put("results", delivery.body)

        async with session.listener(session.queue("jobs"), handle, concurrency=8), asyncio.timeout(60):
            for number in range(12):
                await asyncio.sleep(0.02 + 0.005 * number)
                proxy.reset_connections()
            while await producer.queue("jobs").size():  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.02)
    assert sorted(await account.bodies("results"), key=int) == [b"%d" % number for number in range(total)]
    await account.unlocked("jobs")


async def test_a_listener_survives_the_end_of_its_zookeeper_session(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, quick: str, root: str
) -> None:
    started = asyncio.Event()
    going = asyncio.Event()
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        zq.connect(quick, root=root, session_timeout=20) as other,
    ):
        await other.queue("jobs").put(b"before")

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            started.set()
            await going.wait()
            delivery.put("results", delivery.body)

        async with session.listener(session.queue("jobs"), handle), asyncio.timeout(60):
            await started.wait()
            async with blackout(session):
                await other.queue("jobs").put(b"meanwhile")
                going.set()  # the handler ends; its commit must not be applied, because its session has ended
            while len(await account.bodies("results")) < 2:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.02)
        assert sorted(await account.bodies("results")) == [b"before", b"meanwhile"]
        assert await account.bodies("jobs") == []
        await account.unlocked("jobs")


@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(9)], ids=["at least once", "counted"])
@pytest.mark.parametrize("prefetch", [1, 32])
@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.ImplicitSettleWarning")
async def test_a_loop_survives_the_end_of_its_zookeeper_session(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, quick: str, root: str, policy: zq.Policy, prefetch: int
) -> None:
    delivered: list[bytes] = []
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        zq.connect(quick, root=root, session_timeout=20) as other,
    ):
        jobs = session.queue("jobs", policy=policy)
        await jobs.put_many([b"a", b"b", b"c"])
        async with jobs.consume(prefetch=prefetch) as deliveries, asyncio.timeout(60):
            async for delivery in deliveries:
                delivered.append(delivery.body)
                delivery.put("results", delivery.body)
                if len(delivered) == 2:
                    async with blackout(session):
                        await other.queue("jobs").put(b"d")
                if len(delivered) == 5:
                    await delivery.commit()
                    break
        await account.unlocked("jobs")
    assert sorted(await account.bodies("results")) == [b"a", b"b", b"c", b"d"]
    assert await account.bodies("jobs") == []
    assert sorted(delivered) == [b"a", b"b", b"b", b"c", b"d"]


async def test_a_waiting_take_survives_the_end_of_its_zookeeper_session(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, quick: str, root: str
) -> None:
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        zq.connect(quick, root=root, session_timeout=20) as other,
    ):
        await other.queue("jobs").put(b"first")
        async with session.transaction() as tx:
            await tx.take(session.queue("jobs"))
        async with session.transaction() as tx:
            taking = asyncio.ensure_future(tx.take(session.queue("jobs"), timeout=60))
            await asyncio.sleep(0.1)
            async with blackout(session):
                await other.queue("jobs").put(b"a")
            message = await taking
            assert message is not None
        assert await account.bodies("jobs") == []


async def test_a_take_whose_attempt_is_in_doubt_survives_the_end_of_its_zookeeper_session(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))
        await jobs.put(b"a")
        async with session.transaction() as tx:
            fault = proxy.hold_request(ATTEMPT)
            taking = asyncio.ensure_future(tx.take(jobs, timeout=None))
            await fault.struck()
            async with blackout(session):
                pass
            async with asyncio.timeout(30):
                assert await taking is not None
    assert await account.bodies("jobs") == []


async def test_a_transaction_takes_no_more_messages_after_its_session_ended(
    proxy: ZooKeeperProxy, account: Account, blackout: Blackout, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put(b"a")
        with pytest.raises(zq.SessionExpiredError):
            async with session.transaction() as tx, asyncio.timeout(30):
                assert await tx.take(jobs) is not None
                waiting = asyncio.ensure_future(tx.take(session.queue("empty"), timeout=None))
                await asyncio.sleep(0.1)
                async with blackout(session):
                    pass
                await waiting
        await account.unlocked("jobs")
        assert await account.bodies("jobs") == [b"a"]


async def test_a_take_keeps_its_deadline_while_its_attempt_is_not_answered(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=60) as session:
        jobs = session.queue("jobs", policy=zq.ConsumeTimes(9))
        await jobs.put(b"a")
        fault = proxy.hold_request(ATTEMPT)
        async with session.transaction(autocommit=False) as tx:
            async with asyncio.timeout(30):  # half of a session timeout
                assert await tx.take(jobs, timeout=2) is None
            await fault.struck()
            fault.release()
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            assert message.attempt == 1, "a message that was not delivered uses no attempt"
            await tx.rollback(delay=0)
        assert await account.locks("jobs") == []


async def test_leaving_a_loop_with_an_unanswered_commit_raises_within_one_session_timeout(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=4) as session:
        jobs = session.queue("jobs")
        await jobs.put_many([b"1", b"2", b"3"])
        deliveries = jobs.consume(prefetch=3)
        await anext(deliveries)
        fault = proxy.hold_request(SETTLE)
        asking = asyncio.ensure_future(anext(deliveries))
        await fault.struck()
        proxy.refuse()
        proxy.reset_connections()
        asking.cancel()
        await asyncio.wait((asking,))
        async with asyncio.timeout(40):
            with pytest.raises(zq.OutcomeUnknownError):
                await deliveries.aclose()
        fault.release()
        await proxy.listen()
    assert await account.locks("jobs") == []
