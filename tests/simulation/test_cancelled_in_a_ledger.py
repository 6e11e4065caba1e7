"""A cancellation that reads a message while a session holds it, and is applied when a ledger has locked it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from tests.simulation.between import Between

#: Messages of the bundle.
NUMBER = 36


def test_a_bundle_that_a_ledger_has_locked_since_it_was_read_stays_whole() -> None:
    """The session returns the bundle without an attempt, because its taker was cancelled."""

    async def play(milliseconds: int) -> bool:
        """Cancel the taker after this time; return whether the ledger locked the bundle meanwhile."""
        cluster = make_cluster()
        cluster.ensemble.delays.network = partial(float, 0.001)
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(cluster.connect()) for _ in range(4)]
            operator, stream, consumer, last = sessions
            jobs = operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=64))
            ids = await jobs.put_many([b"%d" % number for number in range(NUMBER)])
            ledger = Ledger(core_of(stream).handle("jobs"), "A")
            await ledger.open()
            await jobs.cancel(id="AAAAAAAAAAAA")  # reads the configuration
            zookeeper: Any = core_of(operator).zookeeper  # Any: its methods are replaced
            read_versioned = zookeeper.read_versioned
            batches: list[int] = []

            async def slow(*args: Any, **keywords: Any) -> Any:
                bundle = await read_versioned(*args, **keywords)
                if not batches and bundle[2] is not None:
                    await asyncio.sleep(1)  # the session returns the bundle
                    batches.append(await ledger.next_batch(-1, None))  # -1: no message is left
                return bundle

            zookeeper.read_versioned = slow
            taking = asyncio.create_task(_take(consumer))
            cancelling = asyncio.create_task(jobs.cancel(id=ids[7], running=True))
            await asyncio.sleep(milliseconds / 1000)
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
            result = await cancelling
            if not batches:
                return False
            handed = await ledger.hand_out(batches[0], "s", None)
            if not any(entry.is_bundle for page in handed.pages for entry in page.entries):
                return False
            assert result is zq.Alteration.HELD
            assert sum(page.messages for page in handed.pages) == NUMBER
            async with last.transaction() as tx:
                assert await tx.take(last.queue("jobs"), timeout=1) is None
            assert await ledger.acknowledge(batches[0]) == NUMBER
            assert await jobs.size() == 0
            return True

    async def main() -> None:
        assert any([await play(milliseconds) for milliseconds in range(10, 26)])

    run_virtual(main, limit=float("inf"))


async def _take(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        await tx.take(session.queue("jobs"), timeout=1)


def test_an_item_that_a_ledger_has_locked_since_it_was_read_stays_in_its_batch() -> None:
    """A session has claimed the message for a cancelled taker, and returns it between two requests."""

    locked: list[bool] = []

    async def play(number: int) -> bool:
        cluster = make_cluster()
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(cluster.connect()) for _ in range(3)]
            operator, stream, consumer = sessions
            jobs = operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            message_id = await jobs.put(b"1")
            ledger = Ledger(core_of(stream).handle("jobs"), "A")
            dispatcher = core_of(consumer).dispatcher(core_of(consumer).queue_state("jobs"))
            taking = dispatcher.request(1)
            await taking.future
            batches: list[int] = []

            async def lock() -> None:
                dispatcher.cancel_request(taking)
                await asyncio.sleep(0.1)
                batches.append(await ledger.next_batch(-1, None))  # -1: no message is left

            between = Between(operator, number, lock)
            result = await jobs.cancel(id=message_id, running=True)
            batch = batches[0] if (reached := between.reached) else -1
            locked.append(batch >= 0)
            if batch >= 0:
                assert result is zq.Alteration.HELD
                assert [page.messages for page in (await ledger.hand_out(batch, "s", None)).pages] == [1]
                assert await ledger.acknowledge(batch) == 1
            else:
                assert result is zq.Alteration.DONE
            assert await jobs.size() == 0
            return reached

    async def main() -> None:
        number = 1
        while await play(number):
            number += 1
            assert number < 100
        assert locked.count(True) > 5

    run_virtual(main, limit=float("inf"))
