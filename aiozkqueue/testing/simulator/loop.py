"""An event loop on a virtual clock that jumps to the next timer instead of waiting, and processes that can be paused.

Programs on this loop read the time from `asyncio.AbstractEventLoop.time`, so sleeps, timeouts and anyio's deadlines are
all virtual. The order of callbacks depends only on the program: one program has one history.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import socket
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar, TypeVarTuple

from anyio._backends._asyncio import CancelScope

from aiozkqueue.runtime.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log: Final = logging.getLogger(__name__)

#: The duration of one round of callbacks. A loop that spins, as anyio's does around a cancelled scope, sees time pass.
ROUND = 1e-6
#: Rounds without a timer after which the clock jumps to the next one even if callbacks are ready.
MOST_ROUNDS = 2_000
#: Seconds of virtual time that a program may take by default.
LIMIT = 3_600.0

#: The number of times that tasks left at the end are cancelled.
_MOST_CANCELLATIONS = 20

EPOCH = 1_900_000_000.0


class StuckError(Exception):
    """The program cannot continue: nothing is due, or its time is up. Names the waiting tasks and where they wait."""


class Process:
    """The callbacks of one simulated process: all work started in its context. It can be paused."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.paused_since: float | None = None
        self.deferred: deque[asyncio.Handle] = deque()

    def pause(self, seconds: float) -> None:
        """Stop scheduling it, as after SIGSTOP; time continues."""
        if self.paused_since is None:
            self.paused_since = self._loop.time()
            self._loop.paused.add(self)
            self._loop.call_later(seconds, self.resume)

    def resume(self) -> None:
        """Continue with all callbacks that have become due in the meantime."""
        self.paused_since = None
        self._loop.paused.discard(self)
        self._loop.put_back(self.deferred)


#: The process that the running callback belongs to.
PROCESS: ContextVar[Process | None] = ContextVar("aiozkqueue_simulated_process", default=None)


class _Task(asyncio.Task[T]):
    """A task whose order in sets is set by the program instead of memory addresses."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as asyncio.Task's
        self._number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _Timer(asyncio.TimerHandle):
    """A timer that equals no other, so that two timers for the same time are never compared by their callbacks."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class _OrderedSet(dict[Any, None]):
    """The part of a set's interface that anyio uses, in insertion order."""

    def add(self, item: object) -> None:
        self[item] = None

    def remove(self, item: object) -> None:
        del self[item]

    def discard(self, item: object) -> None:
        self.pop(item, None)


@contextmanager
def _scopes_in_order() -> Iterator[None]:
    """Let anyio cancel nested scopes in the order of entry instead of that of their addresses."""
    init = CancelScope.__init__

    def ordered(self: CancelScope, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed through
        init(self, *args, **kwargs)
        self._child_scopes = _OrderedSet()  # type: ignore[assignment]  # nowhere else to change it

    CancelScope.__init__ = ordered  # type: ignore[method-assign]
    try:
        yield
    finally:
        CancelScope.__init__ = init  # type: ignore[method-assign]


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop. It has no files, sockets, threads or signals: functions for a thread run at once."""

    _closed: bool
    _stopping: bool
    _ready: deque[asyncio.Handle]
    #: The comparison of numbers in C; a handle's own is in Python.
    _scheduled: list[tuple[float, asyncio.TimerHandle]]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._rounds = 0
        self._tasks_made = 0
        self.paused: set[Process] = set()
        self.limit = LIMIT
        self.failures: list[str] = []
        self.set_exception_handler(self._failed)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # typeshed's protocol is not for methods

    def time(self) -> float:
        """Return seconds since the loop was made."""
        return self._now

    # As in BaseEventLoop, without its debugging, which takes longer than the callbacks

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call it in the next round."""
        if self._closed:
            raise RuntimeError("the loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at this time of the loop."""
        if self._closed:
            raise RuntimeError("the loop is closed")
        timer = _Timer(when, callback, args, self, context)
        heappush(self._scheduled, (when, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after this many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(
        self,
        executor: object,  # noqa: ARG002 - the event loop's
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Call a function now, outside of the loop as in a thread: its real time takes no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        asyncio._set_running_loop(None)  # noqa: SLF001 - meant for event loops
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(self)  # noqa: SLF001 - as above
        return future

    async def getaddrinfo(self, host: object, *_: object, **__: object) -> Never:
        """There is no network on virtual time, and a lookup of a name could take seconds of real time.

        Raises: OSError.
        """
        raise socket.gaierror(socket.EAI_NONAME, f"{host}: a simulated program has no network")

    def put_back(self, handles: deque[asyncio.Handle]) -> None:
        """Schedule callbacks again that were held."""
        self._ready.extend(handles)
        handles.clear()

    def _make_task(
        self,
        _: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T],
        **options: Any,  # noqa: ANN401 - as asyncio.Task's
    ) -> asyncio.Task[T]:
        self._tasks_made += 1
        return _Task(self._tasks_made, coroutine, loop=self, **options)

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("%s", context["message"], exc_info=error)
        self.failures.append(f"{context['message']}: {error!r}")

    # The methods that BaseEventLoop calls and leaves to its subclasses

    def _run_once(self) -> None:
        # One call runs all rounds until the stop: a history has thousands of rounds, with one or two callbacks each.
        ready, paused = self._ready, self.paused
        while True:
            self._advance()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:  # noqa: SLF001 - as BaseEventLoop does
                    continue
                if paused:
                    process = handle._context.get(PROCESS)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
                    if process in paused:
                        process.deferred.append(handle)
                        continue
                handle._run()  # noqa: SLF001 - as BaseEventLoop does
            if self._stopping:
                return

    def _advance(self) -> None:
        """If no callback is ready, move the clock to the next timer; make the due timers ready."""
        scheduled, ready, now = self._scheduled, self._ready, self._now
        while scheduled and scheduled[0][1]._cancelled:  # noqa: SLF001 - as BaseEventLoop does
            heappop(scheduled)
        self._rounds += 1
        if scheduled:
            due = scheduled[0][0]
            if self._rounds > MOST_ROUNDS or not (ready or self._stopping):
                now = max(now, due)
                self._rounds = 0
            while due <= now:
                ready.append(heappop(scheduled)[1])
                self._rounds = 0
                due = scheduled[0][0] if scheduled else inf
        elif not (ready or self._stopping):
            raise StuckError(f"nothing will ever be due; {waiting(self)}")
        self._now = now + ROUND
        if now > self.limit:
            raise StuckError(f"not done after {now:.0f} s of virtual time; {waiting(self)}")

    def _process_events(self, _: object) -> None:
        """Return nothing: there are no file descriptors."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads to wake the loop."""

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are dropped when their time comes."""


class LoopClock(Clock):
    """The running loop's time as a machine's clock."""

    def __init__(self, epoch: float = EPOCH) -> None:
        self._epoch = epoch
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        """Return seconds since 1970."""
        return self._epoch + self._loop.time()

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._loop.time()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection, because the time of finalizers would depend on the process's other allocations."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], *, limit: float = LIMIT) -> T:
    """Run a program on a virtual clock, as `asyncio.run` does on the real one.

    Args:
        main: the coroutine to run.
        limit: the maximum seconds of virtual time.

    Raises:
        StuckError: the program cannot end, or takes longer.
    """
    loop = VirtualLoop()
    loop.limit = limit
    with _scopes_in_order(), _no_collection():
        try:
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(main())
        finally:
            try:
                loop.limit += LIMIT
                _cancel_all(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()


def waiting(loop: asyncio.AbstractEventLoop) -> str:
    """Describe which tasks wait, and where."""
    lines = [f"{task.get_name()} at {_innermost(task)}" for task in asyncio.all_tasks(loop)]
    return "; ".join(sorted(lines)) or "no task waits"


def _innermost(task: asyncio.Task[Any]) -> str:
    """Return where the coroutines of this package or its user, nested in a task, wait."""
    where: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            where.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(where[-5:])


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel the remaining tasks, repeatedly if needed: the collector would run them in another loop."""
    for process in list(loop.paused):
        process.resume()
    for task in asyncio.all_tasks(loop):
        _close_unstarted(task)
    for _ in range(_MOST_CANCELLATIONS):
        tasks = sorted(asyncio.all_tasks(loop), key=hash)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        with suppress(StuckError):
            loop.run_until_complete(asyncio.wait(tasks))


def _close_unstarted(task: asyncio.Task[Any]) -> None:
    """Close the coroutines that a task which has never run was made for: the collector would warn about them.

    They are arguments of the task's own coroutine, or belong to one: anyio passes an object with the coroutine.
    """
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        arguments = list(inspect.getcoroutinelocals(coroutine).values())
        for value in [*arguments, *gc.get_referents(*arguments)]:
            if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                value.close()
