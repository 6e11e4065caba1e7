"""Removes the locks of failed claims, and wakes consumers that could not take the items in the meantime."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import OutcomeUnknownError, SessionClosedError
from aiozkqueue.layout import MalformedError
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.commit.orphan_locks import LATER, RemoveOrphanLock
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import (
    ClientClosedError,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
    SetData,
    ZooKeeperError,
    apply_until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from aiozkqueue.queue.commit.orphan_locks import LockRef

    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

#: Seconds between two checks for messages that came back; more when a check takes long.
CHECK_EVERY: Final = 1.0
CHECK_PAUSE_FACTOR: Final = 50


class ReadFailedError(Exception):
    """The locks were created, but the read that followed has failed.

    The caller has to remove the locks. ``sure`` is False when the locks may belong to another session.
    """

    def __init__(self, error: ZooKeeperError, *, sure: bool = True) -> None:
        super().__init__(str(error))
        self.error = error
        self.sure = sure


@contextmanager
def reading_locked_items() -> Iterator[None]:
    """Distinguish a failed read of locked items from other errors.

    Raises: ReadFailedError: the locks exist, and the read failed. SessionExpiredError, ClientClosedError, NoAuthError:
    as raised. The first two mean that the locks are gone.
    """
    try:
        yield
    except (SessionExpiredError, ClientClosedError, NoAuthError):
        raise
    except ZooKeeperError as error:
        raise ReadFailedError(error) from error


class OrphanLocks:
    """Removes the locks of items that one session has locked on one queue and cannot deliver."""

    def __init__(self, services: ClaimServices, size: int) -> None:
        self._state = services.state
        self._zookeeper = services.zookeeper
        self._committer = services.committer
        self._tasks = services.tasks
        self._ids = services.ids
        self._budgets = services.budgets
        self._size = size  # the share of the session's budget that one lock uses
        self._unlocking: dict[str, AtomicWrite] = {}  # by message id, of items that were gone
        self._checking = False

    def remove_unreadable(self, lock: LockRef, generation: int) -> None:
        """Remove the lock of an item that this user may not read: others may take it."""
        self._remove(lock, generation, wakes=True)

    def remove_stale(self, ids: Sequence[str], locks: Sequence[LockRef], generation: int) -> None:
        """Remove the locks of items that are gone, and check whether messages with these ids have come back."""
        removals = [self._remove(lock, generation) for lock in locks]
        if self._state.dialect is not None:
            return  # consumers of another program's queue are notified of locks
        for removal, message_id in zip(removals, ids, strict=True):
            self._unlocking[message_id] = removal
        if not self._checking:
            self._checking = True
            self._tasks.spawn(self._wake_for_returned, name="messages that came back")

    def remove_unread(self, locks: Sequence[LockRef], generation: int, failure: ReadFailedError) -> None:
        """Remove the locks of items that could not be read."""
        self.log_unread(len(locks), failure)
        with suppress(SessionClosedError):  # then the locks end with the session
            for lock in locks:
                doubted = lock if failure.sure else lock.unverified()
                self._remove(doubted, generation, wakes=True)

    def log_unread(self, count: int, failure: ReadFailedError) -> None:
        """Log that locked messages could not be read."""
        text = "queue %s: removing the locks of %s that could not be read: %s"
        log.warning(text, self._state.name, counted(count, "message"), failure.error, extra={"queue": self._state.name})

    def _remove(self, lock: LockRef, generation: int, *, wakes: bool = False) -> AtomicWrite:
        budget, size, removal_id = self._budgets.of(generation), self._size, self._ids.next()
        wakeup = self._state.wakeup_operations(self._state.paths.items, removal_id) if wakes else ()
        removal = RemoveOrphanLock(generation, self._state, lock, lambda: budget.free(size), wakeup=wakeup)
        return self.submit(removal, removal_id)

    def submit(self, removal: RemoveOrphanLock, removal_id: str, level: int = logging.WARNING) -> AtomicWrite:
        """Submit a removal, and again a minute after each failure, which is logged at this level, unless it is over.

        Raises: SessionClosedError.
        """

        async def again() -> None:
            await asyncio.sleep(LATER)
            next_id = self._ids.next()
            removal.again(self._state.wakeup_operations(self._state.paths.items, next_id))
            with suppress(SessionClosedError):  # then the lock ends with the session
                self.submit(removal, next_id, logging.DEBUG)

        def settled(atomic_write: AtomicWrite) -> None:
            if not (removal.over or isinstance(atomic_write.error, SessionClosedError | OutcomeUnknownError)):
                text = "queue %s: a lock without a claim stays until the next try in %g s: %s"
                log.log(level, text, self._state.name, LATER, atomic_write.error, extra={"queue": self._state.name})
                self._tasks.spawn(again, name="lock of no message")

        atomic_write = AtomicWrite(removal_id, removal)
        atomic_write.watch(settled)
        self._committer.submit(atomic_write)
        return atomic_write

    async def _wake_for_returned(self) -> None:
        """Wake idle consumers if a message has come back that was gone when it was locked.

        A dead letter that is redriven keeps its id, and is in another place. While the lock existed, other consumers
        skipped the message, and no event notifies them that the lock is gone. A message that is put there again later
        causes a separate watch event. One check covers all locks that have been removed since the last one.
        """
        loop = asyncio.get_running_loop()
        try:
            while self._unlocking:
                unlocking, self._unlocking = self._unlocking, {}
                await asyncio.gather(*(removal.done for removal in unlocking.values()), return_exceptions=True)
                began = loop.time()
                if await self._any_back(unlocking):
                    await apply_until_answered(self._zookeeper, [SetData(self._state.paths.items, b"")])
                took = loop.time() - began
                await asyncio.sleep(max(CHECK_EVERY, CHECK_PAUSE_FACTOR * took))
        except ZooKeeperError as error:
            log.debug("queue %s: %s", self._state.name, error, extra={"queue": self._state.name})
        finally:
            self._checking = False
            self._unlocking.clear()

    async def _any_back(self, ids: Container[str]) -> bool:
        """Return whether a lane has a message with one of these ids."""

        def is_back(name: str) -> bool:
            with suppress(MalformedError):
                return self._state.item_id(name) in ids
            return False

        for lane in self._state.config.lanes:
            path = self._state.paths.at(lane)
            try:
                stat = await self._zookeeper.exists(path)
                if stat is None or not stat.num_children:
                    continue
                listed = await self._zookeeper.children_into(path, partial(Matching, is_back))
            except NoNodeError:
                continue
            if listed.names:
                return True
        return False
