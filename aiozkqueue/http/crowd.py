"""Which connection has to go when there are too many. Pure.

A connection without a request under way costs its client nothing, so strangers can open any number. When the server is
full, or one address has more than its share, the connection that has been without a request for the longest goes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

C = TypeVar("C")


class Crowd(Generic[C]):
    """The connections of a server, by the addresses from which they come.

    Args:
        most: connections in all.
        share: connections from one address.
    """

    def __init__(self, most: int, share: int) -> None:
        self.most = most
        self._share = share
        self._peers: dict[C, str] = {}
        self._numbers: Counter[str] = Counter()
        self._idle: dict[str, OrderedDict[C, None]] = {}  # by address, the next to go first

    def __len__(self) -> int:
        return len(self._peers)

    def enter(self, one: C, peer: str) -> tuple[bool, C | None]:
        """Take in a connection. Return whether there is room, and the connection that has to go to make it."""
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
        """Forget a connection."""
        peer = self._peers.pop(one, None)
        if peer is not None:
            self._wake(one, peer)
            self._numbers[peer] -= 1
            if not self._numbers[peer]:
                del self._numbers[peer]

    def rest(self, one: C) -> None:
        """Take note that a connection has no request under way from now on."""
        if one in self._peers:
            self._idle.setdefault(self._peers[one], OrderedDict()).setdefault(one)

    def finish(self, one: C) -> None:
        """Take note that a connection has its last answer, and is to go before all others."""
        self.rest(one)
        if one in self._peers:
            self._idle[self._peers[one]].move_to_end(one, last=False)

    def work(self, one: C) -> None:
        """Take note that a connection has a request under way."""
        if one in self._peers:
            self._wake(one, self._peers[one])

    def _wake(self, one: C, peer: str) -> None:
        idle = self._idle.get(peer)
        if idle is not None:
            idle.pop(one, None)
            if not idle:
                del self._idle[peer]
