"""A handler's own cancellations affect only its message: its listener and the next handler continue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import anyio
import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated


async def _wait_for_what_is_cancelled() -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def _fail_later() -> None:
    await asyncio.sleep(0.01)
    raise KeyError


@pytest.mark.parametrize("between", [0, 1])
def test_a_listener_attributes_a_cancellation_correctly_after_a_failed_task_group(between: int) -> None:
    """Some versions of Python keep a count of cancellations: check the same message, and the next one."""

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
    """At each moment."""

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
