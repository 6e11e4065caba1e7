"""A handler's own cancellations affect only its message. Its listener and the next handlers continue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from aiozkqueue.listeners import Batch


class Event(BaseModel):
    """An event without contents."""


async def _wait_for_what_is_cancelled() -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def _fail_later() -> None:
    await asyncio.sleep(0.01)
    raise KeyError


@pytest.mark.parametrize("between", [0, 1])
def test_a_listener_attributes_a_cancellation_correctly_after_a_failed_task_group(between: int) -> None:
    """Some versions of Python count cancellations, so the test checks the same message and the next one."""

    async def main() -> list[tuple[bytes, int]]:
        handled: list[tuple[bytes, int]] = []
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.1)))

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                handled.append((delivery.body, delivery.attempt))
                if handled == [(b"0", 1)]:
                    with suppress(BaseExceptionGroup):
                        async with asyncio.TaskGroup() as group:
                            group.create_task(_fail_later())
                if delivery.attempt == 1 and delivery.body == b"%d" % between:
                    await _wait_for_what_is_cancelled()

            async with session.listener(jobs, handle):
                for body in (b"0", b"1", b"2"):
                    await other.queue("jobs").put(body)
                    await asyncio.sleep(0.5)
        return handled

    again = b"%d" % between
    assert run_virtual(main) == sorted([(b"0", 1), (b"1", 1), (b"2", 1), (again, 2)])


def test_a_handler_that_continues_after_its_claim_is_lost_does_not_end_the_listener() -> None:
    """The claim is lost at each moment."""

    async def main(tenths: int) -> list[bytes]:
        handled: list[bytes] = []
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                handled.append(delivery.body)
                if len(handled) == 1:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(5)
                    with anyio.CancelScope(shield=True):
                        await asyncio.sleep(tenths / 10)
                    await _wait_for_what_is_cancelled()

            async with session.listener(jobs, handle, on_lost="cancel"):
                await other.queue("jobs").put(b"1")
                await asyncio.sleep(0.3)
                cluster.ensemble.expire(session._runtime.zookeeper.session_id)
                await asyncio.sleep(2)
                await other.queue("jobs").put(b"2")
                await asyncio.sleep(2)
        return handled

    for tenths in range(5):
        assert run_virtual(partial(main, tenths)) == [b"1", b"1", b"2"]


def test_a_cancellation_that_on_dead_lets_escape_does_not_end_the_listener() -> None:
    async def main() -> list[bytes]:
        handled: list[bytes] = []
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                handled.append(delivery.body)
                if delivery.body == b"bad":
                    reason = "bad"
                    raise zq.Reject(reason)

            async def alarm(letter: zq.DeadLetter[bytes], _: BaseException | None) -> None:
                handled.append(b"dead " + letter.body)
                await _wait_for_what_is_cancelled()

            async with session.listener(jobs, handle, on_dead=alarm):
                for body in (b"bad", b"good"):
                    await other.queue("jobs").put(body)
                    await asyncio.sleep(1)
        return handled

    assert run_virtual(main) == [b"bad", b"dead bad", b"good"]


@pytest.mark.parametrize("batch", [False, True])
def test_a_cancellation_that_the_function_for_used_up_retries_lets_escape_is_its_failure(*, batch: bool) -> None:
    """The message is retried after the policy's delay, and other messages of a batch are settled separately."""

    async def main() -> tuple[list[int], int, int]:
        calls: list[int] = []
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(60)))

            async def exhausted(_: zq.Delivery[bytes]) -> None:
                calls.append(round(asyncio.get_running_loop().time()))
                await _wait_for_what_is_cancelled()

            def fault(body: bytes) -> Exception:
                return zq.Retry(schedule=[], exhausted=exhausted) if body == b"0" else zq.Reject("bad")

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                raise fault(delivery.body)

            async def handle_all(messages: Batch[bytes]) -> None:
                for message in messages:
                    messages.fail(message, fault(message.body))

            await jobs.put_many([b"0", b"1", b"2"])
            listener = (
                session.listener(jobs, handle_all, batch=3) if batch else session.listener(jobs, handle, concurrency=3)
            )
            async with listener:
                await asyncio.sleep(90)
            stats = await jobs.stats()
        return [call - calls[0] for call in calls], stats.size, stats.dead_letters

    assert run_virtual(main) == ([0, 60], 1, 2)


def test_a_cancellation_that_a_subscriber_lets_escape_does_not_stop_the_others() -> None:
    async def main() -> tuple[list[str], int]:
        calls: list[str] = []
        async with simulated() as cluster, cluster.connect() as session:
            bus = Bus(session, "orders", Event)

            async def broken(_: Event) -> None:
                calls.append("broken")
                await _wait_for_what_is_cancelled()

            async def sound(_: Event) -> None:
                calls.append("sound")

            bus.subscribe(Event, broken)
            bus.subscribe(Event, sound)
            await bus.post(Event())
            async with bus.listener():
                await asyncio.sleep(5)
            return calls, (await bus.queue().stats()).dead_letters

    assert run_virtual(main) == (["broken", "sound", "broken", "broken", "broken"], 1)


def test_a_subscriber_whose_event_is_cancelled_stops_the_others() -> None:
    async def main() -> tuple[list[str], int]:
        calls: list[str] = []
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            bus = Bus(session, "orders", Event)

            async def slow(_: Event) -> None:
                calls.append("slow")
                await asyncio.sleep(60)

            async def late(_: Event) -> None:
                calls.append("late")

            bus.subscribe(Event, slow)
            bus.subscribe(Event, late)
            [posted] = await bus.post(Event())
            async with bus.listener():
                await asyncio.sleep(1)
                assert await other.queue("orders").cancel(id=posted, running=True) is zq.Alteration.DONE
                await asyncio.sleep(1)
            return calls, await bus.queue().size()

    assert run_virtual(main) == (["slow"], 0)
