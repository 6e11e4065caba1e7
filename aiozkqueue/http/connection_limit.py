"""The choice of the connection to close if there are too many. Pure.

An idle connection costs its client nothing, so strangers can open any number. If the server is full, or one address has
more than its share, the connection that has been idle for the longest time is closed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")


class Admission(NamedTuple, Generic[C]):
    """The answer to a new connection."""

    has_room: bool
    """Whether the connection may send any request."""
    displaced: C | None
    """The connection that must be closed to make room."""


class ConnectionLimit(Generic[C]):
    """The connections of a server, by client address.

    Args:
        most: the maximum number of connections.
        share: the maximum number of connections from one address.
    """

    def __init__(self, most: int, share: int) -> None:
        self.most = most
        self._share = share
        self._peers: dict[C, str] = {}
        self._numbers: Counter[str] = Counter()
        self._idle: dict[str, OrderedDict[C, None]] = {}  # by address; the next connection to close is first

    def __len__(self) -> int:
        return len(self._peers)

    def enter(self, connection: C, peer: str) -> Admission[C]:
        """Add a connection."""
        self._peers[connection] = peer
        self._numbers[peer] += 1
        if self._numbers[peer] > self._share:
            crowded = peer
        elif len(self._peers) > self.most:
            crowded = max(self._idle, key=self._numbers.__getitem__, default=peer)
        else:
            self.idle(connection)
            return Admission(has_room=True, displaced=None)
        displaced = next(iter(self._idle.get(crowded, ())), None)
        if displaced is not None:
            self.leave(displaced)
        self.idle(connection)
        return Admission(displaced is not None, displaced)

    def leave(self, connection: C) -> None:
        """Remove a connection."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._wake(connection, peer)
            self._numbers[peer] -= 1
            if not self._numbers[peer]:
                del self._numbers[peer]

    def idle(self, connection: C) -> None:
        """Record that a connection is idle from now on."""
        if connection in self._peers:
            self._idle.setdefault(self._peers[connection], OrderedDict()).setdefault(connection)

    def finish(self, connection: C) -> None:
        """Record that a connection has its last response, and is closed before all others."""
        self.idle(connection)
        if connection in self._peers:
            self._idle[self._peers[connection]].move_to_end(connection, last=False)

    def work(self, connection: C) -> None:
        """Record that a connection has an active request."""
        if connection in self._peers:
            self._wake(connection, self._peers[connection])

    def _wake(self, connection: C, peer: str) -> None:
        idle = self._idle.get(peer)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[peer]
