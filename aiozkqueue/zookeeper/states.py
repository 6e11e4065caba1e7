"""The state of a client, the only function that changes it, and the tasks that wait for changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.interface import State

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_MOVES: dict[State, frozenset[State]] = {
    State.CONNECTING: frozenset({State.CONNECTED, State.FAILED, State.CLOSED}),
    State.CONNECTED: frozenset({State.SUSPENDED, State.CLOSED}),
    State.SUSPENDED: frozenset({State.CONNECTED, State.LOST, State.FAILED, State.CLOSED}),
    State.LOST: frozenset({State.CONNECTED, State.FAILED, State.CLOSED}),
    State.FAILED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

#: A tuple: hashing a state would take longer than comparing it, and every request checks it.
_OVER = (State.LOST, State.FAILED, State.CLOSED)


class StateMachine:
    """The state and the generation, which change together."""

    def __init__(self) -> None:
        self.state: State = State.CONNECTING
        self.generation: int = 0
        self._callbacks: dict[object, Callable[[State, int], None]] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}  # a dict for its order, which a set lacks

    def move(self, state: State, *, new_session: bool = False) -> None:
        """Change the state, count a new session, wake the waiters, then notify the callbacks.

        Raises:
            RuntimeError: this transition is not allowed.
        """
        if state not in _MOVES[self.state]:
            raise RuntimeError(f"a ZooKeeper client cannot change from {self.state.value} to {state.value}")
        _log.debug("%s -> %s", self.state.value, state.value)
        self.state = state
        self.generation += new_session
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(state, self.generation)
            except Exception:  # noqa: BLE001 - one listener's mistake must not stop the others, or the session
                _log.exception("a state callback failed")

    def is_over(self, generation: int) -> bool:
        """Whether the session of this generation can never be used again."""
        return generation < self.generation or self.state in _OVER

    async def changed(self) -> None:
        """Wait for the next change."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def on_change(self, callback: Callable[[State, int], None]) -> Callable[[], None]:
        """Call back on each change; return a function that removes the callback."""
        key = object()
        self._callbacks[key] = callback

        def off() -> None:
            self._callbacks.pop(key, None)

        return off
