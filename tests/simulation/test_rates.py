"""A rate that several sessions share is never exceeded, and no message is held for long. The clock is virtual."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.layout.rates import RateRecord
from aiozkqueue.rates.pace import NEAR, USABLE_FOR
from aiozkqueue.rates.timeline import Timeline
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch
    from aiozkqueue.rates.timeline import Block


def timeline_of(session: zq.QueueSession) -> Timeline:
    """Return the timeline of a rate with the name of a queue, as one session uses it."""
    core = session._core
    return Timeline(core.zookeeper, core.clock, "/zms/.rates/bank", 10, core.random)


def most_in_a_second(moments: list[float]) -> int:
    """Return the largest number of these times within one second."""
    moments = sorted(moments)
    return max(sum(begin <= moment < begin + 1 for moment in moments) for begin in moments)


def allowed(rate: float) -> float:
    """Return the number of calls that may begin within any second, if replies take no time."""
    return rate * (1 + USABLE_FOR) + 1


async def handle_all(
    sessions: int, messages: int, *, meanwhile: Callable[[Any, int], Awaitable[None]] | None = None, **options: Any
) -> tuple[list[float], float]:
    """Handle messages in several sessions; return when each handler began, and the longest hold of a message.

    ``meanwhile`` is called when a third of the messages have been handled.
    """
    begun: list[float] = []
    held: dict[str, float] = {}
    longest = 0.0
    third, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        nonlocal longest
        begun.append(loop.time())
        longest = max(longest, loop.time() - held.get(f"lock-{delivery.id}", loop.time()))
        if len(begun) >= messages // 3:
            third.set()
        await asyncio.sleep(0.01)

    async def observe(queue: zq.Queue[bytes], session: zq.QueueSession) -> None:
        zookeeper = session._core.zookeeper
        while not done.is_set():
            now = set(await zookeeper.children(f"/zms/{queue.name}/locks"))
            for name in now:
                held.setdefault(name, loop.time())
            for name in held.keys() - now:
                del held[name]
            if not await queue.size():
                done.set()
            await asyncio.sleep(0.1)

    async with simulated() as cluster, AsyncExitStack() as stack:
        operator = await stack.enter_async_context(cluster.connect())
        jobs = operator.queue("jobs")
        await jobs.put_many([b"job"] * messages)
        observing = asyncio.create_task(observe(jobs, operator))
        for number in range(sessions):
            session = await stack.enter_async_context(cluster.connect(name=f"worker-{number}"))
            listener = session.listener(session.queue("jobs"), handler, concurrency=16, **options)
            await stack.enter_async_context(listener)
        if meanwhile is not None:
            await third.wait()
            await meanwhile(cluster, sessions)
        await done.wait()
        await observing
    return begun, longest


@pytest.mark.parametrize(("rate", "messages", "sessions"), [(50, 200, 1), (50, 200, 5), (10, 60, 3), (0.5, 8, 4)])
def test_all_sessions_together_begin_as_many_handlers_a_second_as_allowed(
    rate: float, messages: int, sessions: int
) -> None:
    begun, longest = run_virtual(lambda: handle_all(sessions, messages, rate=rate))
    assert len(begun) == messages
    assert most_in_a_second(begun) <= allowed(rate)
    assert max(begun) - min(begun) >= (messages - 1) / rate - USABLE_FOR
    assert max(begun) - min(begun) <= 1.3 * messages / rate + 1  # close to the allowed rate
    assert longest <= NEAR + USABLE_FOR + 0.2


def test_a_session_that_ends_loses_only_the_slots_that_it_has_leased() -> None:
    async def end(cluster: Any, _: int) -> None:
        cluster.expire("worker-0")
        await asyncio.sleep(0)

    begun, _ = run_virtual(lambda: handle_all(3, 60, meanwhile=end, rate=10))
    assert most_in_a_second(begun) <= allowed(10)
    assert max(begun) - min(begun) <= 8 + 3


def test_lost_connections_never_raise_the_rate() -> None:
    async def cut(cluster: Any, sessions: int) -> None:
        for number in range(20):
            cluster.cut(f"worker-{number % sessions}")
            await asyncio.sleep(0.17)

    begun, _ = run_virtual(lambda: handle_all(3, 90, meanwhile=cut, rate=20))
    assert most_in_a_second(begun) <= allowed(20)


def test_no_handler_begins_before_its_slot_because_its_listener_stops() -> None:
    async def main() -> tuple[list[float], float]:
        begun: list[float] = []
        loop = asyncio.get_running_loop()

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(loop.time())

        async with simulated() as cluster, AsyncExitStack() as stack:
            operator = await stack.enter_async_context(cluster.connect())
            await operator.queue("jobs").put_many([b"job"] * 100)
            listeners: list[zq.Listener[bytes]] = []
            for _ in range(10):
                session = await stack.enter_async_context(cluster.connect())
                listeners.append(session.listener(session.queue("jobs"), handler, rate=10))
                await stack.enter_async_context(listeners[-1])
            await asyncio.sleep(5)
            stopped = loop.time()
            for listener in listeners:
                listener.stop()
            await asyncio.sleep(1)
        return begun, stopped

    begun, stopped = run_virtual(main)
    assert len(begun) > 30
    assert [moment for moment in begun if moment >= stopped] == []


def test_a_burst_after_a_pause_begins_no_faster_than_the_rate() -> None:
    async def main() -> list[float]:
        begun: list[float] = []

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(asyncio.get_running_loop().time())

        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            async with session.listener(jobs, handler, concurrency=64, rate=20):
                for _ in range(3):
                    await jobs.put_many([b"job"] * 40)
                    await asyncio.sleep(60)
        return begun

    begun = run_virtual(main)
    assert len(begun) == 120
    assert most_in_a_second(begun) <= allowed(20)


def test_calls_whose_attempts_are_recorded_late_do_not_begin_together() -> None:
    """Twenty sessions lose their connections for three seconds, while slots pass and attempts are being recorded."""

    async def main() -> tuple[list[float], set[int]]:
        begun: list[float] = []
        attempts: set[int] = set()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            begun.append(asyncio.get_running_loop().time())
            attempts.add(delivery.attempt)

        async with simulated() as cluster, AsyncExitStack() as stack:
            operator = await stack.enter_async_context(cluster.connect())
            jobs = operator.queue("jobs", policy=zq.ConsumeTimes(5))
            await jobs.put_many([b"job"] * 1000)
            for number in range(20):
                session = await stack.enter_async_context(cluster.connect(name=f"worker-{number}"))
                listener = session.listener(session.queue("jobs"), handler, concurrency=64, rate=40)
                await stack.enter_async_context(listener)
            await asyncio.sleep(15)
            cluster.ensemble.judge = lambda connection, _: (
                Fault.LOST_BEFORE if "worker" in connection.client.name else None
            )
            await asyncio.sleep(3)
            cluster.ensemble.judge = lambda *_: None
            while await jobs.size():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
        return begun, attempts

    begun, attempts = run_virtual(main)
    assert len(begun) == 1000
    assert attempts == {1}
    assert most_in_a_second(begun) <= allowed(40)


def test_each_listener_keeps_its_own_rate() -> None:
    begun, _ = run_virtual(lambda: handle_all(1, 40, per_process_rate=10))
    assert most_in_a_second(begun) <= allowed(10)
    assert max(begun) - min(begun) <= 40 / 10 + 1
    begun, _ = run_virtual(lambda: handle_all(2, 40, per_process_rate=5))
    assert most_in_a_second(begun) <= 2 * allowed(5)
    begun, _ = run_virtual(lambda: handle_all(3, 40, per_process_rate=5, rate=10))
    assert most_in_a_second(begun) <= allowed(10)


def test_listeners_of_several_queues_share_a_named_rate() -> None:
    async def main() -> list[float]:
        begun: list[float] = []

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(asyncio.get_running_loop().time())

        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            for name in ("cards", "refunds"):
                await session.queue(name).put_many([b"job"] * 30)
            cards = session.listener(session.queue("cards"), handler, rate=10, rate_name="bank", concurrency=8)
            refunds = other.listener(other.queue("refunds"), handler, rate=10, rate_name="bank", concurrency=8)
            async with cards, refunds:
                while len(begun) < 60:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.5)
        return begun

    begun = run_virtual(main)
    assert most_in_a_second(begun) <= allowed(10)


def test_the_handlers_of_batches_begin_at_the_rate_too() -> None:
    async def main() -> list[tuple[float, int]]:
        begun: list[tuple[float, int]] = []

        async def store(batch: Batch[bytes]) -> None:
            begun.append((asyncio.get_running_loop().time(), len(batch)))

        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.put_many([b"job"] * 60)
            listeners = [
                client.listener(client.queue("jobs"), store, batch=10, batch_wait=3, concurrency=2, rate=2)
                for client in (session, other)
            ]
            async with listeners[0], listeners[1]:
                while await jobs.size():  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.5)
        return begun

    begun = run_virtual(main)
    assert sum(size for _, size in begun) == 60
    assert most_in_a_second([moment for moment, _ in begun]) <= allowed(2)
    assert len(begun) <= 9


def test_sessions_share_the_rate_of_a_queue_of_another_program() -> None:
    """The path of the queue is not a valid name for a rate, so the default is another name."""

    async def main() -> list[float]:
        begun: list[float] = []
        loop = asyncio.get_running_loop()

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(loop.time())

        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(simulated())
            sessions = [await stack.enter_async_context(cluster.connect()) for _ in range(2)]
            queues = [session.kazoo_queue("/of kazoo/jobs") for session in sessions]
            await queues[0].put_many([b"job"] * 30)
            for session, queue in zip(sessions, queues, strict=True):
                await stack.enter_async_context(session.listener(queue, handler, concurrency=8, rate=10))
            while len(begun) < 30:  # noqa: ASYNC110 -- the handlers make it true
                await asyncio.sleep(0.1)
        return begun

    assert most_in_a_second(run_virtual(main, limit=100)) <= allowed(10)


@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(5)], ids=["uncounted", "counted"])
def test_listeners_of_a_slow_server_handle_their_messages(policy: zq.Policy) -> None:
    """Each answer takes longer than a lease of slots or an attempt record may take on a quick server."""

    async def main() -> tuple[list[float], float]:
        begun: list[float] = []
        attempts: set[int] = set()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            begun.append(asyncio.get_running_loop().time())
            attempts.add(delivery.attempt)

        async with simulated() as cluster, AsyncExitStack() as stack:
            operator = await stack.enter_async_context(cluster.connect())
            jobs = operator.queue("jobs", policy=policy)
            await jobs.put_many([b"job"] * 30)
            cluster.ensemble.delays.network = lambda: 0.7
            for number in range(3):
                session = await stack.enter_async_context(cluster.connect(name=f"worker-{number}"))
                await stack.enter_async_context(session.listener(session.queue("jobs"), handler, concurrency=8, rate=5))
            while await jobs.size():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
        assert attempts == {1}
        return begun, 2 * 1.4

    begun, delay = run_virtual(main, limit=600)
    assert len(begun) == 30
    assert most_in_a_second(begun) <= 5 * (1 + USABLE_FOR + delay) + 1


def test_slots_whose_leases_are_answered_late_are_given_up() -> None:
    """Each of twenty sessions leases a slot at another time, and gets the reply at the same moment as the others."""

    async def main() -> list[float]:
        begun: list[float] = []
        loop = asyncio.get_running_loop()

        async def handler(_: zq.Delivery[bytes]) -> None:
            begun.append(loop.time())

        async with simulated() as cluster, AsyncExitStack() as stack:
            operator = await stack.enter_async_context(cluster.connect())
            jobs = operator.queue("jobs")
            await jobs.put(b"job")
            for number in range(20):
                session = await stack.enter_async_context(cluster.connect(name=f"worker-{number}", session_timeout=60))
                await stack.enter_async_context(session.listener(session.queue("jobs"), handler, rate=2))
            await asyncio.sleep(5)
            end = loop.time() + 12

            def hold_replies(connection: Any, request: Any) -> None:
                writes = request.argument if request.kind is Kind.MULTI else []
                if any(operation.path.startswith("/zms/.rates/") for operation in writes) and loop.time() < end:
                    connection.client.stream._delay = lambda: max(0.0, end - loop.time())

            cluster.ensemble.judge = hold_replies
            for _ in range(20):
                await jobs.put(b"job")
                await asyncio.sleep(0.55)
            while await jobs.size():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
        return begun

    begun = run_virtual(main, limit=600)
    assert len(begun) == 21
    assert most_in_a_second(begun) <= allowed(2)


def test_no_leased_slot_begins_before_its_time_at_the_server() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: 0.3
            async with cluster.connect() as session:
                zookeeper, timeline = session._core.zookeeper, timeline_of(session)
                await zookeeper.ensure("/zms/.rates/bank")
                for _ in range(5):
                    block = await timeline.lease(20)
                    node = await zookeeper.read("/zms/.rates/bank")
                    begins = RateRecord.decode(node.data).begin(node.stat.mtime) / 1_000_000
                    left = begins - cluster.ensemble.now() / 1000
                    assert block.first >= loop.time() + left - 0.002

    run_virtual(main)


def test_unused_slots_are_not_given_back_to_a_timeline_that_was_deleted_and_begun_again() -> None:
    """The new timeline has as many leases as the old one had."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as one, cluster.connect() as other:
            bank = one.queue("bank")
            await bank.configure(zq.QueueConfig())
            first, second = timeline_of(one), timeline_of(other)
            await first.lease(5)
            await asyncio.sleep(10)
            await bank.admin.delete()  # deletes the rate of this name too
            taken = await second.lease(5)
            block = await first.lease(1, unused=5)
            assert block.first >= taken.first + taken.size * taken.step - 0.002

    run_virtual(main)


def test_a_lease_during_which_the_timeline_is_deleted_and_begun_again_takes_no_slots_of_the_new_one() -> None:
    """The new timeline has as many leases as the old one had when it was read."""

    async def lease_again(number: int) -> bool:
        async with simulated() as cluster, cluster.connect() as one, cluster.connect() as other:
            bank = other.queue("bank")
            await bank.configure(zq.QueueConfig())
            first, second = timeline_of(one), timeline_of(other)
            await first.lease(5)
            await asyncio.sleep(10)
            blocks: list[Block] = []

            async def begin_again() -> None:
                await bank.admin.delete()  # deletes the rate of this name too
                blocks.append(await second.lease(20))

            between = Between(one, number, begin_again)
            blocks.append(await first.lease(1))
            if not between.reached:
                return False
            blocks += [await first.lease(1), await second.lease(1)]
            blocks.sort()
            for before, after in itertools.pairwise(blocks):
                assert after.first >= before.first + before.size * before.step - 0.002, number
            return True

    numbers = 0
    while run_virtual(partial(lease_again, numbers + 1)):
        numbers += 1
    assert numbers >= 2


def test_a_listener_with_a_slower_rate_of_its_own_leaves_the_other_sessions_their_slots() -> None:
    async def main() -> float:
        done = 0
        loop = asyncio.get_running_loop()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            nonlocal done
            done += delivery.queue == "quick"

        async with simulated() as cluster, cluster.connect() as slow, cluster.connect() as quick:
            for name in ("slow", "quick"):
                await quick.queue(name).put_many([b"job"] * 200)
            options: dict[str, Any] = {"rate": 10, "rate_name": "bank", "concurrency": 8}
            async with (
                slow.listener(slow.queue("slow"), handler, per_process_rate=0.5, **options),
                quick.listener(quick.queue("quick"), handler, **options),
            ):
                began = loop.time()
                while done < 100:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.1)
                return loop.time() - began

    assert run_virtual(main) <= 1.3 * 100 / 9.5 + 1


def test_a_listener_with_few_messages_leaves_the_other_sessions_their_slots() -> None:
    async def main() -> float:
        done = 0
        loop = asyncio.get_running_loop()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            nonlocal done
            done += delivery.queue == "busy"

        async def trickle(jobs: zq.Queue[bytes]) -> None:
            while True:
                await jobs.put(b"job")
                await asyncio.sleep(0.4)

        async with simulated() as cluster, cluster.connect() as idle, cluster.connect() as busy:
            options: dict[str, Any] = {"rate": 100, "rate_name": "bank", "concurrency": 40}
            await idle.queue("idle").put_many([b"job"] * 200)
            await busy.queue("busy").put_many([b"job"] * 400)
            async with idle.listener(idle.queue("idle"), handler, **options):
                while await idle.queue("idle").size():  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.1)
                putting = asyncio.create_task(trickle(idle.queue("idle")))
                await asyncio.sleep(5)
                async with busy.listener(busy.queue("busy"), handler, **options):
                    began = loop.time()
                    while done < 400:  # noqa: ASYNC110 - virtual time
                        await asyncio.sleep(0.1)
                putting.cancel()
                return loop.time() - began

    assert run_virtual(main) <= 400 / 87
