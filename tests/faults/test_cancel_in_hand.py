"""Cancelling a message in flight while requests and replies are lost: the outcome is true, and nothing is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode
from tests.faults.account import SETTLE, multi_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account

CANCEL = multi_of(b"/slot-", b"/cancelled")


@pytest.fixture
async def holder(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        yield session


@pytest.mark.parametrize("bundle", [None, 64], ids=["single items", "bundles"])
@pytest.mark.parametrize("fault", ["lose_before", "lose_after"])
async def test_a_cancellation_whose_request_or_reply_is_lost_returns_the_true_outcome(
    proxy: ZooKeeperProxy, root: str, holder: zq.QueueSession, account: Account, fault: str, bundle: int | None
) -> None:
    jobs = holder.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle, history=zq.History()))
    ids = await jobs.put_many([b"%d" % number for number in range(40)])
    begun, cancelled = set[bytes](), asyncio.Event()

    async def slow(delivery: zq.Delivery[bytes]) -> None:
        begun.add(delivery.value)
        if delivery.value == b"7":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async with (
        asyncio.timeout(60),
        zq.connect(proxy.hosts, root=root, session_timeout=20) as operator,
        holder.listener(jobs, slow, concurrency=40),
    ):
        while b"7" not in begun:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
        getattr(proxy, fault)(CANCEL)
        assert await operator.queue("jobs").cancel(id=ids[7], running=True) is zq.Alteration.DONE
        await cancelled.wait()
        while await jobs.size():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []
    records = [record.outcome async for record in jobs.history() if record.id == ids[7]]
    assert records == [zq.End.CANCELLED]


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_commit_in_doubt_and_a_cancellation_take_effect_in_one_order(
    proxy: ZooKeeperProxy, quick: str, root: str, account: Account, *, applied: bool
) -> None:
    async with (
        zq.connect(quick, root=root, session_timeout=20) as operator,
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        asyncio.timeout(60),
    ):
        jobs = session.queue("jobs")
        message = await jobs.put(b"1")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            tx.put("done", b"1")
            held = (proxy.hold_reply if applied else proxy.hold_request)(SETTLE)
            committing = asyncio.ensure_future(tx.commit())
            await held.struck()
            outcome = await operator.queue("jobs").cancel(id=message, running=True)
            held.release()
            if applied:
                assert outcome is zq.Alteration.NOT_FOUND
                await committing
            else:
                assert outcome is zq.Alteration.DONE
                with pytest.raises(zq.ClaimLostError):
                    await committing
    assert await account.bodies("jobs") == []
    assert await account.bodies("done") == ([b"1"] if applied else [])
    assert await account.locks("jobs") == []


@pytest.mark.parametrize("fault", ["lose_before", "lose_after"])
async def test_a_listener_starts_although_the_request_that_watches_for_cancellations_is_lost(
    proxy: ZooKeeperProxy, root: str, holder: zq.QueueSession, fault: str
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(_: zq.Delivery[bytes]) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asyncio.timeout(60), zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        lost = getattr(proxy, fault)(
            lambda request: request.opcode == Opcode.ADD_WATCH and b"/cancelled" in request.body
        )
        async with session.listener(session.queue("jobs"), slow):
            await lost.struck()
            message_id = await holder.queue("jobs").put(b"slow")
            await begun.wait()
            assert await holder.queue("jobs").cancel(id=message_id, running=True)
            await cancelled.wait()


async def test_a_cancellation_between_a_claim_and_the_record_of_its_attempt_leaves_no_record(
    proxy: ZooKeeperProxy, root: str, account: Account
) -> None:
    async with (
        asyncio.timeout(60),
        zq.connect(proxy.hosts, root=root, session_timeout=20) as holder,
        zq.connect(proxy.hosts, root=root, session_timeout=20) as operator,
    ):
        jobs = holder.queue("jobs", policy=zq.ConsumeTimes(3))
        message_id = await jobs.put(b"x")
        recording = proxy.hold_request(multi_of(b"/slot-", b"/meta/meta-"))
        async with holder.transaction(autocommit=False) as tx:
            taking = asyncio.create_task(tx.take(jobs, timeout=30))
            await recording.struck()  # the message is locked, and its attempt is not recorded yet
            cancellation = proxy.hold_request(CANCEL)
            cancelling = asyncio.create_task(operator.queue("jobs").cancel(id=message_id, running=True))
            await cancellation.struck()
            recording.release()
            assert await taking is not None
            cancellation.release()
            assert await cancelling is zq.Alteration.DONE
            await tx.rollback()
    assert await account.bodies("jobs") == []
    assert await account.attempts("jobs") == []
