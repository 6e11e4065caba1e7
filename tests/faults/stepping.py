"""Cancellation at every suspension of an operation.

`Suspensions` is the loop's task factory. It counts the suspensions of the tasks that it creates and acts at the chosen
one: either while the task waits, or when the awaited result has arrived and the task has not continued yet. An
operation is repeated and cancelled at its 1st, 2nd, 3rd … suspension, until a run ends before the chosen one.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from contextvars import Context

Operation = Callable[[], Coroutine[Any, Any, object]]

#: Seconds that an operation may take; a longer one counts as hanging.
PATIENCE: Final = 30.0


class Moment(enum.Enum):
    """When a cancellation happens at the chosen suspension."""

    WAITING = "waiting"
    ANSWERED = "answered"


class How(enum.Enum):
    """The source of a cancellation."""

    NATIVELY = "natively"
    TWICE = "twice in a row"
    BY_TIMEOUT = "by asyncio.timeout"
    BY_GROUP = "by a task group"
    BY_SCOPE = "by an anyio scope"


class Suspensions:
    """Counts the suspensions of the loop's tasks, or of a single task."""

    def __init__(self) -> None:
        self.count = 0
        self._chosen = 0
        self._moment = Moment.WAITING
        self._act: Callable[[], object] | None = None
        self._only: asyncio.Task[Any] | None = None

    def install(self) -> None:
        """Count for every task that is created on the running loop from now on."""
        asyncio.get_running_loop().set_task_factory(self._make)

    def arm(
        self, chosen: int, moment: Moment, act: Callable[[], object], *, only: asyncio.Task[Any] | None = None
    ) -> None:
        """Call ``act`` at the ``chosen`` suspension from now on: of the task ``only``, or of any task."""
        self.count, self._chosen, self._moment, self._act, self._only = 0, chosen, moment, act, only

    def disarm(self) -> None:
        """Do not act at any further suspension."""
        self._act = None

    def _make(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(self._watched(coroutine), loop=loop, context=context)
        # As asyncio closes the coroutine of a task that was cancelled before it began.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    async def _watched(self, coroutine: Coroutine[Any, Any, Any]) -> object:
        return await _Watched(coroutine, self._suspended)

    def _suspended(self, awaited: object) -> None:
        act = self._act
        if act is None or (self._only is not None and asyncio.current_task() is not self._only):
            return
        self.count += 1
        if self.count != self._chosen:
            return
        if self._moment is Moment.ANSWERED and isinstance(awaited, asyncio.Future):
            awaited.add_done_callback(lambda _: act())
        else:
            asyncio.get_running_loop().call_soon(act)


class _Watched(Awaitable[object]):
    def __init__(self, coroutine: Coroutine[Any, Any, object], suspended: Callable[[object], None]) -> None:
        self._coroutine = coroutine
        self._suspended = suspended

    def __await__(self) -> Generator[Any, Any, object]:
        coroutine = self._coroutine
        step: Callable[[Any], Any] = coroutine.send
        sent: Any = None
        while True:
            try:
                awaited = step(sent)
            except StopIteration as end:
                return end.value
            self._suspended(awaited)
            try:
                step, sent = coroutine.send, (yield awaited)
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine, which handles it
                step, sent = coroutine.throw, error


class _SiblingError(Exception):
    """The error that ends the task group."""


async def _under(how: How, operation: Operation, arm: Callable[[Callable[[], object]], None]) -> object:
    """Run an operation so that it can be cancelled in the given way; pass ``arm`` the function that cancels it."""
    task = asyncio.current_task()
    assert task is not None
    if how is How.BY_TIMEOUT:
        async with asyncio.timeout(None) as timeout:
            arm(lambda: timeout.reschedule(0))
            return await operation()
    if how is How.BY_GROUP:
        failing = asyncio.Event()

        async def sibling() -> None:
            await failing.wait()
            raise _SiblingError

        result: object = None
        returned = False
        try:
            async with asyncio.TaskGroup() as group:
                other = group.create_task(sibling())
                arm(failing.set)
                result = await operation()
                returned = True
                other.cancel()
        except BaseExceptionGroup:
            if not returned:  # otherwise the operation had ended before the group could cancel it: see test_stepping
                raise
        return result
    if how is How.BY_SCOPE:
        with anyio.CancelScope() as scope:
            arm(scope.cancel)
            return await operation()
        raise asyncio.CancelledError

    def twice() -> None:
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)

    arm(twice if how is How.TWICE else task.cancel)
    return await operation()


async def run_cancelled(
    suspensions: Suspensions, chosen: int, moment: Moment, how: How, operation: Operation, *, everywhere: bool
) -> tuple[bool, bool]:
    """Run an operation and cancel it at one suspension.

    Returns whether the operation reached that suspension, and whether it returned in spite of the cancellation.

    Raises: TimeoutError if it hangs; any other error of the operation.
    """
    loop = asyncio.get_running_loop()

    def arm(cancel: Callable[[], object]) -> None:
        suspensions.arm(chosen, moment, cancel, only=None if everywhere else task)

    task = loop.create_task(_under(how, operation, arm))
    try:
        _, pending = await asyncio.wait({task}, timeout=PATIENCE)
    finally:
        suspensions.disarm()
    if pending:
        stack = "".join(f"\n  {frame}" for frame in task.get_stack())
        task.cancel()
        raise TimeoutError(f"cancelled {how.value} at suspension {chosen} ({moment.value}) it hangs:{stack}")
    reached = suspensions.count >= chosen
    if task.cancelled():
        return reached, False
    error = task.exception()
    if error is None:
        return reached, True
    cancelled_by_group = isinstance(error, BaseExceptionGroup) and error.subgroup(_SiblingError) is not None
    if cancelled_by_group or (how is How.BY_TIMEOUT and isinstance(error, TimeoutError)):
        return reached, False
    raise error
