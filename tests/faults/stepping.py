"""Cancellation at every suspension, which a first run counts.

`Suspensions` is the loop's task factory: each time any task made by it suspends, it counts, and at the chosen count it
acts, either while the task is suspended or at the moment when what it waits for is there but it has not run yet. An
operation is run again and again, and cancelled at its 1st, 2nd, 3rd … suspension, until it ends before that one comes.
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

#: How long an operation may take, seconds; one that takes longer hangs.
PATIENCE: Final = 30.0


class Moment(enum.Enum):
    """When the chosen suspension is struck."""

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
    """Counts the suspensions of the loop's tasks, or of one of them alone."""

    def __init__(self) -> None:
        self.count = 0
        self._chosen = 0
        self._moment = Moment.WAITING
        self._act: Callable[[], object] | None = None
        self._only: asyncio.Task[Any] | None = None

    def install(self) -> None:
        """Watch every task that is made on the running loop from now on."""
        asyncio.get_running_loop().set_task_factory(self._make)

    def arm(
        self, chosen: int, moment: Moment, act: Callable[[], object], *, only: asyncio.Task[Any] | None = None
    ) -> None:
        """Act at the ``chosen`` suspension from now, of one task or of any."""
        self.count, self._chosen, self._moment, self._act, self._only = 0, chosen, moment, act, only

    def disarm(self) -> None:
        """Act no more."""
        self._act = None

    def _make(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(self._watched(coroutine), loop=loop, context=context)
        task.add_done_callback(lambda _: coroutine.close())  # as asyncio does, if it was cancelled before it began
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
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine, which answers to it
                step, sent = coroutine.throw, error


class _SiblingError(Exception):
    """Why the task group ends."""


async def _under(how: How, operation: Operation, arm: Callable[[Callable[[], object]], None]) -> object:
    """Run an operation where it can be cancelled in one of the ways; tell ``arm`` what cancels it."""
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
            if not returned:  # else the group heard of it too late to cancel anything: see test_stepping
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

    Returns whether that suspension came, and whether the operation returned as if nothing had been.

    Raises: TimeoutError when it hangs; whatever it raises besides its cancellation.
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
