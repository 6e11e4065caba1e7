"""An action of another client between two requests of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.session.internals import core_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiozkqueue as zq

_REQUESTS = ("read", "read_many", "read_versioned", "children", "children_into", "exists", "multi", "sync")


class Between:
    """Runs an action between the answer to a session's n-th request, counted from now, and the use of the answer."""

    def __init__(self, session: zq.QueueSession, number: int, action: Callable[[], Awaitable[object]]) -> None:
        self.reached = False
        self._left = number
        self._action = action
        zookeeper = core_of(session).zookeeper
        for name in _REQUESTS:
            setattr(zookeeper, name, self._then(getattr(zookeeper, name)))

    def _then(self, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def requested(*args: Any, **options: Any) -> Awaitable[Any]:
            return self._answered(request(*args, **options))  # sent during the call, as without the patch

        return requested

    async def _answered(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        finally:
            self._left -= 1
            if self._left == 0:
                self.reached = True
                await self._action()
