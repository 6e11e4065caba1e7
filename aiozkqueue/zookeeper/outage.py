"""Measures how long a client has been without a connection, and logs it."""

from __future__ import annotations

import asyncio
import logging
from itertools import chain, count
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.interface import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.zookeeper.hosts import Ensemble, Server
    from aiozkqueue.zookeeper.interface import ZooKeeper

_log = logging.getLogger(__name__)

_FIRST, _EACH = (10.0, 60.0), 300.0  # seconds


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


class OutageLog:
    """Logs the outages of a session: the loss, the failed attempts of a lasting one, and the next connection."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.main: ZooKeeper | None = None
        """Another client of this process with these servers. Outages that it logs are not logged here."""
        self.attempts: dict[Server, str] = {}
        """Why the last attempt to reach each server failed, in the current outage."""
        self._ensemble = ensemble
        self._outage: Outage | None = None
        self._warned = False  # of this outage

    @property
    def lasted(self) -> float:
        """The seconds since the current outage began; 0 without one."""
        return 0.0 if self._outage is None else self._outage.lasted(asyncio.get_running_loop().time())

    def begin(self, loss: Exception | None = None) -> None:
        """Begin an outage, by this loss; None: there was no connection yet."""
        if loss is not None:
            _log.log(logging.INFO if self.main is None else logging.DEBUG, "%s", loss)
        self._outage, self._warned = Outage(asyncio.get_running_loop().time()), False

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
        lasted = self._outage.lasted(asyncio.get_running_loop().time())
        level = logging.INFO if self.main is None or self._warned else logging.DEBUG
        _log.log(level, "%s, after %.1f s without a connection", session, lasted)
        self._outage = None
        self.attempts.clear()
