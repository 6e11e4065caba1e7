"""`aiozkqueue.run`: however it ends, its services end with it, and their messages are free."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from tests.simulation.test_known_configuration import play


class Failing:
    """A service that fails after a second."""

    async def run(self) -> None:
        await asyncio.sleep(1)
        msg = "a defect"
        raise RuntimeError(msg)

    def stop(self) -> None:
        """Do nothing: it fails."""

    abort = stop


@pytest.mark.parametrize("failing", [False, True], ids=["the run is cancelled", "another service fails"])
def test_a_handler_is_cancelled_at_the_end_of_a_run_and_its_message_is_free(*, failing: bool) -> None:
    """The listener itself would give the handler any time."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        session, other = sessions
        begun, ended = asyncio.Event(), asyncio.Event()

        async def handle(_: zq.Delivery[bytes]) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        await other.queue("jobs").put(b"1")
        listener = session.listener(session.queue("jobs"), handle, drain_timeout=None)
        others = [Failing()] if failing else []
        running = asyncio.create_task(zq.run(listener, *others, signals=(), drain_timeout=5))
        await begun.wait()
        if not failing:
            running.cancel()
        await asyncio.wait([running], timeout=60)
        assert running.done()
        assert running.cancelled() is not failing
        assert ended.is_set()
        async with other.transaction() as tx:
            assert await tx.take(other.queue("jobs"), timeout=5) is not None

    play(program, 2)
