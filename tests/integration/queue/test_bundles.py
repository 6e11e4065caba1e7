"""Bundles on a real server: their znodes, and each way in which a message leaves a bundle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.testing import Opcode
from tests.faults.account import multi_of
from tests.integration.queue.bundles import BODIES, NUMBER, Stored, bundled, drain, half_done
from tests.integration.queue.conftest import Locks, Opener, eventually, no_locks

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.bundles import Expire
    from tests.observer import Observer


# -- znodes


async def test_many_puts_share_few_znodes_and_are_taken_in_their_order(
    session: zq.QueueSession, stored: Stored
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    ids = await queue.put_many(BODIES)

    bundles = await stored.bundles()
    assert [bundle.size for bundle in bundles] == [50, 50]
    assert [(bundle.first, bundle.last) for bundle in bundles] == [(ids[0], ids[49]), (ids[50], ids[99])]
    assert await queue.size() == NUMBER

    async with session.transaction() as tx:
        messages = await tx.take_many(queue, NUMBER)
        assert [(message.id, message.value) for message in messages] == list(zip(ids, BODIES, strict=True))
        await tx.commit()
    assert await stored.is_empty()


async def test_puts_of_concurrent_tasks_share_a_znode(session: zq.QueueSession, stored: Stored) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    await asyncio.gather(*(queue.put(body) for body in BODIES))
    assert len(await stored.names()) < NUMBER / 4
    assert sorted(await drain(session, queue)) == sorted(BODIES)


async def test_few_puts_and_puts_with_options_are_stored_as_single_items(
    session: zq.QueueSession, stored: Stored
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    await queue.put_many(BODIES[:31])
    await queue.put_many(BODIES, key="k")
    await queue.put_many([b"x" * 1025] * 40)
    assert await stored.bundles() == []


async def test_a_put_with_an_option_keeps_its_place_between_bundled_ones(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=64))
    async with session.transaction() as tx:
        for body in BODIES[:40]:
            tx.put(queue, body)
        tx.put(queue, b"between", key="k")
        for body in BODIES[40:80]:
            tx.put(queue, body)
        await tx.commit()
    assert await drain(session, queue) == [*BODIES[:40], b"between", *BODIES[40:80]]


async def test_a_queue_without_bundles_stores_items_as_before(session: zq.QueueSession, stored: Stored) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(bundle=1))
    for _ in range(3):
        await queue.put_many(BODIES)
    assert len(await stored.singles()) == 3 * NUMBER


async def test_a_new_queue_makes_bundles_once_many_messages_are_put_together(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored
) -> None:
    queue = session.queue("jobs")
    for body in BODIES[:40]:
        await queue.put(body)
    assert "requires" not in await stored.configuration()  # programs without bundles can still use the queue
    await queue.put_many(BODIES)
    await eventually(lambda: _requires_bundles(stored))
    await queue.put_many(BODIES)
    await other.queue("jobs").put_many(BODIES)
    assert [bundle.size for bundle in await stored.bundles()] == [50] * 4
    assert await drain(session, queue) == BODIES[:40] + 3 * BODIES


async def _requires_bundles(stored: Stored) -> bool:
    return "requires" in await stored.configuration()


async def test_a_session_survives_a_failure_to_allow_bundles_and_makes_them_later(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue, base = session.queue("jobs"), f"{queue_root}/jobs"
    await queue.put(b"first")
    right = await server_view.get(base)
    held = zookeeper_proxy.hold_request(multi_of(b'"requires"'))
    await queue.put_many(BODIES)
    await held.struck()
    await server_view.set(base, b"{")  # the held change will be refused, and the configuration does not decode
    held.release()
    with pytest.raises(zq.PayloadError):
        await queue.put(b"refused")
    queue_state = session._runtime.queue_state("jobs")
    await queue_state.allow_bundles()  # must not raise, because the session runs it as a task
    await server_view.set(base, right)
    for _ in range(2):
        await queue.put_many(BODIES)
        await eventually(lambda: _requires_bundles(stored))
    assert await stored.bundles() != []


async def test_a_user_who_may_not_change_the_configuration_stores_single_items(
    session: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"first")
    allowed = [make_acl("world", "anyone", read=True, create=True, delete=True, admin=True)]
    await server_view.set_acl(f"{queue_root}/jobs", allowed)
    for _ in range(3):
        await session.queue("jobs").put_many(BODIES)
    assert await stored.bundles() == []
    assert len(await stored.singles()) == 3 * NUMBER + 1


@pytest.mark.parametrize(
    "setting",
    [
        zq.QueueConfig(ordered=True),
        zq.QueueConfig(collapse=True),
        zq.QueueConfig(max_size=10),
        zq.QueueConfig(affinity="producer"),
    ],
)
async def test_settings_that_exclude_bundles_turn_them_off(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored, setting: zq.QueueConfig
) -> None:
    queue = await bundled(session)
    await other.queue("jobs").configure(setting)
    assert len(await stored.singles()) == NUMBER
    assert "requires" not in await stored.configuration()
    assert await drain(session, queue) == BODIES
    with pytest.raises(ConfigConflictError, match=r"jobs.*excludes bundles"):
        await queue.configure(zq.QueueConfig(bundle=64))


async def test_a_setting_that_excludes_bundles_is_refused_while_a_consumer_holds_one(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = await bundled(session)
    async with session.transaction() as tx:
        await tx.take(queue)
        with pytest.raises(ConfigConflictError, match=r"jobs.*consumers.*hold bundles.*again in a moment"):
            await other.queue("jobs").configure(zq.QueueConfig(max_size=1000))
    await other.queue("jobs").configure(zq.QueueConfig(max_size=1000))
    assert (await queue.configuration()).max_size == 1000


async def test_groups_keep_their_order_beside_bundles(
    session: zq.QueueSession, other: zq.QueueSession, stored: Stored
) -> None:
    queue = await bundled(session)
    groups = {f"group {number}": [b"%d" % step for step in range(10)] for number in range(5)}
    for step in range(10):
        for group, bodies in groups.items():
            await queue.put(bodies[step], group=group)
    await queue.put_many(BODIES)
    assert len(await stored.bundles()) == 4

    handled: dict[str | None, list[bytes]] = {}
    running: set[str | None] = set()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        group = delivery.group
        if group is not None:
            assert group not in running
            running.add(group)
            await asyncio.sleep(0.005)
            running.remove(group)
        handled.setdefault(group, []).append(delivery.value)

    listeners = [each.listener(each.queue("jobs"), handler, concurrency=8) for each in (session, other)]
    async with asyncio.TaskGroup() as tasks:
        for listener in listeners:
            tasks.create_task(listener.run())
        await eventually(stored.is_empty)
        for listener in listeners:
            listener.stop()
    assert {group: values for group, values in handled.items() if group is not None} == groups
    assert sorted(handled[None]) == sorted(2 * BODIES)


@pytest.mark.parametrize("size", [0, 65, -1])
async def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(zq.InvalidOptionError, match="bundle"):
        zq.QueueConfig(bundle=size)


async def test_a_program_that_lacks_a_required_feature_refuses_the_queue(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"x")
    await server_view.set(f"{queue_root}/jobs", b'{"requires": ["bundles", "time travel"]}')
    with pytest.raises(zq.PayloadError, match=r"time travel.*update this program if a newer one has stored"):
        await other.queue("jobs").put(b"y")


# -- the ends of messages


async def test_messages_end_one_by_one_in_any_order(session: zq.QueueSession, stored: Stored) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as first, session.transaction() as second:
        await first.take_many(queue, 20)
        await second.take_many(queue, 20)
        await second.commit()
        (record,) = await stored.records()
        assert record.done == ((1 << 20) - 1) << 20
        await first.commit()
    assert await stored.is_empty()


async def test_only_unfinished_messages_return_when_their_holder_is_gone(
    open_session: Opener, other: zq.QueueSession, expire: Expire
) -> None:
    await bundled(other, BODIES[:40])
    await half_done(open_session, expire)
    assert await drain(other, other.queue("jobs"), 2) == BODIES[10:40]


async def test_a_message_rolled_back_without_a_delay_is_delivered_next(session: zq.QueueSession) -> None:
    queue = await bundled(session, BODIES[:40], zq.AtLeastOnce(backoff=zq.Fixed(0)))
    async with session.transaction() as tx:
        message = await tx.take(queue)
        assert message is not None
        assert (message.value, message.attempt) == (BODIES[0], 1)
        await tx.rollback()
    async with session.transaction() as tx:
        message = await tx.take(queue)
        assert message is not None
        assert (message.value, message.attempt) == (BODIES[0], 2)
        await tx.commit()
    assert await drain(session, queue) == BODIES[1:40]


async def test_a_failed_message_is_delayed_alone(session: zq.QueueSession, stored: Stored) -> None:
    queue = await bundled(session, BODIES[:40], zq.AtLeastOnce(backoff=zq.Fixed(5)))
    async with session.transaction() as tx:
        assert await tx.take(queue) is not None
        await tx.rollback()
    assert len(await stored.singles()) >= 1

    async def alone_is_delayed() -> bool:
        stats = await queue.stats()  # messages that are returned during a reading count twice in it
        return (stats.size, stats.retrying) == (40, 1)

    await eventually(alone_is_delayed)
    values = await drain(session, queue, expected=40)
    assert values[0] == BODIES[1]
    assert sorted(values) == sorted(BODIES[:40])
    assert await stored.is_empty()


async def test_a_lone_consumer_keeps_the_order_while_messages_at_hand_are_returned(session: zq.QueueSession) -> None:
    queue = await bundled(session)
    values: list[bytes] = []
    while len(values) < 40:
        async with session.transaction() as tx:
            if (message := await tx.take(queue, timeout=1)) is not None:
                values.append(message.value)
            await tx.commit()
        # Up to the time for which a session keeps messages without a taker.
        await asyncio.sleep(0.01 * (len(values) % 14))
    assert values == BODIES[:40]


async def test_a_message_that_keeps_failing_becomes_a_dead_letter(session: zq.QueueSession, stored: Stored) -> None:
    queue = await bundled(session, BODIES[:40], zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    attempts: list[int] = []
    while len(attempts) < 3:
        async with session.transaction() as tx:
            message = await tx.take(queue)
            assert message is not None
            assert message.value == BODIES[0]
            attempts.append(message.attempt)
            await tx.rollback()
    assert attempts == [1, 2, 3]
    assert await drain(session, queue) == BODIES[1:40]
    (letter,) = await queue.dead_letters.peek()
    assert (letter.value, letter.attempts) == (BODIES[0], 3)
    assert await stored.is_empty()


async def test_a_rejected_message_becomes_a_dead_letter_and_its_neighbours_are_finished(
    session: zq.QueueSession, stored: Stored
) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as tx:
        messages = await tx.take_many(queue, 40)
        tx.reject(messages[7], "broken")
        await tx.commit()
    (letter,) = await queue.dead_letters.peek()
    assert (letter.id, letter.value, letter.reason) == (messages[7].id, BODIES[7], "broken")
    assert await stored.is_empty()
    await queue.dead_letters.redrive()
    assert await drain(session, queue) == [BODIES[7]]


async def test_a_transaction_of_several_bundles_is_applied_whole_or_not_at_all(
    session: zq.QueueSession, stored: Stored, server_view: Observer, queue_root: str
) -> None:
    queue = await bundled(session)
    async with session.transaction() as tx:
        await tx.take_many(queue, NUMBER)
        tx.put(session.queue("results"), b"done")
        (lost, _) = await stored.bundles()
        await server_view.set(f"{queue_root}/jobs/meta/bundle-{lost.id}", b'{"claim":"x"}')
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()
    assert await session.queue("results").size() == 0
    assert sorted(await drain(session, queue)) == sorted(BODIES)


# -- sharing


async def test_a_slow_handler_does_not_hold_back_other_messages_of_its_bundle(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as slow:
        assert await slow.take(queue) is not None
        async with asyncio.timeout(10):
            async with other.transaction() as tx:
                first = await tx.take(other.queue("jobs"), timeout=5)
                assert first is not None
                await tx.commit()
        assert sorted([first.value, *await drain(other, other.queue("jobs"), 2)]) == sorted(BODIES[1:40])
        await slow.commit()
    assert await queue.size() == 0


async def test_an_untouched_bundle_is_released_as_a_whole(session: zq.QueueSession, locks: Locks) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as tx:
        await tx.take_many(queue, 40)
        await tx.rollback(delay=0)
    await no_locks(locks)
    assert await queue.size() == 40


async def test_messages_are_shared_among_sessions_and_each_is_finished_once(
    open_session: Opener, stored: Stored
) -> None:
    sessions = [await open_session() for _ in range(4)]
    bodies = [b"%d" % number for number in range(2000)]
    await bundled(sessions[0], bodies)
    taken: list[bytes] = []

    async def work(session: zq.QueueSession) -> None:
        async with session.queue("jobs").consume(until_idle=1) as deliveries:
            taken.extend([delivery.value async for delivery in deliveries])

    await asyncio.gather(*(work(session) for session in sessions for _ in range(4)))
    assert sorted(taken) == sorted(bodies)
    assert await stored.is_empty()


async def test_a_pause_keeps_messages_at_hand_from_takers(session: zq.QueueSession, other: zq.QueueSession) -> None:
    queue = await bundled(session, BODIES[:40])
    async with session.transaction() as tx:
        assert await tx.take(queue) is not None
        await other.queue("jobs").configure(zq.QueueConfig(paused=True))
        await asyncio.sleep(0.5)
        async with session.transaction() as waiting:
            assert await waiting.take(queue, timeout=0.5) is None
        await tx.commit()
    await other.queue("jobs").configure(zq.QueueConfig(paused=False))
    assert sorted(await drain(session, queue)) == sorted(BODIES[1:40])


@pytest.mark.parametrize("lose", [pytest.param("lose_before", marks=pytest.mark.slow), "lose_after"])
async def test_no_message_is_lost_or_repeated_when_replies_are_lost(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, stored: Stored, lose: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    queue = await bundled(session)
    values: list[bytes] = []
    for number in range(NUMBER):
        async with session.transaction() as tx:
            if number % 5 == 0:
                getattr(zookeeper_proxy, lose)(Opcode.MULTI)
            message = await tx.take(queue, timeout=20)
            assert message is not None
            if number % 7 == 0:
                getattr(zookeeper_proxy, lose)(Opcode.MULTI)
            await tx.commit()
            values.append(message.value)
    assert sorted(values) == sorted(BODIES)
    assert await stored.is_empty()
