"""Queues with several lanes: consumers find each message, even if the number of lanes changes meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode
from tests.integration.queue.conftest import Locks, Opener, eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.observer import Observer


class Lanes:
    """The lanes of a queue, read by an independent client."""

    def __init__(self, view: Observer, root: str, queue: str = "jobs") -> None:
        self._view = view
        self._base = f"{root}/{queue}"

    async def names(self) -> list[str]:
        return ["items", *(f"lanes/{name}" for name in await self._view.children(f"{self._base}/lanes"))]

    async def sizes(self) -> dict[str, int]:
        return {lane: len(await self._view.children(f"{self._base}/{lane}")) for lane in await self.names()}

    async def total(self) -> int:
        return sum((await self.sizes()).values())


@pytest.fixture
def lanes(server_view: Observer, queue_root: str) -> Lanes:
    return Lanes(server_view, queue_root)


def bodies(number: int) -> list[bytes]:
    return [b"%05d" % each for each in range(number)]


async def drained(queue: zq.Queue[bytes], until_idle: float = 0) -> list[bytes]:
    """Consume the waiting messages."""
    async with queue.consume(until_idle=until_idle) as deliveries:
        return [delivery.value async for delivery in deliveries]


async def test_puts_are_spread_over_all_lanes_and_each_is_consumed_once(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8, bundle=1))
    await jobs.put_many(bodies(400))
    await asyncio.gather(*(jobs.put(b"single") for _ in range(40)))
    sizes = await lanes.sizes()
    assert len(sizes) == 8
    assert min(sizes.values()) >= 40
    assert sum(sizes.values()) == await jobs.size() == 440
    assert Counter(await drained(other.queue("jobs"))) == Counter([*bodies(400), *[b"single"] * 40])
    assert await lanes.total() == 0
    assert await locks() == []


async def test_the_number_of_lanes_changes_while_sessions_put_and_take(
    open_session: Opener, session: zq.QueueSession, lanes: Lanes, locks: Locks
) -> None:
    producers = [await open_session() for _ in range(2)]
    consumers = [await open_session() for _ in range(3)]
    expected = 3 * 400 + 24
    taken: list[bytes] = []
    done = asyncio.Event()

    async def produce(producer: zq.QueueSession, part: Sequence[bytes]) -> None:
        jobs = producer.queue("jobs")
        for start in range(0, len(part), 5):
            await asyncio.gather(*(jobs.put(body) for body in part[start : start + 5]))

    async def note(delivery: zq.Delivery[bytes]) -> None:
        taken.append(delivery.value)
        if len(taken) >= expected:
            done.set()

    async def reconfigure() -> None:
        for shards in (8, 3, 12):
            await asyncio.sleep(0.1)
            await session.queue("jobs").configure(zq.QueueConfig(shards=shards))

    everything = bodies(expected)
    listeners = [consumer.listener(consumer.queue("jobs"), note, concurrency=8) for consumer in consumers]
    async with listeners[0], listeners[1], listeners[2], asyncio.timeout(90):
        await asyncio.gather(
            produce(producers[0], everything[:400]),
            produce(producers[1], everything[400:800]),
            produce(producers[1], everything[800:1200]),
            reconfigure(),
        )
        await produce(producers[0], everything[1200:])  # the first put to a lane creates it
        await done.wait()
    assert Counter(taken) == Counter(everything)
    assert await lanes.total() == 0
    assert len(await lanes.names()) == 12
    assert await locks() == []


async def test_a_session_that_knew_fewer_lanes_puts_to_the_new_ones_at_once(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    jobs, old = session.queue("jobs"), other.queue("jobs")
    await old.put_many(bodies(8))
    await jobs.configure(zq.QueueConfig(shards=8))
    await old.put_many(bodies(64))
    async with other.transaction() as tx:
        for body in bodies(8):
            tx.put(old, body)
    sizes = await lanes.sizes()
    assert [size for lane, size in sizes.items() if lane != "items"] == [9] * 7
    assert sizes["items"] == 8 + 9


async def test_a_session_that_knew_fewer_lanes_finds_the_messages_of_the_new_ones(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, old = session.queue("jobs"), other.queue("jobs")
    await jobs.put(b"first")
    assert (await take_one(other)).value == b"first"
    await jobs.configure(zq.QueueConfig(shards=8))
    await jobs.put_many(bodies(7))
    for _ in range(7):  # takes that do not wait, so one listing must find it
        async with other.transaction() as tx:
            assert await tx.take(old, timeout=0) is not None
    assert await jobs.size() == 0


async def test_an_idle_consumer_that_knew_fewer_lanes_notices_the_new_ones(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    async with other.queue("jobs").consume() as deliveries:
        assert (await anext(deliveries)).value == b"first"
        await jobs.configure(zq.QueueConfig(shards=8))
        await jobs.put_many(bodies(7))  # the consumer is not idle, so no watch reports them
        async with asyncio.timeout(30):
            values = [(await anext(deliveries)).value for _ in range(7)]
        assert Counter(values) == Counter(bodies(7))
        following = asyncio.create_task(anext(deliveries))
        await asyncio.sleep(0.1)
        await jobs.configure(zq.QueueConfig(shards=16))
        for number in range(24):  # now it is idle
            await jobs.put(b"%d" % number)
            async with asyncio.timeout(30):
                assert (await following).value == b"%d" % number
            following = asyncio.create_task(anext(deliveries))
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following


async def test_lanes_that_receive_no_more_puts_are_still_drained(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    await jobs.put_many(bodies(80))
    await jobs.configure(zq.QueueConfig(shards=2))
    before = await lanes.sizes()
    await jobs.put_many(bodies(20))
    grown = {lane for lane, size in (await lanes.sizes()).items() if size > before[lane]}
    assert grown == {"items", "lanes/s1g0"}
    assert len(await drained(other.queue("jobs"))) == 100
    assert await lanes.total() == 0


async def test_an_idle_consumer_is_woken_by_a_put_to_any_lane(session: zq.QueueSession, other: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    loop = asyncio.get_running_loop()
    handled: asyncio.Queue[float] = asyncio.Queue()

    async def note(_: zq.Delivery[bytes]) -> None:
        handled.put_nowait(loop.time())

    waits: list[float] = []
    async with other.listener(other.queue("jobs"), note):
        await asyncio.sleep(0.3)
        # Each lane must be quick once. It is repeated, since the machine may stall.
        while max(min(waits[lane::8], default=1) for lane in range(8)) >= 0.25:
            assert len(waits) < 160, waits
            start = loop.time()
            await jobs.put(b"1")
            waits.append(await asyncio.wait_for(handled.get(), 30) - start)
            await asyncio.sleep(0.02)


async def test_messages_put_to_several_lanes_while_the_watches_are_set_are_all_found(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    arming = zookeeper_proxy.hold_request(Opcode.ADD_WATCH)
    idle = await open_session(zookeeper_proxy.hosts)
    handled: list[bytes] = []

    async def note(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async with idle.listener(idle.queue("jobs"), note):
        await arming.struck()  # it has found every lane empty, and has no watches yet
        await jobs.put_many(bodies(16))
        arming.release()

        async def all_handled() -> bool:
            return len(handled) == 16

        await eventually(all_handled)


async def test_messages_of_a_single_lane_are_delivered_in_the_order_of_their_puts(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=1))
    await jobs.put_many(bodies(300))
    assert await drained(jobs) == bodies(300)


async def test_retries_and_dead_letters_work_in_every_lane(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0.1)))
    await jobs.configure(zq.QueueConfig(shards=4))
    ids = await jobs.put_many(bodies(12))
    attempts: Counter[str] = Counter()

    async def fail(delivery: zq.Delivery[bytes]) -> None:
        attempts[delivery.id] += 1
        raise ValueError

    async with other.listener(other.queue("jobs"), fail, concurrency=4):

        async def dead() -> bool:
            return await jobs.dead_letters.size() == 12

        await eventually(dead)
    assert attempts == dict.fromkeys(ids, 2)
    assert await lanes.total() == 0
    assert await jobs.dead_letters.redrive() == 12
    assert all(size == 3 for size in (await lanes.sizes()).values())
    assert Counter(await drained(jobs)) == Counter(bodies(12))


async def test_redrive_by_a_session_that_knew_more_lanes_uses_the_current_lanes(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    jobs, old = session.queue("jobs"), other.queue("jobs")
    await old.configure(zq.QueueConfig(shards=4))
    await old.put_many(bodies(8))
    async with other.transaction() as tx:
        for message in await tx.take_many(old, 8):
            tx.reject(message, "no")
    await jobs.configure(zq.QueueConfig(shards=1))
    assert await old.dead_letters.redrive() == 8
    sizes = await lanes.sizes()
    assert sizes.pop("items") == 8
    assert not any(sizes.values())


async def test_administration_reads_every_lane(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(60)))
    await jobs.configure(zq.QueueConfig(shards=8))
    ids = await jobs.put_many(bodies(80))
    assert Counter(message.id for message in await jobs.peek(100)) == Counter(ids)
    assert len(await jobs.peek(5)) == 5
    block = other.transaction(autocommit=False)
    tx = await block.__aenter__()
    held = await tx.take_many(other.queue("jobs"), 20)
    assert len(held) == 20
    async with session.transaction(autocommit=False) as failing:
        assert len(await failing.take_many(jobs, 10)) == 10
        await failing.rollback()
    stats = await jobs.stats()
    assert (stats.size, stats.in_flight, stats.delayed, stats.consumers) == (80, 20, 10, 2)
    assert stats.oldest is not None
    assert await jobs.admin.release_claims() == 30
    assert await locks() == []
    with pytest.raises(zq.ClaimLostError):
        await tx.commit()
    await block.__aexit__(None, None, None)
    assert (await jobs.stats()).in_flight == 0
    async with session.transaction(autocommit=False) as holding:
        assert len(await holding.take_many(jobs, 3)) == 3
        assert await jobs.purge() == 77
        assert await lanes.total() == 3
        await holding.commit()
    assert await lanes.total() == 0


async def test_a_transaction_spans_queues_with_lanes(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    left, right = session.queue("left"), session.queue("right")
    await left.configure(zq.QueueConfig(shards=3))
    await right.configure(zq.QueueConfig(shards=5))
    await left.put_many(bodies(9))
    async with session.transaction() as tx:
        for message in await tx.take_many(left, 9):
            tx.put(right, message.value)
            tx.put("plain", message.value)
        assert await right.size() == 0
    for name, shards, size in (("left", 3, 0), ("right", 5, 9), ("plain", 1, 9)):
        sizes = await Lanes(server_view, queue_root, name).sizes()
        assert (len(sizes), sum(sizes.values())) == (shards, size)
    assert min((await Lanes(server_view, queue_root, "right").sizes()).values()) >= 1


async def test_a_queue_refuses_more_lanes_than_its_consumers_can_list(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    wide = session.queue("jobs")
    await wide.configure(zq.QueueConfig(shards=1024))
    for priority in (1, 2, 3):
        await wide.put(b"x", priority=priority)
    with pytest.raises(zq.InvalidOptionError, match=r"queue 'jobs': priority=4 would make 5120 lanes.*\(0, 1, 2, 3\)"):
        await other.queue("jobs").put(b"refused", priority=4)
    assert await lanes.total() == 3
    await wide.put(b"x", priority=2)
    narrow = session.queue("narrow")
    for priority in range(10):
        await narrow.put(b"x", priority=priority)
    with pytest.raises(zq.InvalidOptionError, match=r"queue 'narrow': .*use at most 409 shards"):
        await narrow.configure(zq.QueueConfig(shards=410))
    await narrow.configure(zq.QueueConfig(shards=409))
