"""Writes that no caller waits for, but whose outcome a caller may still request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.errors import NotCommittedError, OutcomeUnknownError, QueueFullError
from aiozkqueue.queue.outcome import Outcome

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.write import AtomicWrite


class LateWrite:
    """A write, such as a put, that was not answered in time."""

    def __init__(self, atomic_write: AtomicWrite) -> None:
        self.id: str = atomic_write.transaction_id
        self._atomic_write = atomic_write

    @property
    def outcome(self) -> Outcome:
        """How it has ended."""
        if not self._atomic_write.settled or isinstance(self._atomic_write.error, OutcomeUnknownError):
            return Outcome.UNKNOWN
        return Outcome.COMMITTED if self._atomic_write.error is None else Outcome.ROLLED_BACK

    async def decision(self, limit: float | None) -> None:
        """Wait until it is settled, for up to ``limit`` seconds."""
        await asyncio.wait((self._atomic_write.done,), timeout=limit)


def not_sent(what: str, seconds: float | None) -> NotCommittedError:
    """Return the error for a write that was withdrawn after this time."""
    return NotCommittedError(
        f"{what}: could not be sent within {seconds:g} s; nothing was applied; try again when a server is available"
    )


def no_capacity(what: str, queue: str, seconds: float | None) -> QueueFullError:
    """Return the error for a write that has waited this long for capacity in a queue."""
    return QueueFullError(
        f"{what}: queue {queue!r} had no capacity within {seconds:g} s; nothing was applied; use a longer timeout, or "
        "take messages first"
    )
