"""Measures how long a client has been without a connection, and logs it."""

from __future__ import annotations

import asyncio
import logging
import math
from itertools import chain, count
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.interface import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.zookeeper.hosts import Ensemble, Server
    from aiozkqueue.zookeeper.interface import ZooKeeper

_log = logging.getLogger(__name__)

_FIRST, _EACH = (10.0, 60.0), 300.0  # seconds
#: Losses within _EACH seconds that are logged one by one: for each server, and at most. A planned restart causes fewer.
_SINGLY, _MOST_SINGLY = 3, 10


class Outage:
    """One period without a connection, from its start; moments are the event loop's."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._moments: Iterator[float] = chain(_FIRST, count(_FIRST[-1] + _EACH, _EACH))
        self._next = next(self._moments)

    def lasted(self, now: float) -> float:
        """Return its duration so far, in seconds."""
        return now - self._began

    def must_log(self, now: float) -> bool:
        """Return whether to log it: once after ten seconds, once after a minute, then every five minutes."""
        due = False
        while self.lasted(now) >= self._next:
            self._next = next(self._moments)
            due = True
        return due


class Losses:
    """Counts lost connections, so that one that is lost again and again does not fill the log."""

    def __init__(self, servers: int) -> None:
        self.frequent: bool = False
        """Whether losses are only counted."""
        self._singly = min(_SINGLY * servers, _MOST_SINGLY)
        self._began = float("-inf")
        self._number = 0

    def count(self, now: float) -> tuple[int, float] | None:
        """Count a loss; return the number to report, and its seconds: when losses become frequent, and each 5 min."""
        passed = now - self._began
        if passed >= _EACH:
            reported = (self._number, passed) if self.frequent else None
            self.frequent = self._number > self._singly and passed < 2 * _EACH
            self._began, self._number = now, 1
            return reported
        self._number += 1
        if self.frequent or self._number <= self._singly:
            return None
        self.frequent = True
        return self._number, passed


class OutageLog:
    """Logs the outages of a session: the loss, the failed attempts of a lasting one, and the next connection."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.main: ZooKeeper | None = None
        """Another client of this process with these servers. Outages that it logs are not logged here."""
        self.attempts: dict[Server, str] = {}
        """Why the last attempt to reach each server failed, in the current outage."""
        self.first_wait: float = math.inf
        """Seconds for which a caller waits for the first connection."""
        self._ensemble = ensemble
        self._outage: Outage | None = None
        self._warned = False  # of this outage
        self._lost = False  # this outage began with the loss of a connection
        self._losses = Losses(len(ensemble.servers))

    @property
    def lasted(self) -> float:
        """The seconds since the current outage began; 0 without one."""
        return 0.0 if self._outage is None else self._outage.lasted(asyncio.get_running_loop().time())

    def begin(self, loss: Exception | None = None) -> None:
        """Begin an outage, by this loss; None: there was no connection yet."""
        now = asyncio.get_running_loop().time()
        if loss is not None:
            counted = self._losses.count(now)
            _log.log(self._level, "%s", loss)
            if counted is not None and self.main is None:
                number, seconds = counted
                _log.warning(
                    "%d connections to %s were lost within %.0f s; the last: %s; while losses are frequent, they are "
                    "reported every five minutes",
                    number,
                    self._ensemble,
                    seconds,
                    loss,
                )
        self._outage, self._warned, self._lost = Outage(now), False, loss is not None

    @property
    def _level(self) -> int:
        """The level of a single loss, and of the connection that follows."""
        return logging.INFO if self.main is None and not self._losses.frequent else logging.DEBUG

    def tried(self, server: Server, why: str) -> None:
        """Report an attempt that failed."""
        self.attempts[server] = why
        _log.debug("%s: %s", server, why)
        now = asyncio.get_running_loop().time()
        if self._outage is None or not self._outage.must_log(now):
            return
        if self.main is None or self.main.state is State.CONNECTED:
            self._warned = True
            lasted = self._outage.lasted(now)
            _log.warning("no connection to %s for %.0f s; last error: %s: %s", self._ensemble, lasted, server, why)

    def end(self, session: str) -> None:
        """End the outage, with a connection that carries this session."""
        assert self._outage is not None  # noqa: S101 - until now
        again = f", after {self.lasted:.1f} s without a connection" if self._lost else ""
        _log.log(logging.INFO if self._warned else self._level, "%s%s", session, again)
        self._outage = None
        self.attempts.clear()
