"""Another client's action between two requests of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiozkqueue as zq

_REQUESTS = ("read", "read_many", "read_versioned", "children", "children_into", "exists", "multi", "sync")


class Between:
    """Await an action between the answer to the n-th request of a session, from now on, and its use."""

    def __init__(self, session: zq.QueueSession, number: int, action: Callable[[], Awaitable[object]]) -> None:
        self.reached = False
        self._left = number
        self._action = action
        zookeeper = core_of(session).zookeeper
        for name in _REQUESTS:
            setattr(zookeeper, name, self._then(getattr(zookeeper, name)))

    def _then(self, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def requested(*args: Any, **options: Any) -> Awaitable[Any]:
            return self._answered(request(*args, **options))  # sent at the call, as without this

        return requested

    async def _answered(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        finally:
            self._left -= 1
            if self._left == 0:
                self.reached = True
                await self._action()
