"""Takes messages for a transaction: waits in line for claims until some can be delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.errors import SessionExpiredError, TransactionTooLargeError
from aiozkqueue.queue.claim.deliver import deliver_claims, deliver_claims_now
from aiozkqueue.queue.runtime.lock_budget import EPHEMERAL_CAP

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.unit_of_work import UnitOfWork

    from .claim.dispatcher import ClaimDispatcher


async def take(
    work: UnitOfWork, queue: Destination[Any], limit: int, timeout: float | None, condition: Condition | None = None
) -> list[Claim]:
    """Claim up to ``limit`` messages for an open unit of work; none after ``timeout`` seconds (None: no limit).

    Raises: as `Transaction.take`.
    """
    runtime = work.runtime
    dispatcher = _dispatcher(work, queue, limit, condition)
    remaining, over = timeout, False
    while not over:
        waiter = dispatcher.request(limit, remaining, generation=work.generation, owner=work)
        try:
            claims = await waiter.future
        except asyncio.CancelledError:
            dispatcher.give_up(waiter)
            raise
        if not claims:
            return []
        try:
            delivered = deliver_claims_now(runtime, queue, claims)
            if delivered is None:
                wait = max(0.0, waiter.due - runtime.clock.monotonic()) if remaining else None
                delivered = await deliver_claims(runtime, queue, claims, wait)
            if not work.open:
                await work.release_unseen(delivered)
                work.require_open()
            if delivered:
                work.hold(delivered)
                return delivered
        except SessionExpiredError:
            if work.generation is not None:
                raise
            # Nothing depends on that session yet.
        if remaining:
            remaining = max(0.0, waiter.due - runtime.clock.monotonic())
            over = not remaining
    return []


def _dispatcher(work: UnitOfWork, queue: Destination[Any], limit: int, condition: Condition | None) -> ClaimDispatcher:
    """Return the dispatcher of a queue, if the session may hold ``limit`` more locks."""
    runtime = work.runtime
    runtime.check()
    work.require_open()
    dispatcher = runtime.dispatcher(runtime.queue_state(queue.name), condition)
    if limit > 1 or work.holds:  # a single message always fits
        used = sum(claim.size for claim in work.claims)
        if used + limit * dispatcher.lock_size > EPHEMERAL_CAP:
            msg = (
                f"{work.what}: taking {limit} from queue {queue.name!r} would exceed the locks of one session "
                f"({(EPHEMERAL_CAP - used) // dispatcher.lock_size} more fit); take and commit in parts"
            )
            raise TransactionTooLargeError(msg)
    return dispatcher
