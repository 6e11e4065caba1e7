"""The tasks that a session owns, and a wait that survives cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import anyio
import anyio.abc

from aiozkqueue.errors import SessionClosedError

from .exception_groups import first_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

T = TypeVar("T")


class _Sniffed(Protocol):
    """The object through which sniffio is told which library runs in a thread."""

    name: str | None


def _sniffed_here() -> _Sniffed | None:
    try:
        from sniffio import thread_local  # noqa: PLC0415 - it comes with other packages, and with older anyio
    except ImportError:
        return None
    return thread_local


_sniffed: Final = _sniffed_here()


async def within(limit: float | None, awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable. Raises: TimeoutError: it took more than ``limit`` seconds."""
    async with asyncio.timeout(limit):
        return await awaitable


def start_task(
    group: anyio.abc.TaskGroup,
    function: Callable[..., Coroutine[Any, Any, Any]],
    *args: object,
    name: str | None = None,
) -> None:
    """Start a task in a group, also from a callback of the event loop.

    If sniffio is installed, anyio asks it which library runs. Outside tasks, sniffio knows only the name that is set
    here.
    """
    if _sniffed is None:
        group.start_soon(function, *args, name=name)
        return
    before, _sniffed.name = _sniffed.name, "asyncio"
    try:
        group.start_soon(function, *args, name=name)
    finally:
        _sniffed.name = before


class TaskOwner:
    """A task group that lives in its own task.

    It can be closed from a task other than the one that opened it. A failure inside neither cancels the body that uses
    it nor wraps that body's exceptions: it is stored in `failure` and passed to ``on_failure``. If other code cancels
    one of the tasks, all of them end, and that counts as a failure too.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._on_failure = on_failure
        self._group: anyio.abc.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.failure: BaseException | None = None

    async def start(self) -> None:
        """Open the group."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=self._name)
        await ready

    def spawn(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: object, name: str) -> None:
        """Start a task in the group. Raises: SessionClosedError: it is not open."""
        if self._group is None:
            raise SessionClosedError(f"{self._name}: it has been closed, and starts no more tasks")
        start_task(self._group, function, *args, name=f"{self._name}: {name}")

    def runs_current_task(self) -> bool:
        """Return whether the running task is in the group, or in a group of one of its tasks: it must not close it."""
        parents = {task.id: task.parent_id for task in anyio.get_running_tasks()}
        task: int | None = anyio.get_current_task().id
        while task is not None and task != id(self._task):
            task = parents.get(task)
        return task is not None

    async def close(self) -> None:
        """Cancel the remaining tasks and wait for them, even if the caller is cancelled repeatedly."""
        self._stop.set()
        if self._task is not None:
            await wait_settled(self._task)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                ready.set_result(None)
                await self._stop.wait()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            failure = first_of(failures)
        finally:
            self._group = None
            if failure is None and not self._stop.is_set():
                failure = RuntimeError(f"a task of the {self._name} was cancelled by another task")
            if failure is not None:
                self.failure = failure
                if self._on_failure is not None:
                    self._on_failure(failure)


async def wait_settled(future: asyncio.Future[T], *, grace: float | None = None, limit: float | None = None) -> None:  # noqa: C901 - one state machine, read best in one piece
    """Wait until a future is done, through any number of cancellations; then re-raise the cancellation.

    The wait lasts up to ``limit`` seconds (None: unlimited), and up to ``grace`` seconds after the first cancellation
    (None: as without one). The future is never cancelled. The caller reads its result or error. A shielded scope alone
    is not enough: it does not hold off ``task.cancel()``, ``asyncio.timeout`` and ``asyncio.TaskGroup``.

    Raises:
        asyncio.CancelledError: the caller was cancelled during the wait; ``future`` may or may not be done.
    """
    if future.done():
        return
    loop = asyncio.get_running_loop()
    deadline = None if limit is None else loop.time() + limit
    cancelled: asyncio.CancelledError | None = None
    if limit is None:
        try:  # the usual case, at a fraction of the cost of the loop below
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.done():
                if not future.cancelled():
                    raise
                return
            cancelled = error
            deadline = None if grace is None else loop.time() + grace
        except Exception:  # noqa: BLE001 - the caller reads it from the future
            return
        else:
            return
    with anyio.CancelScope(shield=True):
        while not future.done():
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait((future,), timeout=left)
            except asyncio.CancelledError as error:
                if cancelled is None:
                    cancelled = error
                    deadline = deadline if grace is None else loop.time() + grace
    if cancelled is not None:
        raise cancelled


async def run_limited(limit: int, functions: Sequence[Callable[[], Coroutine[object, object, T]]]) -> list[T]:
    """Run all functions, up to ``limit`` at once. Raises: the first failure; the other functions are cancelled."""
    semaphore = asyncio.Semaphore(limit)

    async def run(function: Callable[[], Coroutine[object, object, T]]) -> T:
        async with semaphore:
            return await function()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(function)) for function in functions]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__  # its own cause, not the group
    return [task.result() for task in tasks]
