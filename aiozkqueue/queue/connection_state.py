"""The connection as Curator's users know it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import ZooKeeper


class ConnectionState(enum.Enum):
    """What has become of the connection."""

    SUSPENDED = "suspended"
    """There is none: other consumers may have what is held here, and nothing is known until one of the others."""
    RECONNECTED = "reconnected"
    """There is one again, of the old ZooKeeper session or, after LOST, of a new one."""
    LOST = "lost"
    """The server has declared the ZooKeeper session over: every lock is gone."""


_STATES = {
    State.SUSPENDED: ConnectionState.SUSPENDED,
    State.CONNECTED: ConnectionState.RECONNECTED,
    State.LOST: ConnectionState.LOST,
}


def on_connection_state(zookeeper: ZooKeeper, callback: Callable[[ConnectionState], object]) -> Callable[[], None]:
    """Call back with each change; returns what takes the callback off again."""

    def tell(state: State, generation: int) -> None:
        del generation
        told = _STATES.get(state)
        if told is not None:
            callback(told)

    return zookeeper.on_state(tell)
