"""Keep the session alive, give up a connection that does not answer, and notice a blocked event loop.

A server answers the requests and pings of a session in the order in which they arrive. So a ping that is answered while
an earlier request is not proves that the server, or something in front of it, is broken. `Progress` finds this out.
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

_TICKS = 12  # per session timeout: how exactly the thirds below are kept
_SHORTEST_TICK = 0.01  # seconds, whatever timeout a server comes up with
_PING_AFTER = 1 / 3  # of the session timeout, without a write
_DEAD_AFTER = 2 / 3  # of the session timeout, without a read: time is left to resume the session elsewhere
_BLOCKED_AFTER = 1 / 3  # of the session timeout, that the timer came late
_SLOWEST = 64 * 1024  # bytes of a long reply that have to arrive within _DEAD_AFTER to count as progress


class Beating(Protocol):
    """What is kept alive: a session, as far as it matters here."""

    @property
    def timeout(self) -> float:
        """The session timeout that the server has granted, seconds."""
        ...

    @property
    def states(self) -> StateMachine:
        """Where it stands."""
        ...

    @property
    def connection(self) -> Connection | None:
        """The connection, while there is one that carries the session."""
        ...


class Progress:
    """Since when a connection has owed an answer without making progress with it."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._answered = 0
        self._received = 0
        self._since = 0.0

    def since(self, connection: Connection, now: float) -> float:
        """Return the time of the last progress: an answer, a sizeable part of one, or nothing being waited for."""
        if (
            connection is not self._connection
            or not connection.waiting
            or connection.answered != self._answered
            or connection.received - self._received >= _SLOWEST
        ):
            self._connection = connection
            self._answered = connection.answered
            self._received = connection.received
            self._since = now
        return self._since


async def run(session: Beating) -> None:
    """Watch over the session's connections until cancelled."""
    clock = asyncio.get_running_loop().time
    resumed = 0.0
    progress = Progress()
    while True:
        timeout = session.timeout
        tick = max(timeout / _TICKS, _SHORTEST_TICK)
        due = clock() + tick
        with anyio.move_on_after(tick):  # or until the state moves: another session may have a shorter timeout
            await session.states.changed()
        now = clock()
        late = now - due
        if late > tick:  # the server's answers may lie unread in the socket: its silence counts from now
            resumed = now
        if late > timeout * _BLOCKED_AFTER:
            _warn_blocked(late, timeout)
        connection = session.connection
        if connection is None:
            continue
        if now - connection.last_sent > timeout * _PING_AFTER - tick:
            connection.ping()
        silent = now - max(connection.last_received, resumed)
        stuck = now - max(progress.since(connection, now), resumed)
        if silent > timeout * _DEAD_AFTER:
            connection.abort(f"no answer for {silent:.1f} s")
        elif stuck > timeout * _DEAD_AFTER:
            connection.abort(f"{connection.waiting} requests without an answer for {stuck:.1f} s, though bytes arrive")


def _warn_blocked(late: float, timeout: float) -> None:
    message = (
        f"the event loop stood still for {late:.1f} s, and the ZooKeeper session ends after {timeout:.1f} s without a "
        "sign of life: move blocking work to a thread"
    )
    _log.warning("%s", message)
    try:
        warnings.warn(message, BlockedLoopWarning, stacklevel=1)
    except BlockedLoopWarning:  # made an error by a filter; here it would end the session instead of telling anyone
        _log.debug("the warning is set to raise; it has been logged")
