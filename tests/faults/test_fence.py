"""A holder that lost its lock changes nothing afterwards, and the work of the next holder is kept."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, TestClock
from aiozkqueue.zookeeper import Delete, SetData
from tests.faults.account import ATTEMPT, CLAIM, SETTLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import Request, ZooKeeperProxy
    from tests.faults.account import Account


@pytest.fixture
def clock() -> TestClock:
    """The clock of the holder's timeouts."""
    return TestClock()


@pytest.fixture
async def holder(proxy: ZooKeeperProxy, root: str, clock: TestClock) -> AsyncIterator[zq.QueueSession]:
    """The session that loses its lock."""
    async with zq.connect(proxy.hosts, root=root, clock=clock, session_timeout=20) as session, asyncio.timeout(60):
        yield session


@pytest.fixture
async def other(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    """The session that removes the lock, and may hold the message next."""
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        yield session


def read_under_lock(request: Request) -> bool:
    """Match the read that follows a claim."""
    return request.opcode == Opcode.MULTI_READ and b"/locks/lock-" in request.body


async def owner_of_the_lock(account: Account) -> int:
    (owner,) = (await account.view.ephemerals(account.path("jobs", "locks"))).values()
    return owner


@pytest.mark.parametrize("idle", [False, True], ids=["asking", "idle"])
async def test_a_message_released_between_claim_and_read_is_claimed_again(
    holder: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, *, idle: bool
) -> None:
    fault = proxy.hold_request(read_under_lock)
    if not idle:
        await other.queue("jobs").put(b"a")
    async with holder.transaction() as tx:
        taking = asyncio.ensure_future(tx.take(holder.queue("jobs"), timeout=30))
        if idle:  # so a watch reports the put of the message and its release
            await asyncio.sleep(0.2)
            await asyncio.create_task(other.queue("jobs").put(b"a"), context=Context())
        await fault.struck()
        while not await account.locks("jobs"):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        assert await other.queue("jobs").admin.release_claims() == 1
        fault.release()
        message = await taking
        assert message is not None
        assert await account.view.version((await item_paths(account))[0]) == 1
    assert tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def test_a_message_that_another_session_claims_before_our_read_stays_with_that_session(
    holder: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, clock: TestClock
) -> None:
    await other.queue("jobs").put(b"a")
    fault = proxy.hold_request(read_under_lock)
    async with holder.transaction() as tx, other.transaction() as other_tx:
        taking = asyncio.ensure_future(tx.take(holder.queue("jobs"), timeout=600))
        await fault.struck()
        while not await account.locks("jobs"):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        await other.queue("jobs").admin.release_claims()
        assert await other_tx.take(other.queue("jobs")) is not None
        fault.release()
        await asyncio.wait({taking}, timeout=0.5)
        clock.advance(600)
        assert await taking is None
        assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
    assert other_tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []


async def test_a_message_of_a_batch_that_is_released_before_the_read_is_claimed_again(
    holder: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account
) -> None:
    first, *_ = await other.queue("jobs").put_many([b"a", b"b", b"c"])
    fault = proxy.hold_request(read_under_lock)
    async with holder.transaction() as tx, other.transaction() as other_tx:
        taking = asyncio.ensure_future(tx.take_many(holder.queue("jobs"), 3, timeout=30))
        await fault.struck()
        while len(await account.locks("jobs")) < 3:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        (item,) = [path for path in await item_paths(account) if first in path]
        lock = account.path("jobs", "locks", f"lock-{first}")
        await other._runtime.zookeeper.multi([Delete(lock), SetData(item, b"a")])
        (message,) = await other_tx.take_many(other.queue("jobs"), 3, timeout=30)
        fault.release()
        assert [message.body for message in await taking] == [b"b", b"c"]
        assert message.body == b"a"
    assert other_tx.outcome is tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def item_paths(account: Account) -> list[str]:
    return [path for path in await account.view.tree(account.path("jobs", "items")) if "/item-" in path]


@pytest.mark.parametrize("claimed_again", [False, True], ids=["free again", "claimed by another"])
async def test_the_old_holders_commit_fails_and_changes_nothing(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account, *, claimed_again: bool
) -> None:
    await other.queue("jobs").put(b"a")
    async with holder.transaction(autocommit=False) as tx, other.transaction() as other_tx:
        assert await tx.take(holder.queue("jobs")) is not None
        tx.put("results", b"from the old holder")
        assert await other.queue("jobs").admin.release_claims() == 1
        if claimed_again:
            assert await other_tx.take(other.queue("jobs")) is not None
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
        assert await account.bodies("jobs") == [b"a"]
        if claimed_again:
            assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
        else:
            await account.unlocked("jobs")
    assert other_tx.outcome is zq.Outcome.COMMITTED
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert await account.bodies("results") == []
    assert await account.bodies("jobs") == ([] if claimed_again else [b"a"])
    assert await account.attempts("jobs") == []
    await account.unlocked("jobs")


@pytest.mark.parametrize("delay", [0, 5], ids=["at once", "after a delay"])
@pytest.mark.parametrize("claimed_again", [False, True], ids=["free again", "claimed by another"])
async def test_the_old_holders_rollback_returns_and_changes_nothing(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account, delay: int, *, claimed_again: bool
) -> None:
    await other.queue("jobs").put(b"a")
    async with holder.transaction(autocommit=False) as tx, other.transaction() as other_tx:
        assert await tx.take(holder.queue("jobs")) is not None
        assert await other.queue("jobs").admin.release_claims() == 1
        if claimed_again:
            assert await other_tx.take(other.queue("jobs")) is not None
        before = await account.view.tree(account.path("jobs"))
        await tx.rollback(delay=delay)
        assert await account.view.tree(account.path("jobs")) == before
        if claimed_again:
            assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
    assert other_tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == ([] if claimed_again else [b"a"])
    await account.unlocked("jobs")


async def test_the_old_holder_records_no_attempt_and_receives_no_message(
    holder: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, clock: TestClock
) -> None:
    policy = zq.ConsumeTimes(3)
    await other.queue("jobs", policy=policy).put(b"a")
    fault = proxy.hold_request(ATTEMPT)
    async with holder.transaction() as tx, other.transaction() as other_tx:
        taking = asyncio.ensure_future(tx.take(holder.queue("jobs"), timeout=600))
        await fault.struck()
        await other.queue("jobs").admin.release_claims()
        taken_by_other = await other_tx.take(other.queue("jobs"))
        assert taken_by_other is not None
        assert taken_by_other.attempt == 1
        fault.release()
        await asyncio.wait({taking}, timeout=0.5)
        clock.advance(600)
        assert await taking is None
        (record,) = await account.attempts("jobs")
        assert json.loads(record)["attempts"] == 1
        assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
    assert await account.bodies("jobs") == []
    assert await account.attempts("jobs") == []


async def test_an_ended_timed_lock_is_replaced_and_its_old_holder_commits_nothing(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    await other.queue("jobs").put(b"a")
    async with holder.transaction(autocommit=False) as tx, other.transaction() as other_tx:
        message = await tx.take(holder.queue("jobs"))
        assert message is not None
        # Replace the holder's lock by a timed lock, as of a claim over HTTP, that has ended.
        lock = account.path("jobs", "locks", f"lock-{message.id}")
        record = json.loads(await account.view.get(lock))
        await account.view.delete(lock)
        await account.view.create(lock, json.dumps({**record, "end": 1}).encode())
        (item,) = await item_paths(account)
        place = item.removeprefix(account.path("jobs") + "/")
        await account.view.create(account.path("jobs", "due", f"{1:013d}-{message.id}"), place.encode())
        taken = await other_tx.take(other.queue("jobs"), timeout=30)
        assert taken is not None
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
        assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
    assert other_tx.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []
    assert await account.view.children(account.path("jobs", "due")) == []


async def test_locks_released_by_force_do_not_prevent_the_release_of_other_locks(
    holder: zq.QueueSession, account: Account
) -> None:
    jobs = holder.queue("jobs")
    await jobs.put_many([b"%02d" % number for number in range(40)])
    async with holder.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(jobs, 40)) == 40
        for item in sorted(await item_paths(account))[:30]:
            message_id = item.rpartition("-i")[2].partition("-")[0]
            await account.view.delete(account.path("jobs", "locks", f"lock-{message_id}"))
            await account.view.set(item, await account.view.get(item))
        await tx.rollback(delay=0)
        assert await account.locks("jobs") == []
    assert holder._runtime._budgets.of(1).used < 200, "locks that were released by force are not counted as held"


async def test_a_loop_gets_a_message_that_was_released_by_force_again_without_other_traffic(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    jobs = holder.queue("jobs")
    await jobs.put(b"a")
    async with jobs.consume(settle="explicit") as deliveries:
        delivery = await anext(deliveries)
        # Long enough for an idle consumer to set its watches, and for a busy one to remove them.
        await asyncio.sleep(0.5)
        assert await other.queue("jobs").admin.release_claims() == 1
        with pytest.raises(zq.ClaimLostError):
            await delivery.commit()
        async with asyncio.timeout(30):
            redelivered = await anext(deliveries)
        assert redelivered.body == b"a"
        await redelivered.commit()
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def test_a_message_released_by_force_goes_to_an_idle_taker_of_the_same_session(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    jobs = holder.queue("jobs")
    await jobs.put(b"a")
    async with holder.transaction(autocommit=False) as tx, holder.transaction() as idle:
        assert await tx.take(jobs) is not None
        taking = asyncio.ensure_future(idle.take(jobs, timeout=30))
        await asyncio.sleep(0.3)
        assert await other.queue("jobs").admin.release_claims() == 1
        await asyncio.sleep(0.1)
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
        assert await taking is not None
    assert await account.bodies("jobs") == []


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_claim_made_while_an_operator_lists_is_released_completely_or_not_at_all(
    holder: zq.QueueSession, other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, nth: int
) -> None:
    """A message that is put and claimed between two listings of the operator is fenced like all others."""
    jobs = holder.queue("jobs")
    await jobs.put(b"a")
    listing = proxy.hold_request(Opcode.GET_CHILDREN, nth=nth)
    forcing = asyncio.ensure_future(jobs.admin.release_claims())
    await asyncio.wait({forcing, asyncio.ensure_future(listing.struck(1))}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.create_task(other.queue("jobs").put(b"b"), context=Context())
    async with other.transaction(autocommit=False) as tx:
        taken = await tx.take_many(other.queue("jobs"), 2)
        assert len(taken) == 2
        listing.release()
        forced_version = await forcing
        async with holder.transaction() as next_one:
            claimed = await next_one.take_many(jobs, 2)
            assert len(claimed) == forced_version
            if forced_version:
                with pytest.raises(zq.ClaimLostError):
                    await tx.commit()
            else:
                await tx.commit()
        assert next_one.outcome is zq.Outcome.COMMITTED
    await account.unlocked("jobs")
    assert len(await account.bodies("jobs")) == (2 - forced_version if forced_version else 0)


async def test_a_holder_notices_a_forced_release_of_a_message_redelivered_during_the_listing(
    other: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    """The message is held when the operator lists the locks, dead when it lists the messages, and redriven then."""
    jobs = other.queue("jobs")
    await jobs.put_many([b"a", b"b"])
    async with (
        zq.connect(proxy.hosts, root=root, janitor=False, session_timeout=20) as operator,
        other.transaction(autocommit=False) as first,
        other.transaction(autocommit=False) as rest,
    ):
        message = await first.take(jobs)
        assert message is not None
        assert await rest.take(jobs) is not None
        listing = proxy.hold_request(
            lambda request: request.opcode == Opcode.GET_CHILDREN and b"/jobs/items" in request.body
        )
        forcing = asyncio.ensure_future(operator.queue("jobs").admin.release_claims())
        await listing.struck()
        first.reject(message, "to come back under the same id")
        await first.commit()
        reading = proxy.hold_request(
            lambda request: request.opcode == Opcode.MULTI_READ and b"/items/item-" in request.body
        )
        listing.release()
        await reading.struck()
        assert await jobs.dead_letters.redrive() == 1
        async with other.transaction(autocommit=False) as second:
            redelivered = await second.take(jobs, timeout=30)
            assert redelivered is not None
            assert redelivered.id == message.id
            reading.release()
            assert await forcing == 1, "the message that was held all the time"
            async with operator.transaction() as third:
                assert [message.body for message in await third.take_many(operator.queue("jobs"), 2)] == [b"b"]
            await second.commit()
        with pytest.raises(zq.ClaimLostError):
            await rest.commit()
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def test_a_holder_that_lost_its_claim_long_ago_does_not_release_the_next_holders_lock(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    """Meanwhile another holder rejected the message, it was redriven, and it is held again under the same id."""
    jobs = other.queue("jobs")
    await jobs.put(b"a")
    async with holder.transaction(autocommit=False) as old:
        assert await old.take(holder.queue("jobs")) is not None
        assert await jobs.admin.release_claims() == 1
        async with other.transaction() as rejecting:
            message = await rejecting.take(jobs, timeout=30)
            assert message is not None
            rejecting.reject(message, "to come back under the same id")
        assert await jobs.dead_letters.redrive() == 1
        async with other.transaction() as new:
            assert await new.take(jobs, timeout=30) is not None
            await old.rollback(delay=0)
            assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
    assert new.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def test_a_rollback_leaves_no_lock_of_a_deleted_message(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    await other.queue("jobs").put_many([b"a"] * 40)
    async with holder.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(holder.queue("jobs"), 40)) == 40
        await other._runtime.zookeeper.multi([Delete(path) for path in (await item_paths(account))[1:]])
        await tx.rollback(delay=0)
        assert await account.locks("jobs") == []
    assert len(await account.bodies("jobs")) == 1


async def test_a_message_that_another_client_released_and_dead_lettered_does_not_block_a_rollback(
    holder: zq.QueueSession, other: zq.QueueSession, account: Account
) -> None:
    await holder.queue("once", policy=zq.ConsumeOnce()).put(b"a")
    await holder.queue("jobs").put(b"b")
    async with holder.transaction(autocommit=False) as tx:
        assert await tx.take(holder.queue("once")) is not None
        assert await tx.take(holder.queue("jobs")) is not None
        assert await other.queue("once").admin.release_claims() == 1
        async with asyncio.timeout(30):
            # A take may time out before it has read the message.
            while await other.queue("once").dead_letters.size() != 1:
                async with other.transaction() as taking:
                    assert await taking.take(other.queue("once"), timeout=0.5) is None  # its only attempt is used up
        await tx.rollback(delay=0)
    assert await account.locks("jobs") == []
    assert await account.bodies("jobs") == [b"b"]


@pytest.mark.parametrize("group", ["g", None], ids=["of a group", "of a message"])
async def test_removing_a_lock_without_a_message_keeps_the_lock_of_the_next_holder(
    holder: zq.QueueSession,
    other: zq.QueueSession,
    proxy: ZooKeeperProxy,
    account: Account,
    group: str | None,
) -> None:
    """Between the read and the removal of the lock, a message arrives and an operator's release lets another claim."""
    jobs = other.queue("jobs")
    await jobs.put(b"a", group=group)
    claim = proxy.hold_request(CLAIM)
    async with holder.transaction() as tx:
        taking = asyncio.ensure_future(tx.take(holder.queue("jobs"), timeout=None))
        await claim.struck()
        # The holder has listed a message that is removed before its claim arrives.
        async with other.transaction() as consuming:
            first = await consuming.take(jobs, timeout=30)
            assert first is not None
            if group is None:
                consuming.reject(first, "to come back under the same id")
        removal = proxy.hold_request(SETTLE)
        claim.release()
        await removal.struck()
        if group is None:
            assert await jobs.dead_letters.redrive() == 1
        else:
            await asyncio.create_task(jobs.put(b"b", group=group), context=Context())
        assert await jobs.admin.release_claims() == 1
        async with other.transaction() as other_tx:
            assert await other_tx.take(jobs, timeout=30) is not None
            removal.release()
            await holder._runtime.committer.drain()
            assert await owner_of_the_lock(account) == other._runtime.zookeeper.session_id
        assert other_tx.outcome is zq.Outcome.COMMITTED
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
    assert await account.bodies("jobs") == []
    await account.unlocked("jobs")
