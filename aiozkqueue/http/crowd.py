"""The choice of the connection to close if there are too many. Pure.

An idle connection costs its client nothing, so strangers can open any number. If the server is full, or one address has
more than its share, the connection that has been idle for the longest time is closed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

C = TypeVar("C")


class Crowd(Generic[C]):
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

    def enter(self, one: C, peer: str) -> tuple[bool, C | None]:
        """Add a connection. Return whether there is room, and the connection that must be closed to make room."""
        self._peers[one] = peer
        self._numbers[peer] += 1
        if self._numbers[peer] > self._share:
            crowded = peer
        elif len(self._peers) > self.most:
            crowded = max(self._idle, key=self._numbers.__getitem__, default=peer)
        else:
            self.rest(one)
            return True, None
        victim = next(iter(self._idle.get(crowded, ())), None)
        if victim is not None:
            self.leave(victim)
        self.rest(one)
        return victim is not None, victim

    def leave(self, one: C) -> None:
        """Remove a connection."""
        peer = self._peers.pop(one, None)
        if peer is not None:
            self._wake(one, peer)
            self._numbers[peer] -= 1
            if not self._numbers[peer]:
                del self._numbers[peer]

    def rest(self, one: C) -> None:
        """Record that a connection is idle from now on."""
        if one in self._peers:
            self._idle.setdefault(self._peers[one], OrderedDict()).setdefault(one)

    def finish(self, one: C) -> None:
        """Record that a connection has its last response, and is closed before all others."""
        self.rest(one)
        if one in self._peers:
            self._idle[self._peers[one]].move_to_end(one, last=False)

    def work(self, one: C) -> None:
        """Record that a connection has an active request."""
        if one in self._peers:
            self._wake(one, self._peers[one])

    def _wake(self, one: C, peer: str) -> None:
        idle = self._idle.get(peer)
        if idle is not None:
            idle.pop(one, None)
            if not idle:
                del self._idle[peer]
