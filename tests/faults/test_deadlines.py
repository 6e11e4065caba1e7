"""Calls end in time while the server is unreachable, and report truly whether they may have been applied."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account

LATE = 0.2  # seconds by which a call may exceed its deadline
TICK = 0.01  # seconds between two readings of the clock


class Outage:
    """An outage of the server of a session."""

    def __init__(self, proxy: ZooKeeperProxy, session: zq.QueueSession) -> None:
        self._proxy = proxy
        self._zookeeper = core_of(session).zookeeper

    async def begin(self) -> None:
        """Lose the connection, and wait until the client notices."""
        self._proxy.refuse()
        self._proxy.reset_connections()
        while self._zookeeper.state is State.CONNECTED:  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Accept connections again, and wait until the client has reconnected."""
        await self._proxy.listen()
        async with asyncio.timeout(30):
            await self._zookeeper.wait_connected()


@asynccontextmanager
async def ends_by(seconds: float) -> AsyncIterator[None]:
    """Assert that the block ends this many seconds from now, and not noticeably later.

    Time during which other programs occupy the processor does not count.
    """
    spent = 0.0

    async def count() -> None:
        nonlocal spent
        while True:
            began, used = time.monotonic(), time.process_time()
            await asyncio.sleep(TICK)
            spent += max(min(time.monotonic() - began, 2 * TICK), time.process_time() - used)

    counting = asyncio.create_task(count())
    try:
        yield
    finally:
        counting.cancel()
    assert spent < seconds + LATE


async def test_a_commit_that_waits_for_a_connection_is_withdrawn_at_its_timeout(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs, outage = session.queue("jobs"), Outage(proxy, session)
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            tx.put("jobs", b"b")
            await outage.begin()
            async with ends_by(0.3):
                with pytest.raises(zq.NotCommittedError, match="nothing was applied"):
                    await tx.commit(timeout=0.3)
        assert tx.outcome is zq.Outcome.ROLLED_BACK
        await outage.end()
        await account.unlocked("jobs")
        await jobs.put(b"c")
        assert await account.bodies("jobs") == [b"a", b"c"]


async def test_the_first_write_of_a_session_is_withdrawn_too(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    """Its commit slot does not exist yet; it is created once there is a connection."""
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs, outage = session.queue("jobs"), Outage(proxy, session)
        assert await jobs.size() == 0
        await outage.begin()
        async with session.transaction(autocommit=False) as tx:
            tx.put("jobs", b"a")
            async with ends_by(0.3):
                with pytest.raises(zq.NotCommittedError):
                    await tx.commit(timeout=0.3)
        await outage.end()
        await jobs.put(b"b")
        assert await account.bodies("jobs") == [b"b"]


async def cancelled(call: asyncio.Task[object]) -> float:
    """Cancel a call; return the seconds until it ended."""
    await asyncio.sleep(0.1)
    began = time.monotonic()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    return time.monotonic() - began


async def test_a_cancelled_put_of_which_nothing_was_sent_returns_at_once(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs, outage = session.queue("jobs"), Outage(proxy, session)
        await jobs.put(b"a")
        await outage.begin()
        assert await cancelled(asyncio.create_task(jobs.put(b"b"))) < 0.1
        await outage.end()
        await jobs.put(b"c")
        assert await account.bodies("jobs") == [b"a", b"c"]


async def test_a_cancelled_commit_of_which_nothing_was_sent_returns_at_once(
    proxy: ZooKeeperProxy, account: Account, root: str
) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        jobs, outage = session.queue("jobs"), Outage(proxy, session)
        await jobs.put(b"a")
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs) is not None
            await outage.begin()
            assert await cancelled(asyncio.create_task(tx.commit())) < 0.1
        assert tx.outcome is zq.Outcome.ROLLED_BACK
        await outage.end()
        await account.unlocked("jobs")
        assert await account.bodies("jobs") == [b"a"]


class Storm:
    """Writes with short deadlines and cancellations, while connections are lost before and after each request."""

    def __init__(self, proxy: ZooKeeperProxy, seed: int) -> None:
        self._proxy = proxy
        self._draw = random.Random(seed)
        self.reported: dict[bytes, str] = {}

    async def run(self, session: zq.QueueSession) -> None:
        """Write until the disturbances end."""
        disturbing = asyncio.create_task(self._disturb())
        number = 0
        async with asyncio.TaskGroup() as writers:
            while not disturbing.done():
                number += 1
                writers.create_task(self._write(session, b"%d" % number))
                await asyncio.sleep(self._draw.uniform(0, 0.01))
        await disturbing

    async def _write(self, session: zq.QueueSession, body: bytes) -> None:
        try:
            async with session.transaction(autocommit=False) as tx:
                tx.put("jobs", body)
                if self._draw.random() < 0.3:
                    async with asyncio.timeout(self._draw.choice((0.0, 0.01, 0.05))):
                        await tx.commit()
                else:
                    await tx.commit(timeout=self._draw.choice((0.0, 0.005, 0.02, 0.1, 0.3)))
        except TimeoutError:
            self.reported[body] = tx.outcome.value
        except zq.NotCommittedError:
            self.reported[body] = "rolled back"
        except zq.OutcomeUnknownError:
            self.reported[body] = "unknown"
        else:
            self.reported[body] = "committed"

    async def _disturb(self) -> None:
        for _ in range(12):
            await asyncio.sleep(self._draw.uniform(0.02, 0.2))
            match self._draw.randrange(3):
                case 0:
                    self._proxy.reset_connections()
                case 1:
                    self._proxy.stall()
                    await asyncio.sleep(self._draw.uniform(0, 0.3))
                    self._proxy.heal()
                    self._proxy.reset_connections()
                case _:
                    self._proxy.refuse()
                    self._proxy.reset_connections()
                    await asyncio.sleep(self._draw.uniform(0, 0.3))
                    await self._proxy.listen()


@pytest.mark.parametrize("seed", range(4))
async def test_no_write_that_is_reported_as_not_applied_is_stored(
    proxy: ZooKeeperProxy, account: Account, root: str, seed: int
) -> None:
    storm = Storm(proxy, seed)
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        await session.queue("jobs").put(b"first")
        await storm.run(session)
        await session.queue("jobs").put(b"last")
    stored = set(await account.bodies("jobs"))
    assert set(storm.reported.values()) >= {"committed", "rolled back"}
    assert [body for body, outcome in storm.reported.items() if outcome == "rolled back" and body in stored] == []
    assert [body for body, outcome in storm.reported.items() if outcome == "committed" and body not in stored] == []


READS: dict[str, Callable[[zq.QueueSession], Awaitable[object]]] = {
    "size": lambda session: session.queue("jobs").size(),
    "stats": lambda session: session.queue("jobs").stats(),
    "exists": lambda session: session.queue("jobs").exists(),
    "peek": lambda session: session.queue("jobs").peek(),
    "state": lambda session: session.queue("jobs").state("unknown"),
    "configuration": lambda session: session.queue("jobs").configuration(),
    "dead letters": lambda session: session.queue("jobs").dead_letters.peek(),
    "number of dead letters": lambda session: session.queue("jobs").dead_letters.size(),
    "consumers": lambda session: session.queue("jobs").admin.consumers(),
    "queues": lambda session: session.queues(),
    "diagnose": lambda session: session.admin.diagnose("jobs"),
}
CHANGES: dict[str, Callable[[zq.QueueSession], Awaitable[object]]] = {
    "put": lambda session: session.queue("jobs").put(b"new"),
    "first put": lambda session: session.queue("other").put(b"new"),
    "unique put": lambda session: session.queue("jobs").put(b"new", key="k", unique=True),
    "bounded put": lambda session: session.queue("bounded").put(b"new"),
    "put many": lambda session: session.queue("jobs").put_many([b"new", b"newer"]),
    "cancel": lambda session: session.queue("keyed").cancel(key="a"),
    "update": lambda session: session.queue("keyed").update(b"new", key="a"),
    "purge": lambda session: session.queue("keyed").purge(),
    "configure": lambda session: session.queue("keyed").configure(zq.QueueConfig(paused=True)),
    "redrive": lambda session: session.queue("jobs").dead_letters.redrive(),
    "release claims": lambda session: session.queue("jobs").admin.release_claims(),
    "clean": lambda session: session.admin.clean("jobs"),
}
PATIENCE = 0.5


@asynccontextmanager
async def opened(proxy: ZooKeeperProxy, root: str) -> AsyncIterator[zq.QueueSession]:
    """A session with a short timeout that has already used its queues."""
    async with zq.connect(proxy.hosts, root=root, session_timeout=20, operation_timeout=PATIENCE) as session:
        await session.queue("bounded").configure(zq.QueueConfig(max_size=100))
        await session.queue("bounded").put(b"a", timeout=30)
        await session.queue("keyed").put(b"a", timeout=30, key="a")
        await session.queue("jobs").put(b"a", timeout=30)
        yield session
        await proxy.listen()
        proxy.heal()


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("how", ["away", "silent"])
async def test_a_read_ends_in_time_while_the_server_is_unreachable(
    proxy: ZooKeeperProxy, root: str, name: str, how: str
) -> None:
    async with opened(proxy, root) as session:
        if how == "away":
            await Outage(proxy, session).begin()
        else:
            proxy.stall()
        async with ends_by(PATIENCE):
            with pytest.raises(zq.ConnectionLostError):
                await READS[name](session)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_ends_in_time_while_the_server_is_unreachable_and_is_not_applied(
    proxy: ZooKeeperProxy, account: Account, root: str, name: str
) -> None:
    async with opened(proxy, root) as session:
        await Outage(proxy, session).begin()
        async with ends_by(PATIENCE):
            with pytest.raises(zq.NotCommittedError):
                await CHANGES[name](session)
        await Outage(proxy, session).end()
        await session.queue("jobs").put(b"last")
        assert await account.bodies("jobs") == [b"a", b"last"]
        assert [message.value for message in await session.queue("keyed").peek()] == [b"a"]
        assert await session.queue("bounded").size() == 1
        assert not (await session.queue("keyed").configuration()).paused


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_ends_in_time_while_the_server_does_not_answer(
    proxy: ZooKeeperProxy, root: str, name: str
) -> None:
    async with opened(proxy, root) as session:
        proxy.stall()
        async with ends_by(PATIENCE):
            with pytest.raises((zq.OutcomeUnknownError, zq.NotCommittedError)):
                await CHANGES[name](session)


async def test_the_timeout_of_a_put_covers_the_whole_call(proxy: ZooKeeperProxy, account: Account, root: str) -> None:
    async with opened(proxy, root) as session:
        await Outage(proxy, session).begin()
        async with ends_by(0.2):
            with pytest.raises(zq.NotCommittedError, match=r"to queue 'jobs': .*; try again when"):
                await session.queue("jobs").put(b"b", timeout=0.2)
        await Outage(proxy, session).end()
        proxy.stall()
        async with ends_by(0.2):
            with pytest.raises(zq.OutcomeUnknownError, match="to queue 'jobs': no answer within"):
                await session.queue("jobs").put(b"c", timeout=0.2)
        proxy.heal()
        await session.queue("jobs").put(b"d", timeout=30)
        assert await account.bodies("jobs") == [b"a", b"c", b"d"]


async def test_the_outcome_of_a_put_that_was_not_answered_in_time_is_returned_later(
    proxy: ZooKeeperProxy, quick: str, root: str
) -> None:
    async with opened(proxy, root) as session, zq.connect(quick, root=root, session_timeout=20) as other:
        queue = session.queue("jobs")
        proxy.stall()
        with pytest.raises(zq.OutcomeUnknownError) as applied:
            await queue.put(b"applied", timeout=0.2)
        assert await session.outcome(applied.value.transaction_id, timeout=0.1) is zq.Outcome.UNKNOWN
        proxy.heal()
        assert await session.outcome(applied.value.transaction_id, timeout=30) is zq.Outcome.COMMITTED
        proxy.stall()
        with pytest.raises(zq.OutcomeUnknownError) as refused:
            await queue.put(b"refused", timeout=0.2, key="k", unique=True)
        await other.queue("jobs").put(b"earlier", key="k", unique=True)
        proxy.heal()
        assert await session.outcome(refused.value.transaction_id, timeout=30) is zq.Outcome.ROLLED_BACK
        assert await session.outcome(applied.value.transaction_id) is zq.Outcome.COMMITTED
        assert sorted([message.value for message in await queue.peek()]) == [b"a", b"applied", b"earlier"]


async def test_a_full_queue_refuses_a_put_with_timeout_0_at_once(proxy: ZooKeeperProxy, root: str) -> None:
    async with opened(proxy, root) as session:
        full = session.queue("bounded")
        await full.configure(zq.QueueConfig(max_size=1))
        with pytest.raises(zq.QueueFullError, match="is full"):
            await full.put(b"b", timeout=0)
        async with ends_by(0.3):
            with pytest.raises(zq.QueueFullError, match="no capacity within"):
                await full.put(b"b", timeout=0.3)


@pytest.mark.parametrize("timeout", [0, 0.3])
async def test_a_take_distinguishes_an_empty_queue_from_an_unreachable_server(
    proxy: ZooKeeperProxy, root: str, timeout: float
) -> None:
    async with opened(proxy, root) as session, session.transaction() as tx:
        assert await tx.take(session.queue("jobs")) is not None
        assert await tx.take(session.queue("jobs"), timeout=timeout) is None
        await Outage(proxy, session).begin()
        async with ends_by(timeout or PATIENCE):
            with pytest.raises(zq.ConnectionLostError):
                await tx.take(session.queue("jobs"), timeout=timeout)
        await Outage(proxy, session).end()


@pytest.mark.parametrize("fault", ["hold_request", pytest.param("hold_reply", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(5)], ids=["not counted", "counted"])
@pytest.mark.parametrize("timeout", [0, 0.4])
async def test_take_many_returns_its_locked_messages_in_time_when_the_server_goes_silent(
    proxy: ZooKeeperProxy, quick: str, account: Account, root: str, timeout: float, policy: zq.Policy, fault: str
) -> None:
    """The server goes silent at each request of the take in turn."""
    taken: list[int] = []
    async with opened(proxy, root) as session, zq.connect(quick, root=root) as operator:
        for number in range(1, 30):
            queue = operator.queue(f"many-{number}", policy=policy)
            await queue.configure(zq.QueueConfig(bundle=1))
            await queue.put_many([b"1", b"2"])
            async with session.transaction(autocommit=False) as tx:
                held = getattr(proxy, fault)(lambda request: request.opcode > 0, nth=number)
                got: list[zq.Message[bytes]] = []
                async with ends_by(timeout or PATIENCE):
                    with suppress(zq.ConnectionLostError):
                        got = await tx.take_many(session.queue(queue.name), 10, timeout=timeout)
                taken.append(len(got))
                struck = bool(held.requests)
                proxy.heal()
                await tx.commit()
            await account.unlocked(queue.name)
            assert await queue.size() == 2 - len(got)
            if not struck:
                break
    assert set(taken) == {0, 2}
