"""Groups: ``group=`` at a put. A group is delivered one message at a time, in put order; groups run in parallel."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import Locks, Opener, eventually, no_locks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

pytestmark = pytest.mark.timeout(60)

AT_ONCE = zq.AtLeastOnce(backoff=zq.Fixed(0))


class Account:
    """The order in which the messages of each group were finished, and the deliveries that overlapped."""

    def __init__(self) -> None:
        self.finished: dict[str, list[int]] = defaultdict(list)
        self.handed: dict[str, list[int]] = defaultdict(list)
        self.out: dict[str, int] = defaultdict(int)
        self.most_groups_at_once = 0
        self.overlaps = 0

    async def handle(self, delivery: zq.Message[bytes], seconds: float = 0.0) -> None:
        group = delivery.group or ""
        self.overlaps += self.out[group] > 0
        self.out[group] += 1
        self.most_groups_at_once = max(self.most_groups_at_once, sum(count > 0 for count in self.out.values()))
        self.handed[group].append(int(delivery.value))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.out[group] -= 1

    def finish(self, delivery: zq.Message[bytes]) -> None:
        self.finished[delivery.group or ""].append(int(delivery.value))

    async def reached(self, count: int) -> None:
        """Wait until this many messages are finished."""

        async def finished() -> bool:
            return sum(map(len, self.finished.values())) >= count

        await eventually(finished, 30)


async def put_in_groups(session: zq.QueueSession, groups: int, each: int, queue: str = "jobs") -> None:
    """Put 0, 1, 2, … to each of several groups, awaiting each put of a group before the next."""

    async def put_group(group: int) -> None:
        for number in range(each):
            await session.queue(queue).put(b"%d" % number, group=f"customer {group}")

    await asyncio.gather(*(put_group(group) for group in range(groups)))


async def test_a_group_is_delivered_one_message_at_a_time_in_put_order_and_groups_in_parallel(
    session: zq.QueueSession, open_session: Opener, locks: Locks
) -> None:
    await put_in_groups(session, groups=5, each=20)
    account = Account()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await account.handle(delivery, 0.005)
        account.finish(delivery)

    sessions = [session, await open_session(), await open_session()]
    listeners = [opened.listener(opened.queue("jobs"), handler, concurrency=4) for opened in sessions]
    async with listeners[0], listeners[1], listeners[2]:
        await account.reached(100)
    assert account.finished == {f"customer {group}": list(range(20)) for group in range(5)}
    assert account.overlaps == 0
    assert account.most_groups_at_once > 1
    assert await session.queue("jobs").size() == 0
    await no_locks(locks)


async def test_a_retry_delays_its_own_group_only(session: zq.QueueSession, open_session: Opener) -> None:
    await put_in_groups(session, groups=3, each=6)
    account = Account()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await account.handle(delivery)
        if delivery.group == "customer 0" and delivery.value == b"2" and delivery.attempt < 3:
            raise zq.Retry(delay=0.2)
        account.finish(delivery)

    other = await open_session()
    listeners = [opened.listener(opened.queue("jobs"), handler, concurrency=4) for opened in (session, other)]
    async with listeners[0], listeners[1]:
        await account.reached(18)
    assert account.handed["customer 0"] == [0, 1, 2, 2, 2, 3, 4, 5]
    assert account.finished["customer 0"] == list(range(6))
    assert account.handed["customer 1"] == account.handed["customer 2"] == list(range(6))


async def test_another_consumer_continues_the_group_of_a_dead_holder_at_the_same_message(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire
) -> None:
    await put_in_groups(session, groups=1, each=4)
    async with session.transaction() as tx:
        assert (await tx.take(session.queue("jobs"))) is not None
    held = await session.transaction(autocommit=False).__aenter__()
    first = await held.take(session.queue("jobs"))
    assert first is not None
    assert first.value == b"1"
    async with other.transaction() as other_tx:
        assert await other_tx.take(other.queue("jobs")) is None  # the group is held
    await expire(session)
    values: list[bytes] = []
    async with other.queue("jobs").consume() as deliveries:
        async for delivery in deliveries:
            values.append(delivery.value)
            if len(values) == 3:
                break
    assert values == [b"1", b"2", b"3"]
    await held.rollback()


async def test_a_transaction_takes_and_commits_several_messages_of_a_group_together(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    await put_in_groups(session, groups=1, each=5)
    async with session.transaction() as tx:
        first = await tx.take(session.queue("jobs"))
        rest = await tx.take_many(session.queue("jobs"), 2)
        assert first is not None
        assert [message.value for message in (first, *rest)] == [b"0", b"1", b"2"]
        async with other.transaction() as other_tx:
            assert await other_tx.take(other.queue("jobs")) is None
        tx.put("sums", b"3")
    assert [message.value for message in await session.queue("jobs").peek()] == [b"3", b"4"]
    async with session.transaction(autocommit=False) as undone:
        assert len(await undone.take_many(session.queue("jobs"), 5)) == 2
        await undone.rollback(delay=0)
    assert await locks() == []
    async with other.transaction() as last_tx:
        assert [message.value for message in await last_tx.take_many(other.queue("jobs"), 5)] == [b"3", b"4"]


async def test_a_message_does_not_overtake_a_released_message_of_its_group_in_a_transaction(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    await put_in_groups(session, groups=1, each=3)
    with pytest.raises(zq.InvalidOptionError, match="overtake"):
        async with session.transaction() as tx:
            first, *_ = await tx.take_many(session.queue("jobs"), 3)
            tx.release(first)
    assert await session.queue("jobs").size() == 3
    async with session.transaction() as tx:
        first, second, third = await tx.take_many(session.queue("jobs"), 3, timeout=30)
        tx.release(second, delay=600)
        tx.release(third)
    async with session.transaction() as tx:
        assert await tx.take(session.queue("jobs")) is None  # the group waits for its retry
        clock.advance(600)
        assert [message.value for message in await tx.take_many(session.queue("jobs"), 2, timeout=30)] == [b"1", b"2"]


async def test_the_next_message_of_a_group_follows_after_a_dead_letter(session: zq.QueueSession) -> None:
    queue = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await put_in_groups(session, groups=1, each=4)
    handed: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        handed.append(delivery.value)
        if delivery.value == b"1":
            raise ValueError
        if delivery.value == b"2":
            raise zq.Reject("no")

    async def last() -> bool:
        return handed[-1:] == [b"3"]

    async with session.listener(queue, handler, concurrency=3):
        await eventually(last, 30)
    assert handed == [b"0", b"1", b"1", b"2", b"3"]
    assert [letter.value for letter in await queue.dead_letters.peek()] == [b"1", b"2"]
    assert await queue.size() == 0
    assert await queue.dead_letters.redrive() == 2
    async with session.transaction() as tx:
        remaining = await tx.take_many(queue, 3)
        assert [(message.value, message.group) for message in remaining] == [(b"1", "customer 0"), (b"2", "customer 0")]


async def test_a_holder_cannot_commit_a_group_whose_claims_were_released_by_force(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await put_in_groups(session, groups=1, each=3)
    with pytest.raises(zq.ClaimLostError):
        async with session.transaction() as tx:
            assert len(await tx.take_many(session.queue("jobs"), 2)) == 2
            assert await other.queue("jobs").admin.release_claims() == 1
            async with other.transaction() as winner:
                taken = await winner.take_many(other.queue("jobs"), 2, timeout=10)
                assert [message.value for message in taken] == [b"0", b"1"]
    async with session.transaction() as tx:
        assert [message.value for message in await tx.take_many(session.queue("jobs"), 5)] == [b"2"]


async def test_messages_with_and_without_a_group_share_a_queue(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    await queue.put(b"free")
    await queue.put_many([b"0", b"1"], group="a")
    await queue.put(b"free too")
    async with session.transaction() as tx:
        first = await tx.take(queue)
        assert first is not None
        second = await tx.take(queue)
        assert second is not None
        assert {first.value, second.value} == {b"free", b"0"}
        async with other.transaction() as other_tx:
            left = await other_tx.take_many(other.queue("jobs"), 5)
            assert [message.value for message in left] == [b"free too"]


async def test_stats_and_peek_show_groups(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.put_many([b"0", b"1"], group="a")
    await queue.put(b"2", group="b")
    await queue.put(b"3")
    async with session.transaction() as tx:
        await tx.take(queue)
        stats = await queue.stats()
        assert (stats.size, stats.groups, stats.groups_held) == (4, 2, 1)
    assert [message.group for message in await queue.peek()] == ["a", "b", None]


async def test_purging_empties_groups_but_keeps_held_messages(session: zq.QueueSession, locks: Locks) -> None:
    queue = session.queue("jobs", policy=AT_ONCE)
    await put_in_groups(session, groups=3, each=3)
    async with session.transaction() as tx:
        assert await tx.take(queue) is not None
        assert await queue.purge() == 6
        assert await queue.size() == 3
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue) is not None
        await tx.rollback(delay=60)
    assert await queue.purge() == 2
    assert await queue.size() == 0
    assert await locks() == []


@pytest.mark.parametrize("contradiction", [{"priority": 1}, {"delay": 1}, {"priority": -3, "delay": 0.5}])
async def test_options_that_contradict_the_order_of_a_group_are_refused(
    session: zq.QueueSession, contradiction: dict[str, float]
) -> None:
    with pytest.raises(zq.InvalidOptionError, match="contradicts"):
        await session.queue("jobs").put(b"1", group="a", **contradiction)  # type: ignore[arg-type]
    with pytest.raises(zq.InvalidOptionError):
        await session.queue("jobs").put(b"1", group="")
    assert not await session.queue("jobs").exists()
