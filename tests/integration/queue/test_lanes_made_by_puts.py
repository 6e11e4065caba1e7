"""The first put to a lane creates the lane: opening a queue creates no lanes, and consumers find each new lane."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import Fault, Request, ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

#: The maximum number of lanes of a configuration: 1,024 shards for each of four priorities.
WIDEST = json.dumps({"shards": 1024, "width": 1024, "priorities": {"1": {}, "2": {}, "3": {}}}).encode()


def bodies(number: int) -> list[bytes]:
    return [b"%05d" % each for each in range(number)]


def creates_lanes(request: Request) -> bool:
    """Match the multi that creates lanes."""
    return request.opcode == Opcode.MULTI and b"/lanes/" in request.body and b"/item-" not in request.body


class Lanes:
    """The lanes of the queue ``jobs``, read by an independent client."""

    def __init__(self, view: Observer, root: str) -> None:
        self._view = view
        self.base = f"{root}/jobs"

    async def __call__(self) -> list[str]:
        return await self._view.children(f"{self.base}/lanes")

    async def sizes(self) -> dict[str, int]:
        """Return the number of items of each existing lane, including the plain lane."""
        lanes = ["items", *(f"lanes/{name}" for name in await self())]
        return {lane: len(await self._view.children(f"{self.base}/{lane}")) for lane in lanes}

    async def configure(self, config: bytes) -> None:
        """Store a configuration without creating anything else, as an operator does with zkCli."""
        await self._view.set(self.base, config)


@pytest.fixture
def lanes(server_view: Observer, queue_root: str) -> Lanes:
    return Lanes(server_view, queue_root)


@asynccontextmanager
async def listening(session: zq.QueueSession) -> AsyncIterator[list[bytes]]:
    """Run a listener of ``jobs``, and yield the list of the bodies that it has handled."""
    handled: list[bytes] = []

    async def note(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async with session.listener(session.queue("jobs"), note):
        yield handled


async def until_handled(handled: list[bytes], expected: list[bytes]) -> None:
    async def complete() -> bool:
        return len(handled) >= len(expected)

    await eventually(complete)
    assert Counter(handled) == Counter(expected)


def hold_lanes(proxy: ZooKeeperProxy, held: str) -> Fault:
    """Hold the multi that creates lanes, or its reply."""
    return proxy.hold_request(creates_lanes) if held == "request" else proxy.hold_reply(creates_lanes)


async def drained(session: zq.QueueSession) -> list[bytes]:
    async with session.queue("jobs").consume(until_idle=0) as deliveries:
        return [delivery.value async for delivery in deliveries]


# -- the cost of opening a queue


async def test_only_puts_create_lanes_in_the_widest_queue(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    await session.queue("jobs").put(b"first")
    await take_one(session)
    await lanes.configure(WIDEST)
    jobs = other.queue("jobs")
    async with listening(other) as handled:
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=0) is None
        assert (await jobs.stats()).size == await jobs.size() == 0
        assert await jobs.peek(3) == []
        assert await lanes() == []
        await jobs.put(b"plain")
        await jobs.put(b"urgent", priority=2)
        await until_handled(handled, [b"plain", b"urgent"])
    made = await lanes()
    assert len(made) <= 2
    assert [name for name in made if name.startswith("p130")]


async def test_a_batch_of_puts_creates_its_lanes_in_a_few_requests(
    open_session: Opener, lanes: Lanes, zookeeper_proxy: ZooKeeperProxy
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=512))
    before = zookeeper_proxy.requests[Opcode.MULTI]
    await jobs.put_many(bodies(512))
    assert zookeeper_proxy.requests[Opcode.MULTI] - before < 20
    assert len(await lanes()) == 511
    assert set((await lanes.sizes()).values()) == {1}
    assert Counter(await drained(session)) == Counter(bodies(512))


async def test_concurrent_puts_of_many_sessions_to_the_same_new_lanes_succeed(
    open_session: Opener, lanes: Lanes
) -> None:
    sessions = [await open_session() for _ in range(6)]
    await sessions[0].queue("jobs").configure(zq.QueueConfig(shards=64, bundle=1))

    async def produce(session: zq.QueueSession, number: int) -> None:
        jobs = session.queue("jobs")
        await asyncio.gather(*(jobs.put(b"%d %d" % (number, n)) for n in range(40)))
        async with session.transaction() as tx:
            for n in range(40, 60):
                tx.put(jobs, b"%d %d" % (number, n), priority=n % 3)
        for n in range(60, 70):
            await jobs.put(b"%d %d" % (number, n), group=f"group {n}")

    await asyncio.gather(*(produce(session, number) for number, session in enumerate(sessions)))
    expected = [b"%d %d" % (number, n) for number in range(6) for n in range(70)]
    assert sum((await lanes.sizes()).values()) == len(expected)
    assert Counter(await drained(sessions[-1])) == Counter(expected)


async def test_one_batch_of_a_thousand_groups_creates_all_their_lanes(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=1024))
    async with session.transaction() as tx:
        for body in bodies(1000):
            tx.put(jobs, body, group=body.decode())
    assert await jobs.size() == 1000
    assert Counter(await drained(other)) == Counter(bodies(1000))


async def test_concurrent_puts_of_a_group_keep_their_order_while_their_lane_is_created(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=64))
    for group in ("a", "b", "c"):
        before = asyncio.create_task(jobs.put(b"elsewhere"))
        await asyncio.gather(*(jobs.put(body, group=group) for body in bodies(50)))
        await before
    order: dict[str | None, list[bytes]] = {}
    async with other.queue("jobs").consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            order.setdefault(delivery.group, []).append(delivery.value)
    assert [order[group] for group in ("a", "b", "c")] == [bodies(50)] * 3


# -- consumers find new lanes


async def test_an_idle_consumer_receives_messages_put_to_each_new_lane(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=16))
    await jobs.put(b"urgent", priority=7)
    await take_one(session)
    made = await lanes()
    async with listening(other) as handled:
        await asyncio.sleep(0.3)  # long enough to be idle on most machines; the test is correct either way
        expected: list[bytes] = []
        for body in bodies(32):
            expected.append(body)
            await jobs.put(body, priority=7 if int(body) % 2 else 0)
            await until_handled(handled, expected)
    assert len(await lanes()) > len(made) + 12


async def test_a_take_without_waiting_finds_a_message_that_another_session_put_to_a_new_lane(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, other_jobs = session.queue("jobs"), other.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    async with other.transaction() as tx:
        assert await tx.take(other_jobs, timeout=0) is None
    for body in bodies(8):
        await jobs.put(body)
        async with other.transaction() as tx:
            message = await tx.take(other_jobs, timeout=0)
            assert message is not None
            assert message.value == body


async def test_a_busy_consumer_takes_an_urgent_message_of_a_new_lane_next(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    await jobs.put(b"urgent", priority=-3)
    await take_one(other)  # the only consumer, so it leaves no message to another one
    await jobs.put_many(bodies(40))
    order: list[bytes] = []

    async def take(number: int) -> None:
        order.extend([(await take_one(other)).value for _ in range(number)])

    await take(4)
    for number in range(8):  # to all lanes of the priority, only one of which exists
        await jobs.put(b"urgent %d" % number, priority=-3)
    await take(44)
    urgent = [at for at, body in enumerate(order) if body.startswith(b"urgent")]
    assert len(urgent) == 8
    assert max(urgent) < 16  # messages that were claimed before come first


async def test_messages_put_to_new_lanes_while_a_consumer_lists_them_are_found(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))

    def lists_a_lane(request: Request) -> bool:
        return request.opcode in (Opcode.GET_CHILDREN, Opcode.GET_CHILDREN2) and b"/lanes/s" in request.body

    for hold in (zookeeper_proxy.hold_request, zookeeper_proxy.hold_reply):
        for nth in (1, 4, 12):
            listing = hold(lists_a_lane, nth=nth)
            idle = await open_session(zookeeper_proxy.hosts)
            async with listening(idle) as handled:
                await listing.struck()
                await jobs.put_many(bodies(16))
                listing.release()
                await until_handled(handled, bodies(16))


async def test_messages_put_to_new_lanes_while_a_consumer_is_disconnected_are_found(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    idle = await open_session(zookeeper_proxy.hosts)
    async with listening(idle) as handled:
        expected: list[bytes] = []
        for body in bodies(4):
            zookeeper_proxy.refuse()
            zookeeper_proxy.reset_connections()
            await jobs.put(body)
            expected.append(body)
            await zookeeper_proxy.listen()
            await until_handled(handled, expected)


# -- a lane or a queue is deleted


async def test_the_next_puts_recreate_lanes_that_an_operator_deleted(
    session: zq.QueueSession, other: zq.QueueSession, lanes: Lanes, server_view: Observer
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=4))
    async with listening(other) as handled:
        await jobs.put_many(bodies(8))
        await until_handled(handled, bodies(8))
        for name in await lanes():
            await server_view.delete_at_once(f"{lanes.base}/lanes/{name}")
        await jobs.put_many(bodies(8))
        await until_handled(handled, bodies(8) * 2)
        await server_view.delete_at_once(f"{lanes.base}/lanes")
        await jobs.put_many(bodies(8))
        await until_handled(handled, bodies(8) * 3)


async def test_puts_to_a_queue_recreated_with_fewer_lanes_go_to_the_lanes_of_its_consumers(
    session: zq.QueueSession, other: zq.QueueSession, open_session: Opener, lanes: Lanes, server_view: Observer
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=8))
    await jobs.put_many(bodies(8))
    version = await server_view.version(lanes.base)
    async with listening(other) as handled:
        await until_handled(handled, bodies(8))
        await server_view.delete_at_once(lanes.base)
        fresh = await open_session()
        await fresh.queue("jobs").configure(zq.QueueConfig(shards=2))
        # The same version as that of the deleted configuration, so that it does not distinguish them.
        while await server_view.version(lanes.base) < version:
            await server_view.set(lanes.base, await server_view.get(lanes.base))
        for body in bodies(8):
            await jobs.put(body)
        await fresh.queue("jobs").put(b"fresh")
        await until_handled(handled, [*bodies(8), *bodies(8), b"fresh"])
    assert await lanes() in ([], ["s1g0"])


# -- the request that creates lanes is lost


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_put_is_stored_once_when_the_request_that_creates_its_lane_is_lost(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, lanes: Lanes, when: str, times: int
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=64))
    lose = zookeeper_proxy.lose_before if when == "before" else zookeeper_proxy.lose_after
    fault = lose(creates_lanes, times=times)
    await jobs.put_many(bodies(32))
    assert len(fault.requests) in ((times,) if when == "before" else (1, times))
    assert sum((await lanes.sizes()).values()) == 32
    assert Counter(await drained(session)) == Counter(bodies(32))


@pytest.mark.parametrize("held", ["request", "reply"])
async def test_a_put_cancelled_while_its_lane_is_created_is_stored_once_or_not_at_all(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, lanes: Lanes, held: str
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=64))
    fault = hold_lanes(zookeeper_proxy, held)
    putting = asyncio.create_task(jobs.put_many([b"maybe", b"maybe"]))  # to two lanes; one may be the plain lane
    await fault.struck()
    putting.cancel()
    fault.release()
    with pytest.raises(asyncio.CancelledError):
        await putting
    await jobs.put(b"after")
    stored = await drained(session)
    assert stored.count(b"after") == 1
    assert stored.count(b"maybe") in {0, 2}
    assert sum((await lanes.sizes()).values()) == 0


@pytest.mark.parametrize("held", ["request", "reply"])
async def test_a_put_continues_in_the_next_session_when_its_session_ends_before_its_lane_exists(
    open_session: Opener,
    zookeeper_proxy: ZooKeeperProxy,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
    other: zq.QueueSession,
    held: str,
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=64))
    fault = hold_lanes(zookeeper_proxy, held)
    putting = asyncio.create_task(jobs.put_many([b"1", b"2"]))  # to two lanes; one may be the plain lane
    await fault.struck()
    disposition = asyncio.ensure_future(expire(session))
    await asyncio.sleep(0.1)
    fault.release()
    await disposition
    await putting
    assert sorted(await drained(other)) == [b"1", b"2"]


async def test_a_put_by_a_user_who_may_not_create_lanes_raises(
    session: zq.QueueSession, zookeeper: str, queue_root: str, lanes: Lanes
) -> None:
    owner = zq.Auth.digest("owner", "secret")
    async with zq.connect(zookeeper, root=f"{queue_root}/owned", auth=[owner]) as owned:
        await owned.queue("jobs").configure(zq.QueueConfig(shards=4))
    async with zq.connect(zookeeper, root=f"{queue_root}/owned") as unauthorized:
        with pytest.raises(zq.AccessDeniedError, match="queue 'jobs'"):
            await unauthorized.queue("jobs").put(b"1")
    del session, lanes
