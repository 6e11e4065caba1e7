"""Several sessions on one queue: each message is delivered once, with few failed claims and without polling."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.integration.queue.conftest import Locks, Opener, eventually, no_locks, take_one
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.claimer import ClaimCounts
    from tests.observer import Observer


def counts(session: zq.QueueSession, queue: str = "jobs") -> ClaimCounts:
    runtime = session._runtime
    return runtime.dispatcher(runtime.queue_state(queue)).counts


async def registered(view: Observer, root: str, number: int) -> None:
    """Wait until this many sessions take from the queue."""

    async def all_registered() -> bool:
        return len(await view.children(f"{root}/jobs/consumers")) == number

    await eventually(all_registered)


async def wait_for_quiet(proxy: ZooKeeperProxy) -> int:
    """Wait until no listing has happened for half a second; return the number of listings."""
    before = -1
    async with asyncio.timeout(60):
        while before != (now := proxy.requests.get(Opcode.GET_CHILDREN, 0)):
            before = now
            await asyncio.sleep(0.5)
    return before


class Crowd:
    """Takers in several sessions, and the messages that each session took."""

    def __init__(self, sessions: list[zq.QueueSession], takers: int, expected: int) -> None:
        self.took: list[list[bytes]] = [[] for _ in sessions]
        self._sessions = sessions
        self._takers = takers
        self._expected = expected
        self._all = asyncio.Event()

    @property
    def bodies(self) -> list[bytes]:
        return [body for took in self.took for body in took]

    async def drain(self, timeout: float = 90) -> None:
        tasks = [
            asyncio.create_task(self._take(session, took))
            for session, took in zip(self._sessions, self.took, strict=True)
            for _ in range(self._takers)
        ]
        try:
            async with asyncio.timeout(timeout):
                await self._all.wait()
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome for outcome in outcomes if not isinstance(outcome, asyncio.CancelledError)] == []

    async def _take(self, session: zq.QueueSession, took: list[bytes]) -> None:
        jobs = session.queue("jobs")
        while True:
            async with session.transaction() as tx:
                message = await tx.take(jobs, timeout=None)
                assert message is not None
            took.append(message.value)
            if len(self.bodies) >= self._expected:
                self._all.set()


async def test_four_sessions_share_a_backlog_with_few_failed_claims(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str, locks: Locks
) -> None:
    bodies = [b"%04d" % number for number in range(2000)]
    await session.queue("jobs").put_many(bodies)
    sessions = [await open_session() for _ in range(4)]
    crowd = Crowd(sessions, 8, len(bodies))
    await crowd.drain()
    assert Counter(crowd.bodies) == Counter(bodies)
    assert await server_view.children(f"{queue_root}/jobs/items") == []
    await no_locks(locks)
    failed_claims = sum(counts(opened).contended_locks + counts(opened).gone for opened in sessions)
    assert failed_claims <= 0.2 * len(bodies), [counts(opened) for opened in sessions]
    assert all(took for took in crowd.took)


async def test_idle_sessions_seldom_ask_for_the_same_message_of_a_bundle(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    """The session that claims the bundle has one taker, and releases the other messages: one for each other session."""
    number = 32
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=64))
    sessions = [await open_session() for _ in range(number)]
    async with AsyncExitStack() as stack:
        transactions = [await stack.enter_async_context(opened.transaction()) for opened in sessions]
        taking = [
            asyncio.create_task(tx.take(opened.queue("jobs"), timeout=None))
            for opened, tx in zip(sessions, transactions, strict=True)
        ]
        await registered(server_view, queue_root, number)
        await asyncio.sleep(1)  # until all sessions have read the whole registry
        bodies = [b"%02d" % each for each in range(number)]
        await jobs.put_many(bodies)
        async with asyncio.timeout(30):
            messages = await asyncio.gather(*taking)
    assert sorted(message.value for message in messages if message is not None) == bodies
    failed_claims = [counts(opened).contended_locks + counts(opened).gone for opened in sessions]
    # If all asked for the oldest message, it would be half the square of their number.
    assert sum(failed_claims) <= 4 * number, failed_claims


async def test_an_item_whose_consumer_is_busy_is_taken_by_another(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    busy, free = await open_session(), await open_session()
    hold = asyncio.Event()
    handled: list[float] = []

    async def block(_: zq.Delivery[bytes]) -> None:
        await hold.wait()

    async def note(_: zq.Delivery[bytes]) -> None:
        handled.append(asyncio.get_running_loop().time())

    jobs = session.queue("jobs")
    async with busy.listener(busy.queue("jobs"), block):
        await jobs.put(b"blocks")

        async def taken() -> bool:
            return bool(await jobs.claimed())

        await eventually(taken)
        async with free.listener(free.queue("jobs"), note):
            await registered(server_view, queue_root, 2)
            waits: list[float] = []
            for number in range(20):  # half of these are in the share of the busy consumer
                before, put_at = len(handled), asyncio.get_running_loop().time()
                await jobs.put(b"%d" % number)

                async def one_more(before: int = before) -> bool:
                    return len(handled) > before

                await eventually(one_more)
                waits.append(handled[-1] - put_at)
            assert sorted(waits)[15] < 1, waits  # most of them, since the machine may stall
        hold.set()
    assert await jobs.size() == 0


async def test_a_held_message_costs_idle_sessions_no_requests(
    open_session: Opener, session: zq.QueueSession, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    ids = await jobs.put_many([b"%d" % number for number in range(20)])
    async with ZooKeeperProxy(zookeeper) as proxy:
        idle = await open_session(proxy.hosts)
        async with session.transaction() as tx:
            assert len(await tx.take_many(jobs, 20)) == len(ids)
            waiting = asyncio.create_task(take_one(idle))
            await registered(server_view, queue_root, 2)
            # It lists, sets its watches, lists again, and searches once for leftover messages.
            before = await wait_for_quiet(proxy)
            await asyncio.sleep(1)
            assert proxy.requests.get(Opcode.GET_CHILDREN, 0) - before <= 8
            await tx.rollback(delay=0)
        await waiting


async def test_an_idle_consumer_does_not_list_when_other_sessions_consume(
    open_session: Opener, session: zq.QueueSession, zookeeper: str, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig())
    handled: list[bytes] = []

    async def note(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async with ZooKeeperProxy(zookeeper) as proxy:
        watched, other = await open_session(proxy.hosts), await open_session()
        async with watched.listener(watched.queue("jobs"), note), other.listener(other.queue("jobs"), note):
            await registered(server_view, queue_root, 2)
            before = await wait_for_quiet(proxy)
            for number in range(100):
                await jobs.put(b"%d" % number)
                await asyncio.sleep(0.005)

            async def all_handled() -> bool:
                return len(handled) == 100

            await eventually(all_handled)
            # A listing is three requests. A quiet machine needs almost no listings, a busy one fewer than the messages.
            assert proxy.requests.get(Opcode.GET_CHILDREN, 0) - before <= 150
        await watched._runtime.close()
    assert len(set(handled)) == 100


async def test_the_messages_of_a_dead_session_are_taken_by_the_other_sessions(
    open_session: Opener,
    session: zq.QueueSession,
    zookeeper: str,
    zookeeper_proxy: ZooKeeperProxy,
    server_view: Observer,
    queue_root: str,
    locks: Locks,
) -> None:
    jobs = session.queue("jobs")
    dying, survivors = await open_session(zookeeper_proxy.hosts), [await open_session() for _ in "ab"]
    bodies = [b"%03d" % number for number in range(60)]
    block = dying.transaction(autocommit=False)
    await jobs.put_many(bodies)
    assert len(await (await block.__aenter__()).take_many(dying.queue("jobs"), 20)) == 20
    await registered(server_view, queue_root, 1)
    zookeeper_proxy.stall()  # as if its machine had failed
    disposition = dying._runtime.zookeeper._session._resumable  # type: ignore[attr-defined]  # no interface has the password
    close_elsewhere(zookeeper, disposition.session_id, disposition.password)
    crowd = Crowd(survivors, 4, len(bodies))
    start = asyncio.get_running_loop().time()
    await crowd.drain()
    # Without a clean-up, after 2 * 0.25 + 1 s (`faults/test_killed_processes.py` measures it).
    assert asyncio.get_running_loop().time() - start < 15
    assert Counter(crowd.bodies) == Counter(bodies)
    await no_locks(locks)
    zookeeper_proxy.heal()
    await block.__aexit__(ValueError, ValueError(), None)


async def test_a_take_without_waiting_finds_a_message_of_any_consumers_share(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig())
    sessions = [await open_session() for _ in range(4)]
    # Each session has taken from the queue, so it is registered, and none waits now.
    for opened in sessions:
        async with opened.transaction() as tx:
            assert await tx.take(opened.queue("jobs"), timeout=0) is None
    await registered(server_view, queue_root, 4)
    for number in range(12):
        await jobs.put(b"%d" % number)
        async with sessions[number % 4].transaction() as tx:
            message = await tx.take(sessions[number % 4].queue("jobs"), timeout=0)
            assert message is not None
    await jobs.put_many([b"1", b"2", b"3"])
    async with sessions[0].transaction() as tx:
        assert len(await tx.take_many(sessions[0].queue("jobs"), 10, timeout=0)) == 3
    assert await jobs.size() == 0


async def test_a_take_without_waiting_never_returns_none_while_messages_wait(
    open_session: Opener, session: zq.QueueSession
) -> None:
    sessions = [await open_session() for _ in range(3)]
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(300)])
    empty: list[int] = []

    async def ask(opened: zq.QueueSession) -> None:
        async with opened.transaction() as tx:
            if await tx.take(opened.queue("jobs"), timeout=0) is None:
                empty.append(1)

    for _ in range(10):
        await asyncio.gather(*(ask(opened) for opened in sessions for _ in range(8)))
    assert empty == []
    assert await jobs.size() == 300 - 240


async def test_a_new_consumer_gets_its_share(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    took: list[list[bytes]] = [[], []]

    async def work(delivery: zq.Delivery[bytes], into: list[bytes]) -> None:
        into.append(delivery.value)
        await asyncio.sleep(0.002)

    async def first(delivery: zq.Delivery[bytes]) -> None:
        await work(delivery, took[0])

    async def second(delivery: zq.Delivery[bytes]) -> None:
        await work(delivery, took[1])

    sessions = [await open_session() for _ in range(2)]
    await jobs.put_many([b"%04d" % number for number in range(200)])
    async with sessions[0].listener(sessions[0].queue("jobs"), first, concurrency=4):

        async def begun() -> bool:
            return len(took[0]) > 20

        await eventually(begun)
        async with sessions[1].listener(sessions[1].queue("jobs"), second, concurrency=4):
            await registered(server_view, queue_root, 2)
            before = [len(share) for share in took]
            await jobs.put_many([b"+%04d" % number for number in range(800)])

            async def all_handled() -> bool:
                return sum(map(len, took)) == 1000

            await eventually(all_handled, 60)
    shares = [len(share) - start for share, start in zip(took, before, strict=True)]
    assert min(shares) > 0.25 * sum(shares)
    assert len({body for share in took for body in share}) == 1000


async def test_until_idle_0_drains_the_queue_despite_another_consumer(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig())
    draining, bystander = await open_session(), await open_session()
    async with bystander.transaction() as tx:  # it is registered and alive, but does not take now
        assert await tx.take(bystander.queue("jobs"), timeout=0) is None
    await registered(server_view, queue_root, 1)
    await jobs.put_many([b"%03d" % number for number in range(300)])
    async with draining.queue("jobs").consume(until_idle=0) as deliveries:
        assert len([delivery async for delivery in deliveries]) == 300
    assert await jobs.size() == 0
    handled: list[bytes] = []

    async def note(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async with bystander.listener(bystander.queue("jobs"), note):  # now it takes messages again
        await asyncio.sleep(0.3)
        await jobs.put_many([b"%03d" % number for number in range(300)])
        async with draining.queue("jobs").consume(until_idle=0) as deliveries:
            values = [delivery.value async for delivery in deliveries]

        async def empty() -> bool:
            return await jobs.size() == 0

        await eventually(empty, 30)
    assert Counter(handled + values) == Counter(b"%03d" % number for number in range(300))


@pytest.mark.timeout(180)
async def test_items_of_a_busy_consumer_are_taken_despite_many_new_messages(
    open_session: Opener, session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    busy, free = await open_session(), await open_session()
    hold = asyncio.Event()
    handled: set[int] = set()

    async def block(_: zq.Delivery[bytes]) -> None:
        await hold.wait()

    async def note(delivery: zq.Delivery[bytes]) -> None:
        handled.add(int(delivery.value))

    async with busy.listener(busy.queue("jobs"), block):
        await jobs.put(b"blocks")

        async def taken() -> bool:
            return bool(await jobs.claimed())

        await eventually(taken)
        await jobs.put_many([b"%d" % number for number in range(100)])
        async with free.listener(free.queue("jobs"), note, concurrency=32):
            await registered(server_view, queue_root, 2)
            following = 100

            async def early_ones_handled() -> bool:
                """Keep messages in the share of the free consumer: it gets half of all that are put."""
                nonlocal following
                more = max(0, 2 * len(handled) + 300 - following)
                await jobs.put_many([b"%d" % number for number in range(following, following + more)])
                following += more
                return handled.issuperset(range(100))

            await eventually(early_ones_handled, 90)
        hold.set()


async def test_a_listing_near_the_limit_of_java_clients_causes_a_warning(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=1))
    await jobs.put_many([b""] * 15_000)
    with caplog.at_level("WARNING", "aiozkqueue"):
        async with session.transaction() as tx:
            assert await tx.take(jobs) is not None
        assert not [record for record in caplog.records if "shards" in record.getMessage()]
        await jobs.put_many([b""] * 8_000)
        for _ in range(2):
            async with other.transaction() as tx:
                assert await tx.take(other.queue("jobs")) is not None
    (warning,) = [record.getMessage() for record in caplog.records if "shards" in record.getMessage()]
    assert "queue jobs" in warning
