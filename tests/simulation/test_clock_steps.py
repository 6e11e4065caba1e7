"""Steps of the leader's clock, as by NTP, and new leaders with other clocks: later delays keep their length."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.claim.discovery import LONGEST_SLEEP
from aiozkqueue.runtime.clock import SAMPLE_LIFETIME
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.loop import EPOCH
from aiozkqueue.testing.simulator.requests import Fault, Kind
from aiozkqueue.zookeeper import Create, Delete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator.cluster import Cluster
    from aiozkqueue.testing.simulator.ensemble import Ensemble
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

pytestmark = pytest.mark.timeout(120)

HOUR = 3600.0
YEAR = 365 * 24 * HOUR
#: Seconds after which a session no longer trusts its measurement of ZooKeeper's time.
STALE = 2 * SAMPLE_LIFETIME + 1
#: Seconds from the end of a delay to the delivery, without lost requests.
AT_ONCE = 0.1


async def put_later(session: zq.QueueSession, delay: float) -> None:
    await session.queue("jobs").put(b"later", delay=delay)


async def lease(session: zq.QueueSession, delay: float) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"leased")
    assert await jobs.leases.take(lifetime=delay, timeout=1)


async def fail(session: zq.QueueSession, delay: float) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"failed")
    tx = await session.transaction(autocommit=False).__aenter__()
    assert await tx.take(jobs, timeout=1) is not None
    await tx.rollback(delay=delay)


async def wait(session: zq.QueueSession, timeout: float) -> zq.Message[bytes] | None:
    async with session.transaction() as tx:
        return await tx.take(session.queue("jobs"), timeout=timeout)


async def delay_seen(cluster: Cluster, make: Callable[[zq.QueueSession, float], Awaitable[None]], step: float) -> float:
    """Return the seconds until an idle consumer gets a message that another session has delayed after a step."""
    loop = asyncio.get_running_loop()
    async with cluster.connect(name="idle") as idle:
        await put_later(idle, 3 * YEAR)  # the queue has delayed messages
        assert await wait(idle, 1) is None
        await asyncio.sleep(STALE)
        cluster.ensemble.offset += step
        async with cluster.connect(name="new") as new:
            began = loop.time()
            await make(new, 30)
            message = await wait(idle, 3 * HOUR)
            assert message is not None
            return loop.time() - began


@pytest.mark.parametrize("step", [5.0, -5.0, HOUR, -HOUR, YEAR, -YEAR])
@pytest.mark.parametrize("make", [put_later, lease, fail])
def test_a_delay_that_begins_after_a_step_of_the_clock_does_not_end_early_and_not_much_later(
    make: Callable[[zq.QueueSession, float], Awaitable[None]], step: float
) -> None:
    async def main() -> None:
        late = await delay_seen(make_cluster(), make, step) - 30
        assert -AT_ONCE <= late <= min(max(0.0, step), LONGEST_SLEEP) + AT_ONCE

    run_virtual(main, limit=20 * HOUR)


def test_a_message_put_in_an_hour_that_was_near_before_the_clock_went_back_is_delivered_in_time() -> None:
    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        async with cluster.connect(name="idle") as idle, cluster.connect(name="new") as new:
            await put_later(idle, 3 * YEAR)
            await put_later(idle, HOUR)
            first = asyncio.ensure_future(wait(idle, 10 * HOUR))
            await asyncio.sleep(HOUR - 1)  # the hour of the message has been listed
            cluster.ensemble.offset -= 3 * HOUR
            await asyncio.sleep(STALE)
            began = loop.time()
            await put_later(new, 3 * HOUR - 200)
            assert await first is not None
            assert loop.time() - began == pytest.approx(3 * HOUR - 200, abs=AT_ONCE)

    run_virtual(main, limit=20 * HOUR)


async def step(cluster: Cluster, by: float) -> None:
    """Set the clock of the only server, or elect another leader with another clock."""
    await asyncio.sleep(STALE)
    cluster.ensemble.offset += by
    if not cluster.ensemble.alone:
        cluster.ensemble.elect()
        await asyncio.sleep(5)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("default", [False, True])
def test_the_lifetime_of_a_message_put_after_a_step_of_the_clock_is_as_long_as_before(
    by: float, servers: int, *, default: bool
) -> None:
    async def main() -> None:
        cluster = make_cluster(servers=servers)
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(ttl=100 if default else None))
            await jobs.put(b"before")
            assert await wait(session, 1) is not None
            await step(cluster, by)
            await (jobs.put(b"after") if default else jobs.put(b"after", ttl=100))
            await asyncio.sleep(99)
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=0) is not None
                await tx.rollback(delay=0)
            await asyncio.sleep(2)
            assert await wait(session, 0) is None

    run_virtual(main)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_message_that_was_taken_before_a_step_of_the_clock_is_retried_after_its_delay(
    by: float, servers: int
) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=servers), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session:
            jobs = session.queue("jobs")
            await jobs.put(b"x")
            tx = await session.transaction(autocommit=False).__aenter__()
            assert await tx.take(jobs, timeout=1) is not None
            await step(cluster, by)
            await tx.rollback(delay=30)
            began = loop.time()
            assert await wait(session, 2 * HOUR) is not None
            assert loop.time() - began == pytest.approx(30, abs=AT_ONCE)

    run_virtual(main, limit=3 * HOUR)


@pytest.mark.timeout(20)  # a failure would block the loop
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"delay": 3}, {"priority": 3, "delay": 3}, {"group": "g"}])
def test_a_put_with_a_lifetime_to_a_queue_that_was_deleted_meanwhile_creates_it(options: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session, cluster.connect() as operator:
            await session.queue("jobs").put(b"before", ttl=100, **options)
            await asyncio.sleep(STALE)
            await operator.queue("jobs").admin.delete(force=True)
            await session.queue("jobs").put(b"after", ttl=100, **options)
            message = await wait(session, 10)
            assert message is not None
            assert message.body == b"after"

    run_virtual(main)


def test_a_slot_that_was_made_before_an_outage_is_not_a_measurement_of_the_time() -> None:
    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        lost = Outage(cluster.ensemble, 15)
        async with cluster.connect() as producer, cluster.connect(name="writer", session_timeout=30) as session:
            await producer.queue("jobs").put(b"x")
            cluster.ensemble.judge = lost
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(session.queue("jobs"), timeout=1) is not None
                await asyncio.sleep(STALE)
                await tx.rollback(delay=10)
            assert lost.ended, "the creation of the slot was not lost"
            began = loop.time()
            assert await wait(session, 60) is not None
            assert loop.time() - began >= 10 - AT_ONCE

    run_virtual(main)


class Outage:
    """Loses the reply to the creation of the writer's slot, and then all its requests for some seconds."""

    def __init__(self, ensemble: Ensemble, seconds: float) -> None:
        self._loop = ensemble.loop
        self._seconds = seconds
        self._attempts = 0
        self._end: float | None = None

    @property
    def ended(self) -> bool:
        return self._end is not None and self._loop.time() >= self._end

    def __call__(self, connection: ServerConnection, request: Request) -> Fault | None:
        if connection.client.name != "writer":
            return None
        self._attempts += _makes_slot(request)
        if self._end is None and self._attempts == 2:  # the first request is refused, because the folder is missing
            self._end = self._loop.time() + self._seconds
            return Fault.LOST_AFTER
        return None if self._end is None or self.ended else Fault.LOST_BEFORE


def _makes_slot(request: Request) -> bool:
    first = request.argument[0] if request.kind is Kind.MULTI else None
    return isinstance(first, Create) and "/slot-" in first.path


@pytest.mark.parametrize("fault", [*Fault])
@pytest.mark.parametrize("default", [False, True])
def test_the_lifetime_of_a_message_begins_at_its_put_if_the_measurement_of_the_time_has_no_answer(
    fault: Fault, *, default: bool
) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session, cluster.connect(name="other") as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(ttl=100 if default else None))
            await jobs.put(b"before")
            assert await wait(session, 1) is not None
            await asyncio.sleep(10 * STALE)
            faults = iter([fault])
            cluster.ensemble.judge = lambda *_: next(faults, None)
            await (jobs.put(b"after") if default else jobs.put(b"after", ttl=100))
            assert next(faults, None) is None
            assert await wait(other, 1) is not None

    run_virtual(main, limit=20 * HOUR)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("priority", [0, 3])
def test_a_message_put_for_a_date_is_delivered_at_that_date_by_the_clock_of_the_leader(
    by: float, servers: int, priority: int
) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=servers), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session, cluster.connect() as other:
            await session.queue("jobs").put(b"before")
            assert await wait(session, 1) is not None
            await step(cluster, by)
            began = loop.time()
            at = datetime.fromtimestamp(EPOCH + cluster.ensemble.offset + began + 1800, UTC)
            await session.queue("jobs").put(b"at", at=at, priority=priority)
            assert await wait(other, 2 * HOUR) is not None
            assert loop.time() - began == pytest.approx(1800, abs=AT_ONCE)

    run_virtual(main, limit=3 * HOUR)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("delay", [0, 30])
def test_lifetimes_and_delays_count_by_the_clock_of_a_new_leader_at_once(
    by: float, delay: float, *, default: bool
) -> None:
    """No reply has shown the new leader yet, and the last measurement is a few seconds old."""

    async def main() -> None:
        cluster, loop = make_cluster(servers=3), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session, cluster.connect() as other:
            jobs, options = session.queue("jobs"), dict[str, Any](delay=delay) if delay else {}
            await jobs.configure(zq.QueueConfig(ttl=100 if default else None))
            await jobs.put(b"before", ttl=1000, delay=1)  # so that the queue is known to have delayed messages
            assert await wait(session, 10) is not None
            cluster.ensemble.offset += by
            cluster.ensemble.elect()
            await asyncio.sleep(5)
            began = loop.time()
            await (jobs.put(b"after", **options) if default else jobs.put(b"after", ttl=100, **options))
            if not delay:
                await asyncio.sleep(99)
            assert await wait(other, 2 * HOUR) is not None
            assert loop.time() - began == pytest.approx(delay or 99, abs=AT_ONCE)

    run_virtual(main, limit=4 * HOUR)


async def put_in_a_transaction(session: zq.QueueSession, **options: Any) -> None:
    async with session.transaction() as tx:
        tx.put(session.queue("jobs"), b"after", **options)


async def put_many(session: zq.QueueSession, **options: Any) -> None:
    await session.queue("jobs").put_many([b"after"], **options)


async def put_after(session: zq.QueueSession, **options: Any) -> None:
    await session.queue("jobs").put(b"after", **options)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("options", [{"ttl": 100}, {"delay": 30}, {"delay": 30, "ttl": 100}], ids=str)
@pytest.mark.parametrize("put", [put_after, put_many, put_in_a_transaction])
def test_a_put_that_waits_for_a_new_leader_counts_by_its_clock(
    put: Callable[..., Awaitable[None]], options: dict[str, float], by: float
) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=3), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session, cluster.connect() as other:
            await put_later(session, 0.01)  # so that the queue is known to have delayed messages
            assert await wait(session, 10) is not None
            cluster.ensemble.offset += by
            cluster.ensemble.elect()
            began = loop.time()
            await put(session, **options)
            assert loop.time() - began < AT_ONCE
            if "delay" not in options:
                await asyncio.sleep(99)
            assert await wait(other, 2 * HOUR) is not None
            assert loop.time() - began == pytest.approx(options.get("delay", 99), abs=AT_ONCE)

    run_virtual(main, limit=4 * HOUR)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_delayed_put_to_a_queue_of_curator_that_waits_for_a_new_leader_counts_by_its_clock(by: float) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=3), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session, cluster.connect() as other:
            queue = session.curator_queue("/app/later", lock_path="/app/locks", kind="delay")
            await queue.put(b"before", delay=0.01)
            cluster.ensemble.offset += by
            cluster.ensemble.elect()
            began = loop.time()
            await queue.put(b"after", delay=30)
            assert loop.time() - began < AT_ONCE
            theirs = other.curator_queue("/app/later", lock_path="/app/locks", kind="delay")
            taken: list[bytes] = []
            async with theirs.consume() as deliveries:
                async for delivery in deliveries:
                    taken.append(delivery.body)
                    if taken[-1] == b"after":
                        break
            assert loop.time() - began == pytest.approx(30, abs=1)

    run_virtual(main, limit=4 * HOUR)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_renewal_that_waits_for_a_new_leader_counts_by_its_clock(by: float) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=3), asyncio.get_running_loop()
        async with cluster.connect(session_timeout=20) as session, cluster.connect() as other:
            leases = session.queue("jobs").leases
            await session.queue("jobs").put(b"leased")
            [held] = await leases.take(lifetime=30, timeout=1)
            cluster.ensemble.offset += by
            cluster.ensemble.elect()
            began = loop.time()
            await leases.renew([held.token], lifetime=100 + max(0.0, -by))  # a longer lease would not be changed
            assert loop.time() - began < AT_ONCE
            assert await wait(other, 3 * HOUR) is not None
            assert loop.time() - began == pytest.approx(100 + max(0.0, -by), abs=AT_ONCE)

    run_virtual(main, limit=4 * HOUR)


def test_a_default_lifetime_counts_by_the_clock_of_a_new_leader_if_the_first_attempt_was_lost() -> None:
    async def main() -> None:
        cluster, loop = make_cluster(servers=3), asyncio.get_running_loop()
        lost: list[Request] = []

        def lose(_: ServerConnection, request: Request) -> Fault | None:
            """Lose the put with its session, and elect another leader."""
            if lost or request.kind is not Kind.MULTI or not _puts(request):
                return None
            lost.append(request)
            cluster.ensemble.offset += HOUR
            loop.call_soon(cluster.ensemble.elect)
            loop.call_soon(cluster.expire, "producer")
            return Fault.LOST_BEFORE

        async with cluster.connect(name="producer") as session, cluster.connect(session_timeout=20) as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(ttl=100))
            await jobs.put(b"before")
            assert await wait(other, 10) is not None
            cluster.ensemble.judge = lose
            await jobs.put(b"after")
            assert lost
            await asyncio.sleep(90)
            assert await wait(other, 0) is not None

    run_virtual(main)


def _puts(request: Request) -> bool:
    return any(isinstance(each, Create) and "/items/" in each.path for each in request.argument)


def test_a_rate_that_pauses_because_the_clock_went_back_is_reported_with_its_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def handle(_: zq.Delivery[bytes]) -> None:
            begun.append(loop.time())

        cluster = make_cluster()
        async with cluster.connect(session_timeout=20) as session:
            jobs = session.queue("jobs")
            async with session.listener(jobs, handle, rate=10):
                await jobs.put_many([b"before"] * 20)
                await asyncio.sleep(10)
                assert len(begun) == 20
                assert "was probably set back" not in caplog.text
                await step(cluster, -HOUR)
                await jobs.put_many([b"after"] * 20)
                await asyncio.sleep(600)
                assert len(begun) < 40
                assert "set back; to continue now, delete this znode" in caplog.text
        async with cluster.connect(session_timeout=20) as session:
            await core_of(session).zookeeper.multi([Delete("/zms/.rates/jobs")])
            async with session.listener(session.queue("jobs"), handle, rate=10):
                await asyncio.sleep(10)
        assert len(begun) == 40

    run_virtual(main, limit=HOUR)
