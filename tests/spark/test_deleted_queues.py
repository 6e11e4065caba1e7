"""A stream whose queue is deleted stops with that reason, whichever request of it comes next."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from tests.simulation.between import Between
from tests.spark.test_ledger import fill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.timeout(120)


async def advance(ledger: Ledger) -> int:
    """Do as `latestOffset` does: acknowledge the first batch, and find the next one."""
    await ledger.state()
    await ledger.mark_done(0)
    return await ledger.next_batch(0, 4)


async def hand_out(ledger: Ledger) -> None:
    await ledger.state()
    await ledger.hand_out(0, "stream")


async def acknowledge(ledger: Ledger) -> None:
    await ledger.acknowledge(0)


async def finish(ledger: Ledger) -> None:
    await ledger.mark_done(0)
    await ledger.finish()


async def prepare(ledger: Ledger) -> None:
    await ledger.prepare(0, 4)


async def deleted(hosts: str, root: str) -> None:
    async with zq.connect(hosts, root=root) as session:
        await session.queue("orders").admin.delete(force=True)


async def created_again(hosts: str, root: str) -> None:
    await deleted(hosts, root)
    await fill(hosts, root, 3)


@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("meanwhile", [deleted, created_again])
@pytest.mark.parametrize("call", [advance, hand_out, acknowledge, finish, prepare])
async def test_a_call_during_which_the_queue_is_deleted_ends_as_if_before_it_or_says_so(
    call: Callable[[Ledger], Awaitable[object]],
    meanwhile: Callable[[str, str], Awaitable[None]],
    bundle: int,
    zookeeper: str,
    queue_root: str,
) -> None:
    reason = "queue 'orders' was deleted" if meanwhile is deleted else "was deleted|has been taken over or released"
    for number in range(1, 200):
        root = f"{queue_root}/{number}"
        await fill(zookeeper, root, 12, bundle)
        async with zq.connect(zookeeper, root=root, janitor=False) as session:
            ledger = Ledger(core_of(session).handle("orders"), "spark")
            assert await ledger.next_batch(-1, 4) == 0
            between = Between(session, number, partial(meanwhile, zookeeper, root))
            try:
                await call(ledger)
            except zq.ClaimLostError as error:
                assert between.reached, error
                with pytest.raises(zq.ClaimLostError, match=reason):
                    raise
            if not between.reached:
                assert number > 1
                return
            with pytest.raises(zq.ClaimLostError, match=reason):
                await advance(ledger)
    pytest.fail("the call never ends")
