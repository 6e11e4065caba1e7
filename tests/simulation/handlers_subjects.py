"""Calls of the matrix with handlers: a message cancelled while held, batch handlers, and handlers with a rate."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.simulation.features_subjects import Ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import ModuleType

    import aiozkqueue as zq
    from aiozkqueue.listeners import Batch


class Handlers:
    """A queue with messages, one of which its session holds."""

    def __init__(self, session: zq.QueueSession, held: str) -> None:
        self._session = session
        self._queue = session.queue("jobs")
        self._held = held

    async def cancel_in_hand(self) -> None:
        """Remove the held message."""
        await self._queue.cancel(id=self._held, running=True)

    async def handle_batches(self) -> None:
        """Handle messages in batches, and put a result for each, until both have been handled."""
        seen: set[bytes] = set()

        async def handler(batch: Batch[bytes]) -> None:
            for message in batch:
                batch.put("results", b"r-" + message.value)
                seen.add(message.value)
            if len(seen) == 2:
                listener.stop()

        listener = self._session.listener(self._queue, handler, batch=2, batch_wait=0.1)
        await listener.run()

    async def handle_at_a_rate(self) -> None:
        """Handle single messages, ten a second."""
        seen: set[bytes] = set()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            delivery.put("results", b"r-" + delivery.value)
            seen.add(delivery.value)
            if len(seen) == 2:
                listener.stop()

        listener = self._session.listener(self._queue, handler, concurrency=2, rate=10)
        await listener.run()


@asynccontextmanager
async def _holding(session: zq.QueueSession) -> AsyncIterator[Ready]:
    queue = session.queue("jobs")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(queue)
        assert message is not None
        try:
            yield Ready(Handlers(session, message.id), session, {})
        finally:
            await tx.rollback(delay=0)


@asynccontextmanager
async def _waiting(session: zq.QueueSession) -> AsyncIterator[Ready]:
    yield Ready(Handlers(session, ""), session, {})


SUBJECTS: dict[type | ModuleType, Callable[[zq.QueueSession], Any]] = {Handlers: _waiting}
#: The preparation of the queue for one of the calls.
SPECIAL: dict[str, Callable[[zq.QueueSession], Any]] = {"Handlers.cancel_in_hand": _holding}
#: Calls of several steps.
GRADUAL = {"Handlers.handle_batches", "Handlers.handle_at_a_rate"}
