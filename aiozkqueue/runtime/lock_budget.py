"""The limit on the locks of one ZooKeeper session, in bytes of their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

#: Bytes: Σ(path length + 4) over a session's ephemerals. The server deletes them all in one transaction when the
#: session ends. One such transaction of twice the request limit has been seen to kill every server of an ensemble.
EPHEMERAL_CAP = 256 * 1024


class EphemeralBudget:
    """The bytes of lock paths that one ZooKeeper session may still create."""

    __slots__ = ("_waiting", "used")

    def __init__(self, events: dict[asyncio.Event, None]) -> None:
        self.used: int = 0
        self._waiting = events

    @property
    def left(self) -> int:
        """The remaining bytes of lock paths."""
        return EPHEMERAL_CAP - self.used

    def spend(self, size: int) -> None:
        """Count an ephemeral that is about to be created."""
        self.used += size

    def free(self, size: int) -> None:
        """Stop counting an ephemeral that is known to be gone."""
        self.used -= size
        if self._waiting:
            set_all(self._waiting)


def set_all(events: dict[asyncio.Event, None]) -> None:
    """Set and remove all events, to wake the tasks that wait for budget."""
    while events:
        events.popitem()[0].set()


class SessionBudget:
    """The budget of the current ZooKeeper session. A new session starts with a full one."""

    def __init__(self) -> None:
        self._generation = 0
        self._waiting: dict[asyncio.Event, None] = {}  # a dict for its order, which a set lacks
        self._budget = EphemeralBudget(self._waiting)

    def of(self, generation: int) -> EphemeralBudget:
        """Return the budget of a session; for a session that is over, a new one that nothing else uses."""
        if generation != self._generation:
            if generation < self._generation:
                return EphemeralBudget(self._waiting)
            self._generation, self._budget = generation, EphemeralBudget(self._waiting)
        return self._budget

    def wake(self) -> None:
        """Wake the tasks that wait for budget."""
        set_all(self._waiting)

    def notify(self, event: asyncio.Event) -> None:
        """Set ``event`` when budget may have become available."""
        self._waiting[event] = None
