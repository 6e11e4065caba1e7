"""Releases whose outcome stays unknown: the session removes only the lock that it had before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Fault, Kind
from aiozkqueue.zookeeper import Create, Delete, SetData

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


@pytest.mark.parametrize("apart", [0.0, 0.01], ids=["in one millisecond", "later"])
def test_an_unknown_rollback_keeps_its_delay_even_if_it_was_applied_in_the_millisecond_of_the_claim(
    apart: float,
) -> None:
    """The lock of the claim and the timed lock of the delay then have the same name, owner and time of creation."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as other, cluster.connect(name="holder") as session:
            jobs, slots = session.queue("jobs"), set[str]()
            sent, lost = asyncio.Event(), asyncio.Event()
            view = core_of(other).zookeeper
            await jobs.put(b"a")

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                if connection.client.name != "holder":
                    return None
                if sent.is_set():  # until the slot, and with it the answer, is gone
                    return None if lost.is_set() else Fault.LOST_BEFORE
                operations = request.argument if request.kind is Kind.MULTI else []
                if not any(isinstance(each, Create) and "/due/" in each.path for each in operations):
                    return None
                slots.update(each.path for each in operations if isinstance(each, SetData) and "/slot-" in each.path)
                sent.set()
                return Fault.LOST_AFTER

            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=30) is not None
                await asyncio.sleep(apart)
                cluster.ensemble.judge = judge
                undoing = asyncio.ensure_future(tx.rollback(delay=600))
                await sent.wait()
                await asyncio.sleep(0.01)
                await view.multi([Delete(slot) for slot in slots])
                lost.set()
                await undoing
            assert await view.children("/zms/jobs/locks"), "the message is delayed"
            assert (await jobs.stats()).delayed == 1

    run_virtual(main)
