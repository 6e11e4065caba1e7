"""The end of a call while no server answers, and the error that states whether any part may have been applied.

A call may take long if there is much to do. Its limit is the time since the client last received anything from a
server. For a call that changes something, it is also the time since a server last answered a change, while one waits
for its answer. If the servers refuse the credentials when the client reconnects, it never receives an answer, and the
call ends at once.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from aiozkqueue.errors import ConnectionLostError, NotCommittedError, OutcomeUnknownError

from .errors import MultiError, NotConnectedError, ServerError, refuses_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Token
    from types import TracebackType

    from aiozkqueue.errors import QueueError

    from .interface import ZooKeeper

P = ParamSpec("P")
T = TypeVar("T")

#: The limit of the call that runs in this context; None: it has none.
current_call: ContextVar[CallLimit | None] = ContextVar("aiozkqueue_call", default=None)


class CallLimit:
    """Cancels its block and raises an error when no server has answered for ``seconds`` since the block began.

    The error is the one of a read, unless the block is marked as one that ``writes``. An error code that no part of
    the call understands ends the block with the same error.
    """

    __slots__ = (
        "_began",
        "_cancelling",
        "_task",
        "_timer",
        "_token",
        "_unanswered",
        "_what",
        "_zookeeper",
        "changing",
        "expired",
        "seconds",
        "sent",
        "writes",
    )

    def __init__(self, zookeeper: ZooKeeper, seconds: float, what: str) -> None:
        self._zookeeper = zookeeper
        self._what = what
        self._timer: asyncio.TimerHandle | None = None
        self._token: Token[CallLimit | None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._began = 0.0
        self._unanswered = 0
        self.seconds = seconds
        self.writes = False
        """Whether the call changes anything."""
        self.sent = False
        """Whether a change was sent that was applied, or may have been."""
        self.changing = 0
        """How many parts of the call send changes with `until_answered`. Meanwhile, its multis count as sent."""
        self.expired = False
        """Whether no server answered in time."""

    async def __aenter__(self) -> Self:
        self._task = task = asyncio.current_task()
        assert task is not None  # noqa: S101 - coroutines run in tasks
        self._cancelling = task.cancelling()
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._timer = loop.call_later(self.seconds, self._on_timer)
        self._token = current_call.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timer is not None and self._token is not None and self._task is not None  # noqa: S101, PT018 - entered
        self._timer.cancel()
        current_call.reset(self._token)
        enclosing = current_call.get()
        if enclosing is not None:  # its error covers what this call has sent
            enclosing.sent = enclosing.sent or self.in_doubt
        if self.expired and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise self._error() from error
        if self.writes and self.in_doubt and refuses_credentials(error):
            raise self._unknown(f"{self._what}: {error}") from error
        refusal = error.error if isinstance(error, MultiError) else error
        if isinstance(refusal, ServerError) or (self.writes and isinstance(refusal, ConnectionLostError)):
            raise self._failed(f"{self._what}: {refusal}") from error

    def count(self, reply: asyncio.Future[Any]) -> None:
        """Count a multi as a change that was sent, until its reply reports that it was not applied."""
        if not reply.done():
            self._unanswered += 1
            reply.add_done_callback(self._on_reply)

    def _on_reply(self, reply: asyncio.Future[Any]) -> None:
        self._unanswered -= 1
        error = None if reply.cancelled() else reply.exception()
        self.sent = self.sent or not isinstance(error, MultiError | NotConnectedError | ServerError)

    @property
    def in_doubt(self) -> bool:
        """Whether a part of the call may have been applied."""
        return self.sent or self._unanswered > 0

    def _on_timer(self) -> None:
        loop, zookeeper = asyncio.get_running_loop(), self._zookeeper
        answered = zookeeper.last_answered if self.writes else zookeeper.last_received
        left = max(self._began, answered) + self.seconds - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._on_timer)
            return
        self.expired = True
        assert self._task is not None  # noqa: S101 - entered
        self._task.cancel()

    def _error(self) -> QueueError:
        zookeeper = self._zookeeper
        why = f"{self._what}: no answer from ZooKeeper within {self.seconds:g} s"
        if zookeeper.throttled:
            why += ", because the server has too much to do and drops requests"
        elif zookeeper.last_received > zookeeper.last_answered:
            why += " to any change, although it answers reads"
        return self._failed(why)

    def _failed(self, why: str) -> QueueError:
        if not self.writes:
            return ConnectionLostError(f"{why}; try again when a server is available")
        if not self.in_doubt:
            return NotCommittedError(f"{why}; nothing was applied; try again")
        return self._unknown(why)

    def _unknown(self, why: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(f"{why}; a part of it may have been applied; check that before you repeat it", "")


class Limited(Protocol):
    """An object whose calls have a limit."""

    @property
    def _limit(self) -> CallLimit:
        """A new limit for one call. Raises: SessionClosedError, WrongLoopError."""
        ...


S = TypeVar("S", bound=Limited)


def reads(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Limit a call that only reads: it raises ConnectionLostError while no server answers."""
    return _limited(call, writes=False)


def changes(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Limit a call that changes something: NotCommittedError or OutcomeUnknownError ends it while no server answers.

    It raises OutcomeUnknownError, not AccessDeniedError, if the servers refuse the credentials after a change was sent.
    """
    return _limited(call, writes=True)


def _limited(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]], *, writes: bool
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    @wraps(call)
    async def limited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._limit as limit:
            limit.writes = writes
            return await call(self, *args, **kwargs)

    return limited
