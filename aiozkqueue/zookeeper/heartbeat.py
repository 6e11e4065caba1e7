"""Keeps the session alive, gives up a connection that does not answer, and detects a blocked event loop.

A server answers the requests and pings of a session in the order in which they arrive. So a ping that is answered while
an earlier request is not proves that the server, or something in front of it, is broken. So do notifications without
an answer to pings. `Progress` finds this out.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import TYPE_CHECKING, Protocol

import anyio

from aiozkqueue.errors import BlockedLoopWarning

if TYPE_CHECKING:
    from aiozkqueue.zookeeper.connection import Connection
    from aiozkqueue.zookeeper.states import StateMachine

_log = logging.getLogger(__name__)

_TICKS = 12  # per session timeout: the precision of the thirds below
_SHORTEST_TICK = 0.01  # seconds, even for a very short timeout
_PING_AFTER = 1 / 3  # of the session timeout, without a write
_DEAD_AFTER = 2 / 3  # of the session timeout, without a read: leaves time to resume the session elsewhere
_BLOCKED_AFTER = 1 / 3  # of the session timeout, by which the timer was late
#: Without the times, which are in the log: Python keeps every text that it has shown.
_BLOCKED = (
    "the event loop was blocked for more than a third of the session timeout: move blocking work to a thread; the log "
    "has the times"
)
_SLOWEST = 64 * 1024  # minimum bytes of a long reply within _DEAD_AFTER that count as progress


class Beating(Protocol):
    """The part of a session that the heartbeat uses."""

    @property
    def timeout(self) -> float:
        """The session timeout that the server has granted, seconds."""
        ...

    @property
    def states(self) -> StateMachine:
        """The state of the session."""
        ...

    @property
    def connection(self) -> Connection | None:
        """The connection that carries the session, if there is one."""
        ...


class Progress:
    """The time since which a connection has owed an answer without progress."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._answered = 0
        self._pongs = 0
        self._received = 0
        self._since = 0.0

    def since(self, connection: Connection, now: float) -> float:
        """Return the time of the last progress: an answer, a sizeable part of one, or nothing to answer."""
        if connection is not self._connection or self._has_progressed(connection):
            self._connection = connection
            self._answered = connection.answered
            self._pongs = connection.pongs
            self._received = connection.received
            self._since = now
        return self._since

    def _has_progressed(self, connection: Connection) -> bool:
        if connection.answered != self._answered:
            return True
        if connection.waiting:
            return connection.received - self._received >= _SLOWEST
        return connection.pongs >= connection.pings or connection.pongs > self._pongs


async def run(session: Beating) -> None:
    """Watch over the session's connections until cancelled."""
    clock = asyncio.get_running_loop().time
    resumed = 0.0
    progress = Progress()
    while True:
        timeout = session.timeout
        tick = max(timeout / _TICKS, _SHORTEST_TICK)
        due = clock() + tick
        with anyio.move_on_after(tick):  # or until the state changes: another session may have a shorter timeout
            await session.states.changed()
        now = clock()
        late = now - due
        if late > timeout * _BLOCKED_AFTER:
            _warn_blocked(late, timeout)
        connection = session.connection
        if connection is None:
            continue
        # Answers may be unread in the socket, so the server's silence counts from now. It does so once, because a loop
        # may be late at every tick.
        if late > tick and connection.last_received > resumed:
            resumed = now
        if now - connection.last_sent > timeout * _PING_AFTER - tick:
            connection.ping()
        silent = now - max(connection.last_received, resumed)
        stuck = now - max(progress.since(connection, now), resumed)
        if silent > timeout * _DEAD_AFTER:
            connection.abort(f"no answer for {silent:.1f} s")
        elif stuck > timeout * _DEAD_AFTER:
            owed = f"{connection.waiting} requests" if connection.waiting else "pings"
            connection.abort(f"{owed} without an answer for {stuck:.1f} s, though bytes arrive")


def _warn_blocked(late: float, timeout: float) -> None:
    _log.warning(
        "the event loop was blocked for %.1f s, and the ZooKeeper session ends after %.1f s without a heartbeat: move "
        "blocking work to a thread",
        late,
        timeout,
    )
    try:
        warnings.warn(_BLOCKED, BlockedLoopWarning, stacklevel=1)
    except BlockedLoopWarning:  # a warnings filter made it an error, which would end the session here without a report
        _log.debug("a warnings filter raises this warning; it has been logged")
