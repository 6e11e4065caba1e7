"""How a transaction comes by its messages: it waits in line for claims, until some can be shown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.errors import SessionExpiredError, TransactionTooLargeError
from aiozkqueue.queue.redelivery.attempts import hand_over, show
from aiozkqueue.queue.state.claim import EPHEMERAL_CAP

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.unit_of_work import UnitOfWork

    from .dispatcher import ClaimDispatcher


async def take(
    work: UnitOfWork, queue: Destination[Any], limit: int, timeout: float | None, condition: Condition | None = None
) -> list[Claim]:
    """Claim up to ``limit`` messages for work that is open; none after ``timeout`` seconds (None: never).

    Raises: as `Transaction.take`.
    """
    engine = work.engine
    dispatcher = _dispatcher(work, queue, limit, condition)
    left, over = timeout, False
    while not over:
        waiter = dispatcher.request(limit, left, generation=work.generation, owner=work)
        try:
            claims = await waiter.future
        except asyncio.CancelledError:
            dispatcher.give_up(waiter)
            raise
        if not claims:
            return []
        try:
            shown = show(engine, queue, claims)
            if shown is None:
                patience = max(0.0, waiter.due - engine.clock.monotonic()) if left else None
                shown = await hand_over(engine, queue, claims, patience)
            if not work.open:
                await work.release_unseen(shown)
                work.require_open()
            if shown:
                work.hold(shown)
                return shown
        except SessionExpiredError:
            if work.generation is not None:
                raise
            # Nothing depends on that session yet.
        if left:
            left = max(0.0, waiter.due - engine.clock.monotonic())
            over = not left
    return []


def _dispatcher(work: UnitOfWork, queue: Destination[Any], limit: int, condition: Condition | None) -> ClaimDispatcher:
    """Return who hands out a queue's claims, when so many more may be held."""
    engine = work.engine
    engine.check()
    work.require_open()
    dispatcher = engine.dispatcher(engine.store(queue.name), condition)
    if limit > 1 or work.holds:  # a single one always fits
        held = sum(claim.size for claim in work.claims)
        if held + limit * dispatcher.lock_size > EPHEMERAL_CAP:
            msg = (
                f"{work.what}: taking {limit} of queue {queue.name!r} would hold more locks than one session may "
                f"({(EPHEMERAL_CAP - held) // dispatcher.lock_size} more fit); take and commit in parts"
            )
            raise TransactionTooLargeError(msg)
    return dispatcher
