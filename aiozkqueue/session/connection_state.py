"""The connection state as users of Curator know it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import ZooKeeper


class ConnectionState(enum.Enum):
    """The state of the connection."""

    SUSPENDED = "suspended"
    """There is no connection: other consumers may have this session's messages. One of the other states follows."""
    RECONNECTED = "reconnected"
    """There is a connection again, of the old ZooKeeper session or, after LOST, of a new one."""
    LOST = "lost"
    """The server has declared the ZooKeeper session over: every lock is gone."""


_STATES = {
    State.SUSPENDED: ConnectionState.SUSPENDED,
    State.CONNECTED: ConnectionState.RECONNECTED,
    State.LOST: ConnectionState.LOST,
}


def on_connection_state(zookeeper: ZooKeeper, callback: Callable[[ConnectionState], object]) -> Callable[[], None]:
    """Call ``callback`` with each new state; return a function that removes the callback."""

    def report(state: State, generation: int) -> None:
        del generation
        connection_state = _STATES.get(state)
        if connection_state is not None:
            callback(connection_state)

    return zookeeper.on_state(report)
