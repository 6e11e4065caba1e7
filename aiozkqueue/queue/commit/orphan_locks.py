"""The removal of an orphan lock: one of our own locks, without an item that can be delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, NotCommittedError, SessionExpiredError
from aiozkqueue.zookeeper import (
    NO_VERSION,
    BadVersionError,
    Check,
    Delete,
    NoAuthError,
    NoNodeError,
    ServerError,
    ZooKeeperError,
)

from .write import OPERATION_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result

    from .meter import Meter
    from .write import Composition


#: Seconds until a removal that ZooKeeper has refused is repeated.
AGAIN: Final = 5.0
#: Seconds until a lock is read again after a refused read, and until a failed removal is submitted again.
LATER: Final = 60.0


class LockRef(NamedTuple):
    """One of our own locks."""

    path: str
    record: bytes
    """Its data, which distinguishes it from all other locks."""
    forced_version: int
    """The version of the locks znode at some time before the lock was created, or while it was ours."""
    configured: int = -1
    """For a group's lock, also that of the configuration: in a queue that is created again, it has the same path."""

    def unverified(self) -> LockRef:
        """Return a reference whose removal first checks that the lock is ours: the folder never has its version."""
        return self._replace(forced_version=NO_VERSION)


class RemoveOrphanLock(Part):
    """The removal of a lock without a usable item: the item has been consumed, or this user may not read it.

    No item can fence the removal, and a lock that another client created after ours was removed by force has
    the same path. So no lock of the queue may have been removed by force since ours was created. If one was, the lock's
    data is read again. The ``wakeup`` operations wake idle consumers in the same multi.
    """

    __slots__ = ("_gone", "_lock", "_state", "_wakeup", "generation", "over")

    def __init__(
        self,
        generation: int,
        state: QueueState,
        lock: LockRef,
        gone: Callable[[], None],
        *,
        wakeup: Sequence[Operation] = (),
    ) -> None:
        super().__init__((3 + len(wakeup)) * OPERATION_WEIGHT)
        self.generation = generation
        self._state = state
        self._lock = lock
        self._gone = gone
        self._wakeup = wakeup
        self.over: bool = False
        """Whether the lock is gone, or must be left."""

    def compose(self, composition: Composition) -> None:
        """Add the removal of the lock."""
        sent = composition.operations
        if self._lock.configured >= 0:
            sent.append(Check(self._state.paths.base, self._lock.configured))
        sent += (Check(self._state.paths.locks, self._lock.forced_version), Delete(self._lock.path))
        sent += self._wakeup

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Read the lock if a lock was removed by force since; otherwise it is gone, or cannot be removed now."""
        if operation.path in {self._state.paths.locks, self._state.paths.base} and isinstance(error, BadVersionError):
            return self._read_lock()
        if operation in self._wakeup:
            self._wakeup = ()  # the lock must be removed even if the wake-up fails: idle consumers also poll
            return None
        if isinstance(error, NoNodeError):
            self._end()
            raise ClaimLostError(f"{self._lock.path}: {error}")
        raise NotCommittedError(f"{self._lock.path}: {error}")

    def reduce(self, error: QueueError) -> Coroutine[object, object, None] | None:  # noqa: ARG002 - whatever it is
        """Read the lock again later: ZooKeeper refuses everything now, or it may have been removed."""
        self.repairs = 0
        self._lock = self._lock.unverified()
        return asyncio.sleep(AGAIN)

    def _end(self) -> None:
        self.over = True
        self._gone()

    async def _read_lock(self) -> None:
        lock, generation = self._lock, self.generation
        assert generation is not None  # noqa: S101 - every lock belongs to a session
        try:
            versions = await self._state.read_versions(lock.path, lambda node: node.data == lock.record, generation)
        except (NoAuthError, ServerError):
            await asyncio.sleep(LATER)  # the lock may be ours: it is read again
            return
        except ZooKeeperError:
            self._end()  # the session has ended
            raise
        if versions is None:
            self._end()
            raise ClaimLostError(f"{lock.path}: released by force")
        self._lock = LockRef(lock.path, lock.record, *versions)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: ARG002 - neither is needed
        """Report that the lock is gone."""
        self._end()

    def failed(self, error: BaseException) -> None:
        """Report that the lock is gone if the server has removed it."""
        if isinstance(error, SessionExpiredError):
            self._end()

    def again(self, wakeup: Sequence[Operation]) -> None:
        """Prepare to be submitted again after a failure, by which the lock may have changed."""
        self.repairs, self._wakeup = 0, wakeup
        self._lock = self._lock.unverified()
