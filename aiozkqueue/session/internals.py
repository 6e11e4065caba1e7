"""The interface between a session's public objects and the rest of the package; not part of the public interface.

Schedules, buses, the HTTP service, Spark and the metrics are built on queues and need their internals. They get them
from these functions, so that `QueueSession`, `Queue`, `Transaction` and `Delivery` need no further public members.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from aiozkqueue.errors import AccessDeniedError, PayloadError
    from aiozkqueue.operations.cleaning import Cleaned
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.state.queue_state import QueueState

    from .core import SessionCore
    from .unit_of_work import UnitOfWork


class _HasCore(Protocol):
    @property
    def _core(self) -> SessionCore: ...


class _HasRuntime(Protocol):
    @property
    def _runtime(self) -> SessionCore: ...


class _HasState(Protocol):
    @property
    def _state(self) -> QueueState: ...


class _HasHandle(Protocol):
    @property
    def _handle(self) -> QueueHandle[SessionCore]: ...


class _Cleans(Protocol):
    def _clean(
        self, queues: Sequence[str]
    ) -> Coroutine[object, object, tuple[list[Cleaned], list[AccessDeniedError | PayloadError]]]: ...


class _HasWork(Protocol):
    @property
    def _work(self) -> UnitOfWork: ...


class _Settled(Protocol):
    @property
    def _entered(self) -> bool: ...

    async def _settle_failed(self, error: BaseException) -> None: ...

    def _add_headers(self, headers: Mapping[str, str]) -> None: ...

    def _date_retries_from(self, date: int) -> None: ...


class _Service(Protocol):
    @property
    def _tasks(self) -> list[Callable[[], Coroutine[Any, Any, object]]]: ...
    @property
    def _activity(self) -> tuple[int, int]: ...


def core_of(owner: _HasCore) -> SessionCore:
    """Return the core of a session, or of a queue's session.

    Raises: InvalidOptionError: it is neither; SessionClosedError, WrongLoopError.
    """
    if not hasattr(type(owner), "_core"):
        msg = f"this takes a session, which `aiozkqueue.connect()` opens, not {type(owner).__name__}"
        raise InvalidOptionError(msg)
    return owner._core  # noqa: SLF001 - this module is the interface


def date_retries_from(delivery: _Settled, date: int) -> None:
    """Have the schedules of retries of a delivery count from a date, ms, instead of its message's own."""
    delivery._date_retries_from(date)  # noqa: SLF001 - this module is the interface


def inherited(session: _HasRuntime) -> bool:
    """Whether this process was forked from the one that opened the session."""
    return session._runtime.inherited  # noqa: SLF001 - this module is the interface


def state_of(queue: _HasState) -> QueueState:
    """Return a session's state of a queue. Raises: SessionClosedError, WrongLoopError."""
    return queue._state  # noqa: SLF001 - this module is the interface


def handle_of(queue: _HasHandle) -> QueueHandle[SessionCore]:
    """Return the handle of a queue in its session. Raises: SessionClosedError, WrongLoopError."""
    return queue._handle  # noqa: SLF001 - this module is the interface


def work_of(owner: _HasWork) -> UnitOfWork:
    """Return the unit of work of a transaction or a delivery."""
    return owner._work  # noqa: SLF001 - this module is the interface


def work_given(tx: _HasWork) -> UnitOfWork:
    """Return the unit of work of the ``tx=`` that a user gave. Raises: InvalidOptionError: it has none."""
    try:
        return work_of(tx)
    except AttributeError:
        msg = f"tx takes a transaction or a delivery, not {type(tx).__name__}; leave it out to act at once"
        raise InvalidOptionError(msg) from None


def was_entered(delivery: _Settled) -> bool:
    """Return whether an ``async with`` block settles a delivery."""
    return delivery._entered  # noqa: SLF001 - this module is the interface


async def settle_failed(delivery: _Settled, error: BaseException) -> None:
    """Settle a delivery by the error that ended its handler: `Retry`, `Reject`, or any other."""
    await delivery._settle_failed(error)  # noqa: SLF001 - this module is the interface


def add_headers(delivery: _Settled, headers: Mapping[str, str]) -> None:
    """Add headers to the message of a delivery if it is released."""
    delivery._add_headers(headers)  # noqa: SLF001 - this module is the interface


def run_with(listener: _Service, task: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a task whenever the listener runs; the task is cancelled when the listener ends."""
    listener._tasks.append(task)  # noqa: SLF001 - this module is the interface


def activity_of(listener: _Service) -> tuple[int, int]:
    """Return how many handlers of a listener run, and how many of its deliveries have ended."""
    return listener._activity  # noqa: SLF001 - this module is the interface


async def clean_readable(
    admin: _Cleans, queues: Sequence[str]
) -> tuple[list[Cleaned], list[AccessDeniedError | PayloadError]]:
    """Clean as `SessionAdmin.clean` does; return also the errors of the queues that cannot be read."""
    return await admin._clean(queues)  # noqa: SLF001 - this module is the interface
