"""The writes that were refused: each is repaired, reduced, sent again, or failed.

A repair runs outside the slots, so that no other write waits for it. No request of its write is in progress at that
time, so the write can be withdrawn until it is queued again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from aiozkqueue.errors import AccessDeniedError, NotCommittedError, QueueError, SessionClosedError
from aiozkqueue.zookeeper import NoAuthError, ZooKeeperError

from .failures import CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import Operation

    from .write import AtomicWrite

#: Refusals of one write, for any cause, after which it must be reduced or fails. A write with more operations may be
#: refused once for each of them.
MAX_REPAIRS: Final = 20


class RepairedTogether:
    """A handler that repairs a refusal, and its cause in further operations of the same write where it is likely.

    A server reports only the first refused operation. A write to many queues or hours would otherwise be refused once
    for each of them, for example when the configurations of all have changed.
    """

    def __init__(self, refused: RefusalHandler, further: Sequence[tuple[RefusalHandler, Operation]]) -> None:
        self._refused = refused
        self._further = further

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Repair all at the same time; see `RefusalHandler`."""
        repairs = [self._refused.repair(operation, error)]
        repairs += [handler.repair(its_operation, error) for handler, its_operation in self._further]
        in_progress = [repair for repair in repairs if repair is not None]
        return _gathered(in_progress) if in_progress else None


async def _gathered(repairs: Sequence[Coroutine[object, object, None]]) -> None:
    await asyncio.gather(*repairs)


class Repairs:
    """The repairs of one committer. ``resubmit`` queues a write again."""

    def __init__(self, tasks: TaskOwner, resubmit: Callable[[AtomicWrite], None]) -> None:
        self._tasks = tasks
        self._resubmit = resubmit
        self._in_progress: dict[AtomicWrite, anyio.CancelScope] = {}

    def begin(
        self,
        batch: list[AtomicWrite],
        member: AtomicWrite,
        handler: RefusalHandler,
        operation: Operation,
        error: ZooKeeperError,
    ) -> None:
        """Take a refused write out of its batch; send it again, or repair it first, or fail it, as its handler decides.

        After too many refusals it must be reduced; see `MAX_REPAIRS`.
        """
        member.part.repairs += 1
        if member.part.repairs > (most := max(MAX_REPAIRS, member.operation_count)):
            msg = f"transaction {member.transaction_id}: refused {most} times; last error: {error}"
            self.reduce(batch, member, NotCommittedError(msg))
        else:
            self._take_out(batch, member, partial(handler.repair, operation, error))

    def reduce(self, batch: list[AtomicWrite], member: AtomicWrite, error: QueueError) -> None:
        """Take a write out of its batch that would be refused again; reduce it, or fail it with this error."""
        self._take_out(batch, member, partial(member.part.reduce, error))

    def withdraw(self, atomic_write: AtomicWrite) -> bool:
        """End the repair of a write; return False if it is not being repaired."""
        scope = self._in_progress.pop(atomic_write, None)
        if scope is None:
            return False
        scope.cancel()
        return True

    def _take_out(
        self,
        batch: list[AtomicWrite],
        member: AtomicWrite,
        answer: Callable[[], Coroutine[object, object, None] | None],
    ) -> None:
        """Take a write out of its batch: send it again now, or after the repair that ``answer`` returns, or fail it."""
        try:
            repair = answer()
        except QueueError as reported:
            batch.remove(member)
            member.fail(reported)
            return
        batch.remove(member)
        if repair is not None:
            self._start(member, repair)
        else:
            self._resubmit(member)

    def _start(self, atomic_write: AtomicWrite, repair: Coroutine[object, object, None]) -> None:
        self._in_progress[atomic_write] = scope = anyio.CancelScope()
        self._tasks.spawn(self._run, atomic_write, repair, scope, name="repair")

    async def _run(
        self, atomic_write: AtomicWrite, repair: Coroutine[object, object, None], scope: anyio.CancelScope
    ) -> None:
        """Repair the cause of a refusal, and send the write again."""
        try:
            with scope:
                await repair
                if any(state.snapshot.capacity is not None for state in atomic_write.part.queues):
                    await atomic_write.part.reserve_again(atomic_write)
        except NoAuthError as error:
            denied = AccessDeniedError(f"{error}; {error.advice}")
            denied.__cause__ = error
            atomic_write.fail(denied)
        except (QueueError, ZooKeeperError) as error:
            atomic_write.fail(error if isinstance(error, QueueError) else NotCommittedError(f"{error}"))
        except asyncio.CancelledError:
            atomic_write.fail(SessionClosedError(f"{CLOSED} before this was applied; nothing was stored"))
            raise
        else:
            if not scope.cancel_called:  # it was not withdrawn
                self._resubmit(atomic_write)
        finally:
            self._in_progress.pop(atomic_write, None)
