"""A stream whose queue is deleted stops with that reason, whichever request comes next."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from tests.simulation.between import Between

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


async def outcome(call: Callable[[Ledger], Awaitable[object]], ledger: Ledger) -> str:
    """Return the text of the error with which a call reports the lost ledger, or an empty text."""
    try:
        await call(ledger)
    except zq.ClaimLostError as error:
        return str(error)
    return ""


async def fill(orders: zq.Queue[bytes], bundle: int = 1) -> None:
    await orders.configure(zq.QueueConfig(bundle=bundle))
    await orders.put_many([b"body"] * 12)


async def deleted(orders: zq.Queue[bytes]) -> None:
    await orders.admin.delete(force=True)


async def created_again(orders: zq.Queue[bytes]) -> None:
    await deleted(orders)
    await fill(orders)


@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("meanwhile", [deleted, created_again])
@pytest.mark.parametrize("call", [advance, hand_out, acknowledge, finish, prepare])
async def test_a_call_during_which_the_queue_is_deleted_ends_as_if_before_it_or_says_so(
    call: Callable[[Ledger], Awaitable[object]],
    meanwhile: Callable[[zq.Queue[bytes]], Awaitable[None]],
    bundle: int,
    zookeeper: str,
    queue_root: str,
) -> None:
    reason = "queue 'orders' was deleted" if meanwhile is deleted else "was deleted|has been taken over or released"
    async with zq.connect(zookeeper, root=queue_root) as operator:
        orders = operator.queue("orders")
        for number in range(1, 200):
            await fill(orders, bundle)
            async with zq.connect(zookeeper, root=queue_root, janitor=False) as session:
                ledger = Ledger(core_of(session).handle("orders"), "spark")
                assert await ledger.next_batch(-1, 4) == 0
                between = Between(session, number, partial(meanwhile, orders))
                error = await outcome(call, ledger)
                if not between.reached:
                    assert number > 1
                    assert error == ""
                    return
                assert re.search(reason, error) or not error, error
                with pytest.raises(zq.ClaimLostError, match=reason):
                    await advance(ledger)
            if meanwhile is created_again:
                await deleted(orders)
    pytest.fail("the call never ends")
