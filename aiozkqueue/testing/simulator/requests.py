"""The requests of a simulated client, and their possible faults in transit."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context

    from aiozkqueue.zookeeper.interface import WatchEvent

T = TypeVar("T")

#: Two timers of one pipe never share an instant, so messages arrive in the order of sending.
_APART = 1e-9


class Kind(enum.Enum):
    """The operation of a request."""

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
    """One request. ``argument`` is the operations, the path or the paths, depending on its kind."""

    kind: Kind
    argument: Any
    size: int = 0
    results: int | None = None
    """For a multi, the number of results requested; None: all."""

    def answer(self, result: object) -> object:
        """Convert an answer to the client's result."""
        if self.kind is not Kind.MULTI or not isinstance(result, list):
            return result
        return cast("list[object]", result)[: self.results]


class Notifications(NamedTuple):
    """Watch events that arrive together."""

    events: list[WatchEvent]


class Fault(enum.Enum):
    """The fate of a request and of its connection."""

    LOST_BEFORE = "the connection goes before the request is applied"
    LOST_AFTER = "the request is applied, and the connection goes before the reply"
    LATE = "the connection goes, and the request is applied a while later"
    DROPPED = "the server has too much to do: it answers that it has dropped the request"
    SILENCE = "nothing passes any more, and neither side notices"


def _never() -> bool:
    return False


def _at_once() -> float:
    return 0.0


@dataclass
class Delays:
    """Durations, each as a function that draws seconds."""

    network: Callable[[], float]
    """From a client to its server, or back."""
    hop: Callable[[], float]
    """From a server to the leader, or from the leader to a server."""
    commit: Callable[[], float]
    """From the leader's check of a request until a majority has it."""
    lingering: Callable[[], float]
    """The additional delay of a late request."""
    together: Callable[[], bool] = _never
    """Whether a client reads the data in transit together with the data that has just arrived, as from a socket that
    has received more: all its events and replies are processed before any of their awaiters continues."""


def no_delays() -> Delays:
    """Return the delays of an ensemble in which everything happens at once."""
    return Delays(_at_once, _at_once, _at_once, _at_once)


class Pipe(Generic[T]):
    """Delivers messages in the order of sending, each after a delay, in a context of the receiver's.

    ``together`` returns whether messages in transit arrive with the one that has just arrived.
    """

    __slots__ = ("_context", "_delay", "_deliver", "_last", "_loop", "_queue", "_together", "closed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[T], object],
        delay: Callable[[], float],
        context: Context,
        together: Callable[[], bool] = _never,
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
        """Deliver it after all earlier messages."""
        if self.closed:
            return
        self._queue.append(what)
        at = max(self._loop.time() + self._delay(), self._last + _APART)
        self._last = at
        self._loop.call_at(at, self._next, context=self._context)

    @property
    def in_progress(self) -> tuple[T, ...]:
        """The messages that have been sent and have not arrived."""
        return tuple(self._queue)

    def close(self) -> None:
        """Drop the messages in transit and all later ones."""
        self.closed = True
        self._queue.clear()

    def _next(self) -> None:
        if self._queue:
            self._deliver(self._queue.popleft())
        while self._queue and self._together():
            self._deliver(self._queue.popleft())
