"""What a simulated client sends, and what may happen to it on the way."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")

#: Two timers of one pipe never share an instant, so that what was sent first comes first.
_APART = 1e-9


class Kind(enum.Enum):
    """What a request asks for."""

    MULTI = "multi"
    READ = "read"
    READ_MANY = "read many"
    CHILDREN = "children"
    EXISTS = "exists"
    SYNC = "sync"
    ADD_WATCH = "add watch"
    REMOVE_WATCH = "remove watch"
    SET_WATCHES = "set watches"
    CLOSE = "close"


class Request(NamedTuple):
    """One request. ``argument`` is the operations, the path or the paths, as its kind has them."""

    kind: Kind
    argument: Any
    size: int = 0
    results: int | None = None
    """Of a multi, how many results are asked for; None: all."""

    def answer(self, result: object) -> object:
        """What the client makes of an answer."""
        if self.kind is not Kind.MULTI or not isinstance(result, list):
            return result
        return cast("list[object]", result)[: self.results]


class Fault(enum.Enum):
    """The fate of a request and of its connection."""

    LOST_BEFORE = "the connection goes before the request is applied"
    LOST_AFTER = "the request is applied, and the connection goes before the reply"
    LATE = "the connection goes, and the request is applied a while later"
    SILENCE = "nothing passes any more, and nobody is told"


def _one_by_one() -> bool:
    return False


def _at_once() -> float:
    return 0.0


@dataclass
class Delays:
    """How long things take, each as a function that draws seconds."""

    network: Callable[[], float]
    """From a client to its server, or back."""
    hop: Callable[[], float]
    """From a server to the leader, or from the leader to a server."""
    commit: Callable[[], float]
    """From the leader's check of a request until a majority has it."""
    lingering: Callable[[], float]
    """How much later a late request is applied."""
    together: Callable[[], bool] = _one_by_one
    """Whether a client reads what is under way to it together with what has just come, as it does from a socket that
    more has come to: the events and replies are all told before anybody who waited for one of them goes on."""


def no_delays() -> Delays:
    """Everything happens at once."""
    return Delays(_at_once, _at_once, _at_once, _at_once)


class Pipe(Generic[T]):
    """Delivers what is sent in its order, each a while later, in a context of the receiver's.

    ``together`` tells whether what is under way comes with what has just come.
    """

    __slots__ = ("_context", "_delay", "_deliver", "_last", "_loop", "_queue", "_together", "closed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[T], object],
        delay: Callable[[], float],
        context: Context,
        together: Callable[[], bool] = _one_by_one,
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._delay = delay
        self._context = context
        self._together = together
        self._queue: deque[T] = deque()
        self._last = 0.0
        self.closed: bool = False

    def send(self, what: T) -> None:
        """Deliver it after all that was sent before."""
        if self.closed:
            return
        self._queue.append(what)
        at = max(self._loop.time() + self._delay(), self._last + _APART)
        self._last = at
        self._loop.call_at(at, self._next, context=self._context)

    @property
    def under_way(self) -> tuple[T, ...]:
        """The bytes that were sent and have not arrived."""
        return tuple(self._queue)

    def close(self) -> None:
        """Drop what is under way, and what comes."""
        self.closed = True
        self._queue.clear()

    def _next(self) -> None:
        if self._queue:
            self._deliver(self._queue.popleft())
        while self._queue and self._together():
            self._deliver(self._queue.popleft())
