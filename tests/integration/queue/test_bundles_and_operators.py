"""Bundles while operators and other programs change their znodes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import aiozkqueue as zq
from aiozkqueue import sampling
from aiozkqueue.layout import BundleName
from aiozkqueue.sampling import Sample, Sampler
from aiozkqueue.testing import Opcode, TestClock
from tests.faults.account import CLAIM, multi_of
from tests.integration.queue.bundles import BODIES, NUMBER, Stored, bundled, drain, half_done
from tests.integration.queue.conftest import Opener, eventually
from tests.integration.queue.test_obstacles import set_acl

if TYPE_CHECKING:
    from aiozkqueue.testing import Request, ZooKeeperProxy
    from tests.integration.queue.bundles import Expire
    from tests.observer import Observer


# -- operators


async def test_claims_released_by_force_are_lost_and_their_messages_are_redelivered(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as tx:
        await tx.take_many(queue, 40)
        assert await other.queue("jobs").admin.release_claims() == 40
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
    assert sorted(await drain(other, other.queue("jobs"), 2)) == sorted(BODIES[:40])


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(5)], ids=["uncounted", "counted"])
async def test_a_commit_that_only_releases_a_message_fails_if_its_claim_was_released_by_force(
    session: zq.QueueSession, other: zq.QueueSession, bundle: int, policy: zq.Policy
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=bundle, policy=policy))
    await queue.put_many(BODIES[:40])
    async with session.transaction() as tx:
        message = await tx.take(queue)
        assert message is not None
        assert await other.queue("jobs").admin.release_claims() > 0
        tx.release(message, delay=0)
        tx.put("seen", message.body)
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
    assert await session.queue("seen").size() == 0
    assert sorted(await drain(other, other.queue("jobs"), 2)) == sorted(BODIES[:40])


async def test_a_message_that_another_session_has_taken_by_force_is_not_delivered_to_its_old_holder_again(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = await bundled(session, BODIES[:40], zq.ConsumeTimes(2))
    async with session.transaction() as tx:
        await tx.take_many(queue, 40)
        assert await other.queue("jobs").admin.release_claims() == 40
        await other.queue("jobs").admin.unbundle()
        await tx.rollback(delay=0.01)
        async with other.transaction() as another:
            assert len(await another.take_many(other.queue("jobs"), 40, timeout=10)) == 40
            async with session.transaction() as next_tx:
                assert await next_tx.take(queue, timeout=0.5) is None
            await another.commit()
    assert await queue.size() == 0


async def test_a_message_that_cannot_be_stored_alone_is_delivered_as_often_as_its_policy_allows(
    session: zq.QueueSession, server_view: Observer, queue_root: str, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await bundled(session, BODIES[:40], zq.ConsumeTimes(3, backoff=zq.Fixed(0.01)))
    (bundle,) = await stored.bundles()
    allowed = [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)]  # no item can be created
    for folder in ("items", "dlq"):
        await server_view.set_acl(f"{queue_root}/jobs/{folder}", allowed)
    attempts: list[int] = []
    for _ in range(45):  # the other messages are taken while it waits for its delay
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=0.5)
            if message is not None and message.id == bundle.first:
                attempts.append(message.attempt)
                await tx.rollback(delay=0.01)
            elif message is not None:
                await tx.commit()
    assert attempts == [1, 2, 3]
    assert "stays until the next try in 60 s" in caplog.text


async def test_figures_count_messages_and_not_znodes(session: zq.QueueSession, other: zq.QueueSession) -> None:
    queue = await bundled(session)
    stats = await other.queue("jobs").stats()
    assert (stats.size, stats.waiting, stats.in_flight) == (NUMBER, NUMBER, 0)
    assert stats.oldest is not None
    async with session.transaction() as tx:
        await tx.take_many(queue, 60)
        await tx.commit()
    async with session.transaction() as tx:
        await tx.take_many(queue, 40)
        stats = await other.queue("jobs").stats()
        assert (stats.size, stats.waiting, stats.in_flight) == (40, 0, 40)
        assert await other.queue("jobs").size() == 40


async def test_a_diagnosis_counts_the_messages_that_are_left_in_a_held_bundle(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = await bundled(session)
    async with session.transaction() as first, session.transaction() as second:
        assert len(await first.take_many(queue, 40, timeout=30)) == 40
        assert len(await second.take_many(queue, 1, timeout=30)) == 1
        await first.commit()
        [facts] = (await other.admin.diagnose("jobs")).queues
        assert facts.size == (await other.queue("jobs").stats()).size == NUMBER - 40


async def test_a_message_is_found_by_its_id(session: zq.QueueSession, other: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    ids = await queue.put_many(BODIES)
    assert [content.id for content in await other.queue("jobs").peek(70)] == ids[:70]
    state = await other.queue("jobs").state(ids[60])
    assert (state.id, state.status) == (ids[60], zq.Status.WAITING)
    async with session.transaction() as tx:
        await tx.take_many(queue, NUMBER)
        assert (await other.queue("jobs").state(ids[60])).status is zq.Status.IN_FLIGHT


async def test_consumers_hold_the_messages_that_are_left_in_their_bundles(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    ids = await queue.put_many(BODIES)
    async with other.transaction() as tx:
        taken = await tx.take_many(other.queue("jobs"), NUMBER, timeout=10)
        (holder,) = await queue.admin.consumers()
        assert {message.id for message in taken} <= set(holder.messages) <= set(ids)
        assert len(holder.messages) > 1


async def test_a_message_is_cancelled_and_updated_in_its_bundle(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    ids = await queue.put_many(BODIES[:40])
    assert await other.queue("jobs").cancel(id=ids[3]) is zq.Alteration.DONE
    assert await other.queue("jobs").update(b"new", id=ids[5]) is zq.Alteration.DONE
    assert await other.queue("jobs").cancel(id=ids[3]) is zq.Alteration.NOT_FOUND
    assert await drain(session, queue) == [*BODIES[:3], BODIES[4], b"new", *BODIES[6:40]]


async def test_a_message_of_a_held_bundle_cannot_be_cancelled(session: zq.QueueSession, other: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    ids = await queue.put_many(BODIES[:40])
    async with session.transaction() as tx:
        await tx.take_many(queue, 40)
        assert await other.queue("jobs").cancel(id=ids[3]) is zq.Alteration.HELD
        await tx.commit()


async def test_a_purge_removes_bundles(session: zq.QueueSession, other: zq.QueueSession, stored: Stored) -> None:
    await bundled(session)
    assert await other.queue("jobs").purge() == NUMBER
    assert await stored.is_empty()


async def test_a_move_includes_the_messages_of_bundles(session: zq.QueueSession, stored: Stored) -> None:
    await bundled(session)
    reference = await session.admin.moves.start("jobs", "others")

    async def done() -> bool:
        return (await session.admin.moves.status(reference)).ended is not None

    await eventually(done)
    assert await stored.is_empty()
    assert sorted(await drain(session, session.queue("others"))) == sorted(BODIES)


async def test_a_move_waits_for_the_messages_of_a_bundle_that_a_consumer_holds(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue, target = await bundled(session, BODIES[:40]), other.queue("others")
    moves = other.admin.moves

    async def ended() -> bool:
        return (await moves.status(reference)).ended is not None

    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=10) is not None
        messages = await tx.take_many(queue, 39)
        reference = await moves.start("jobs", "others")
        await asyncio.sleep(0.5)
        assert not await ended()
        await tx.rollback(delay=0)
    await eventually(ended)
    assert len(messages) == 39
    assert (await queue.size(), await target.size()) == (0, 40)


async def test_unbundling_stores_single_items_and_ends_the_required_feature(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    queue = await bundled(session)
    async with session.transaction() as tx:
        await tx.take_many(queue, 10)
        assert await other.queue("jobs").admin.unbundle() == 1
        await tx.commit()

    async def unbundled() -> bool:
        return await other.queue("jobs").admin.unbundle() == 0

    await eventually(unbundled)
    assert await stored.bundles() == []
    assert b"requires" not in await server_view.get(f"{queue_root}/jobs")
    await queue.put_many(BODIES)
    assert await stored.bundles() == []
    assert sorted(await drain(session, queue)) == sorted([*BODIES[10:], *BODIES])


@pytest.mark.parametrize("change", ["unbundle", "purge"])
async def test_a_bundle_that_changes_before_a_late_request_arrives_returns_no_finished_message(
    change: str, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, expire: Expire, stored: Stored
) -> None:
    operator, holder = await open_session(zookeeper_proxy.hosts), await open_session()
    queue = await bundled(holder, BODIES[:40])
    held = zookeeper_proxy.hold_request(multi_of(b"/locks/lock-", b"/items/bundle-"))
    admin = operator.queue("jobs").admin.unbundle() if change == "unbundle" else operator.queue("jobs").purge()
    changing = asyncio.ensure_future(admin)
    await held.struck()  # the operator has read the bundle before its first claim
    async with holder.transaction() as tx:
        await tx.take_many(queue, 10)
    await expire(holder)
    held.release()
    await changing
    last = await open_session()
    assert await drain(last, last.queue("jobs"), expected=30) == BODIES[10:40]
    assert await stored.is_empty()


async def test_a_damaged_bundle_becomes_a_dead_letter(
    session: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    queue = await bundled(session)
    name = next(name for name in await stored.names() if name.startswith("bundle-"))
    await server_view.set(f"{queue_root}/jobs/items/{name}", b"\xf5zqb\x01\xff\xff")
    assert len(await drain(session, queue)) == NUMBER // 2
    (letter,) = await queue.dead_letters.peek()
    assert letter.reason.startswith("the stored bytes of a bundle do not decode")
    assert await stored.is_empty()


async def test_samples_count_messages_and_find_the_oldest(session: zq.QueueSession) -> None:
    queue = await bundled(session)
    sampler = Sampler(session)

    async def sample() -> Sample:
        await sampler.sample("jobs")
        return sampler.latest["jobs"]

    before = await sample()
    assert (before.size, before.in_flight) == (NUMBER, 0)
    assert before.oldest is not None
    async with session.transaction() as tx:
        await tx.take_many(queue, NUMBER)
        during = await sample()
        assert (during.size, during.in_flight) == (NUMBER, NUMBER)
        await tx.commit()
    assert (await sample()).oldest is None


async def test_samples_of_a_deep_queue_count_the_messages_of_bundles(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await bundled(session, [b"%d" % number for number in range(640)])
    monkeypatch.setattr(sampling, "LISTED", 2)
    sampler = Sampler(session)
    await sampler.sample("jobs")
    first = sampler.latest["jobs"]
    assert (first.size, first.waiting) == (640, 640)
    async with session.transaction() as tx:
        assert len(await tx.take_many(queue, 320)) == 320
    await sampler.sample("jobs")  # the bundles are not listed again, so the size is approximate
    assert 250 <= sampler.latest["jobs"].size <= 390


# -- znodes of other programs


async def test_an_unreadable_bundle_does_not_block_the_others(
    session: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await bundled(session, [b"%d" % number for number in range(192)])
    first = (await stored.names())[0]
    await set_acl(server_view, f"{queue_root}/jobs/items/{first}", readable=False)
    hidden = BundleName.parse(first)
    assert hidden is not None
    assert len(await drain(session, queue, 2)) == 192 - hidden.size
    assert "may not read it" in caplog.text


@pytest.mark.parametrize("when", ["before", "while held"])
async def test_znodes_below_a_bundle_do_not_block_its_messages(
    session: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str, when: str
) -> None:
    queue = await bundled(session)
    obstructed = f"{queue_root}/jobs/items/{(await stored.names())[0]}/child"
    if when == "before":
        await server_view.create(obstructed)
    async with session.transaction() as tx:
        messages = await tx.take_many(queue, NUMBER)
        if when == "while held":
            await server_view.create(obstructed)
        assert len(messages) == NUMBER
        await tx.commit()
    assert await queue.size() == 0
    await queue.put(b"after")
    assert await drain(session, queue) == [b"after"]


async def test_messages_of_a_bundle_with_znodes_below_it_survive_their_holder(
    open_session: Opener, other: zq.QueueSession, expire: Expire, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    await bundled(other, BODIES[:40])
    await server_view.create(f"{queue_root}/jobs/items/{(await stored.names())[0]}/child")
    queue = await half_done(open_session, expire)
    assert sorted(await drain(other, other.queue("jobs"), 2)) == sorted(BODIES[10:40])
    assert await queue.size() == 0


async def test_a_bundle_whose_messages_cannot_be_stored_alone_does_not_block_the_others(
    open_session: Opener,
    other: zq.QueueSession,
    expire: Expire,
    stored: Stored,
    server_view: Observer,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await bundled(other)
    (first, _) = await stored.bundles()
    await server_view.create(
        f"{queue_root}/jobs/items/item-m{first.size - 1}-i{first.last}-{first.digits}", b"of another program"
    )
    await half_done(open_session, expire)
    assert sorted(await drain(other, other.queue("jobs"), 2)) == sorted([*BODIES[50:], b"of another program"])
    assert "cannot be dissolved" in caplog.text
    assert [bundle.id for bundle in await stored.bundles()] == [first.id]


async def test_a_queue_keeps_its_bundles_while_one_of_them_cannot_be_dissolved(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    queue = await bundled(session)
    (first, _) = await stored.bundles()
    obstacle = f"{queue_root}/jobs/items/item-m{first.size - 1}-i{first.last}-{first.digits}"
    await server_view.create(obstacle, b"of another program")
    assert await queue.admin.unbundle() == 1
    assert "requires" in await stored.configuration(), "programs without bundles must not use the queue yet"
    await server_view.delete(obstacle)
    assert await queue.admin.unbundle() == 0
    assert await stored.bundles() == []
    assert sorted(await drain(other, other.queue("jobs"))) == sorted(BODIES)


async def forbid_new_items(server_view: Observer, items: str) -> None:
    """Let everybody do everything with the items but create one."""
    allowed = [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)]
    await server_view.set_acl(items, allowed)


async def test_the_configuration_is_read_by_one_task_at_a_time_during_an_outage(
    open_session: Opener,
    server_view: Observer,
    zookeeper_proxy: ZooKeeperProxy,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session, BODIES[:40])
    await forbid_new_items(server_view, f"{queue_root}/jobs/items")
    async with session.transaction() as tx:
        assert await tx.take(queue) is not None

        async def kept() -> bool:
            return "stay with this session" in caplog.text

        def checks() -> int:
            return sum("configuration of a queue with bundles" in task.get_name() for task in asyncio.all_tasks())

        async def checked() -> bool:
            return checks() > 0

        await eventually(kept, 30)
        zookeeper_proxy.stall()
        await eventually(checked, 30)
        await asyncio.sleep(0.5)
        assert checks() == 1
        zookeeper_proxy.heal()
        await tx.commit()


async def test_the_configuration_is_read_ever_less_often_while_returns_are_refused(
    open_session: Opener,
    other: zq.QueueSession,
    server_view: Observer,
    zookeeper_proxy: ZooKeeperProxy,
    queue_root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session, BODIES[:40])
    items = f"{queue_root}/jobs/items"
    await forbid_new_items(server_view, items)
    reads: list[Request] = []

    def counted(request: Request) -> bool:
        if request.opcode == Opcode.EXISTS and f"{queue_root}/jobs".encode() + b"\0" == request.body[4:]:
            reads.append(request)
        return False

    async def kept() -> bool:
        return "stay with this session" in caplog.text

    async with session.transaction() as tx:
        assert await tx.take(queue) is not None
        await eventually(kept, 30)
        zookeeper_proxy.hold_request(counted, times=None)
        await asyncio.sleep(3)
        assert len(reads) < 25  # each return is tried again after twice the time

        async def read() -> bool:
            return bool(reads)

        await eventually(read, 10)  # the pauses have up to 5 s
        await other.queue("jobs").configure(zq.QueueConfig(paused=True))
        await asyncio.sleep(0.1)  # a reading of the configuration may be in progress
        async with session.transaction() as waiting:
            assert await waiting.take(queue, timeout=0.5) is None
        await other.queue("jobs").configure(zq.QueueConfig(paused=False))
        await server_view.set_acl(items, OPEN_ACL_UNSAFE)
        async with other.transaction() as another:
            assert await another.take(other.queue("jobs"), timeout=30) is not None
        await tx.commit()


async def test_a_used_up_message_that_cannot_leave_its_bundle_is_tried_again_every_minute(
    open_session: Opener, server_view: Observer, queue_root: str, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TestClock()
    session = await open_session(clock=clock)
    queue = await bundled(session, BODIES[:40], zq.ConsumeTimes(1))
    (bundle,) = await stored.bundles()
    allowed = [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)]  # nothing can be created
    folders = [f"{queue_root}/jobs/{folder}" for folder in ("items", "dlq")]
    for folder in folders:
        await server_view.set_acl(folder, allowed)

    async def locked(times: int) -> bool:
        return caplog.text.count("its lock") == times

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if delivery.id == bundle.first:
            raise OSError("broken")

    async with session.listener(queue, handler, concurrency=40):
        await eventually(partial(locked, 1))
    clock.advance(60)
    await eventually(partial(locked, 2))
    for folder in folders:
        await server_view.set_acl(folder, OPEN_ACL_UNSAFE)
    clock.advance(60)
    await eventually(stored.is_empty)
    (dead,) = await queue.dead_letters.peek()
    assert (dead.id, dead.attempts) == (bundle.first, 1)
    assert "delivered 1 of 1 times without success; last error: OSError: broken" in dead.reason


async def test_a_bundle_that_no_taker_wants_is_unlocked_by_a_user_who_cannot_wake_others(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session, BODIES[:40])
    allowed = [make_acl("world", "anyone", read=True, create=True, delete=True, admin=True)]
    await server_view.set_acl(f"{queue_root}/jobs/items", allowed)
    claim = zookeeper_proxy.hold_request(CLAIM)
    async with session.transaction() as tx:
        taking = asyncio.ensure_future(tx.take(queue, timeout=None))
        await claim.struck()
        taking.cancel()
        claim.release()
        await asyncio.wait([taking])
    locks = f"{queue_root}/jobs/locks"

    async def unlocked() -> bool:
        return not await server_view.children(locks) and not await stored.records()

    await eventually(unlocked)
    assert [bundle.size for bundle in await stored.bundles()] == [40]
