"""The capacity gate of a bounded queue (``max_size``): puts acquire capacity here before they are committed.

A session counts the messages in the queue, and may then put as many as fit. At most `credits_of` the size may be in
flight to the server. When these credits are spent, the session counts again. Nothing is written, so a session that dies
leaves nothing behind. Together, sessions may exceed the size by their simultaneous puts: by one session's credits for
each session but the first (`docs/design/15-capacity.md` explains why). A single session never exceeds it.

A session that finds no capacity watches the lanes, and counts again when a message has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import (
    ConnectionLostError,
    QueueError,
    QueueFullError,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import (
    ClientClosedError,
    ConnectionLossError,
    Create,
    Delete,
    EventKind,
    MultiError,
    NoAuthError,
    ZooKeeperError,
    apply_until_answered,
    below,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.hooks import OnWait
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import QueueSnapshot
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.runtime.deadline import Deadline
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import Operation, Watch, WatchEvent, ZooKeeper

#: Maximum number of unanswered puts that one session may have to a bounded queue.
MOST_CREDITS = 256
#: The fraction of a queue's size that one session may put without an answer: one part in this many.
SHARE = 16
#: Seconds for which the result of a count is used.
FRESH = 0.05
#: Seconds between two counts of a session that waits for capacity.
PAUSE = 0.02
#: Seconds for which a waiting session stays announced, so that brief waits do not keep creating and deleting its znode.
LINGER = 0.2
#: Seconds of a wait for capacity, and between two such waits, after which it is logged.
LONG_WAIT: Final = 10.0

log: Final = logging.getLogger(__name__)


def credits_of(size: int) -> int:
    """Return how many unanswered puts one session may have to a queue of this size."""
    return max(1, min(MOST_CREDITS, size // SHARE))


@dataclass(slots=True, eq=False)
class _Entry:
    """A put or transaction that waits for capacity."""

    count: int
    left: int
    generation: int | None
    arrival: int
    seconds: float | None
    blocking: bool
    on_wait: OnWait | None
    seen_full: bool = False
    """Whether a count since its arrival has found no capacity."""
    future: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CapacityGate:
    """The free capacity of a bounded queue that one session may use now, and the puts that wait for more."""

    def __init__(
        self,
        state: QueueState,
        zookeeper: ZooKeeper,
        *,
        client: str,
        clock: Clock,
        tasks: TaskOwner,
        budgets: SessionBudget,
    ) -> None:
        self.queue: str = state.name
        self._state = state
        self._zookeeper = zookeeper
        self._client = client
        self._clock = clock
        self._tasks = tasks
        self._budgets = budgets
        self._credits = 0
        self._counted_at = 0.0
        self._in_progress = 0
        self._bound: dict[AtomicWrite, int] = {}
        self._waiters: deque[_Entry] = deque()
        self._arrivals = 0
        self._reported_at = float("-inf")
        self._wakeup = asyncio.Event()
        self._watches: list[Watch] = []
        self._serving = False
        self._closed: QueueError | None = None
        self._listed_in = 0  # the ZooKeeper session in which this session is announced as waiting

    # -- acquiring capacity

    def configured(self, snapshot: QueueSnapshot) -> QueueSnapshot:
        """See `QueueFeature`."""
        self._credits = 0  # the size may have changed
        self._wakeup.set()
        return replace(snapshot, capacity=self) if snapshot.config.max_size else snapshot

    def try_acquire(self, count: int) -> bool:
        """Acquire capacity for ``count`` messages if it is known to be free and no put waits; then call `release`."""
        if count > self._credits or self._waiters or self._clock.monotonic() - self._counted_at > FRESH:
            return False
        self._credits -= count
        self._in_progress += count
        return True

    async def acquire(
        self, count: int, left: int, deadline: Deadline, generation: int | None = None, on_wait: OnWait | None = None
    ) -> None:
        """Acquire capacity for ``count`` messages, waiting for it until the deadline; then call `release`.

        ``left`` is how many messages the commit leaves in the queue: those that it puts, and those that it releases.
        ``generation`` is the ZooKeeper session that the put depends on, if any. ``on_wait`` is called after each count
        that finds no capacity.

        Raises:
            QueueFullError: there was no capacity in time.
            TransactionTooLargeError: ``left`` exceeds the queue's size.
            SessionExpiredError: that ZooKeeper session has ended.
            AccessDeniedError, SessionClosedError.
        """
        if self.try_acquire(count):
            return
        if self._closed is not None:
            raise _copy_of(self._closed)
        self._arrivals += 1
        wait = deadline.left
        entry = _Entry(count, left, generation, self._arrivals, deadline.seconds, wait != 0, on_wait)
        self._waiters.append(entry)
        self._wakeup.set()
        if not self._serving:
            self._serving = True
            self._tasks.spawn(self._serve, name=f"capacity of {self._state.name}")
        timer = self._clock.call_later(wait, lambda: self._refuse(entry)) if wait else None
        report = self._clock.call_later(LONG_WAIT, lambda: self._report(entry))
        try:
            await entry.future
        except asyncio.CancelledError:
            if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None:
                self.release(count)  # it was admitted at the same moment
            self._wakeup.set()
            raise
        finally:
            report.cancel()
            if timer is not None:
                timer.cancel()

    def _report(self, entry: _Entry) -> None:
        now = self._clock.monotonic()
        if entry.seen_full and now - self._reported_at >= LONG_WAIT:
            self._reported_at = now
            name, size = self._state.name, self._state.config.max_size
            text = "queue %s is full (max_size %d): a put has waited for capacity for %g s"
            log.warning(text, name, size, LONG_WAIT, extra={"queue": name})

    def release(self, count: int) -> None:
        """Release acquired capacity: the messages have been stored, and are counted in the queue, or never will be."""
        self._in_progress -= count
        if self._waiters:
            self._wakeup.set()

    def bind(self, atomic_write: AtomicWrite, count: int) -> None:
        """Release the capacity of an admitted write when it is settled or passed to `unbind`."""
        self._bound[atomic_write] = count
        atomic_write.watch(self.unbind)

    def unbind(self, atomic_write: AtomicWrite) -> None:
        """Release the capacity of a write, if it is bound here."""
        self.release(self._bound.pop(atomic_write, 0))

    def holds(self, atomic_write: AtomicWrite) -> bool:
        """Whether a write has capacity here."""
        return atomic_write in self._bound

    def close(self, error: QueueError) -> None:
        """Fail all waiting puts with ``error``."""
        self._closed = error
        self._fail(error)

    # -- counting

    async def _serve(self) -> None:
        """Admit waiting puts until none is left."""
        try:
            while self._prune_waiters():
                try:
                    await self._admit_or_wait()
                except (ConnectionLossError, ZooKeeperSessionExpiredError):
                    continue  # the next attempt waits for the connection first
                except ClientClosedError:
                    self._fail(SessionClosedError("the session has been closed"))
                except NoAuthError as error:
                    self._fail(access_denied(self._state.name, error))
                except QueueError as error:
                    self._fail(error)
                except ZooKeeperError as error:
                    self._fail(ConnectionLostError(f"queue {self._state.name!r}: {error}"))
                if not self._prune_waiters() and self._listed_in:
                    self._wakeup.clear()
                    await self._pause(LINGER)
                    if not self._prune_waiters():
                        await self._withdraw()
        finally:
            self._unwatch()
            self._serving = False

    async def _admit_or_wait(self) -> None:
        """Admit as many puts as there is capacity for; without any, wait for a change."""
        generation = await self._zookeeper.wait_connected()
        await self._state.open_or_create()
        limit = self._state.config.max_size
        if not limit:
            self._admit(None)
            return
        self._fail_impossible(limit, generation)
        if not self._prune_waiters():
            return
        self._wakeup.clear()
        arrivals, before = self._arrivals, self._in_progress
        if not await self._recount(limit, generation) or self._admit(limit):
            return
        seen = [entry for entry in self._waiters if entry.arrival <= arrivals]
        for entry in seen:
            if entry.on_wait is not None:
                entry.on_wait(full=not before)
        if before:  # unanswered puts may be stored and counted twice: their outcome decides
            await self._pause(None)
            return
        for entry in seen:
            entry.seen_full = True
            if not entry.blocking:
                self._refuse(entry)
        if self._prune_waiters():
            await self._listen(generation)

    async def _recount(self, limit: int, generation: int) -> bool:
        """Count the messages and grant credits for the free capacity; return False if the configuration has changed."""
        self._credits = 0
        outstanding = self._in_progress  # read before the count: a put stored meanwhile counts twice, never zero times
        size = await self._size(generation)
        if size is None:
            self._state.invalidate()
            return False
        most = max(credits_of(limit), self._waiters[0].count if self._waiters else 0)
        self._credits = max(0, min(limit - size, most) - outstanding)
        self._counted_at = self._clock.monotonic()
        return True

    def _admit(self, limit: int | None) -> bool:
        """Admit waiting puts in order while there is capacity (``None``: all); return whether any was admitted.

        A transaction that holds messages passes those that do not fit: they may wait for the messages that it holds.
        """
        admitted = full = False
        for entry in self._waiters:
            if entry.future.done() or (full and entry.generation is None):
                continue
            if limit is not None and entry.count > self._credits:
                full = True
                continue
            if limit is not None:
                self._credits -= entry.count
            self._in_progress += entry.count
            entry.future.set_result(None)
            admitted = True
        self._prune_waiters()
        return admitted

    def _prune_waiters(self) -> bool:
        """Remove the puts that no longer wait, and return whether any is left."""
        if any(entry.future.done() for entry in self._waiters):
            self._waiters = deque(entry for entry in self._waiters if not entry.future.done())
        return bool(self._waiters)

    async def _size(self, generation: int) -> int | None:
        """Count the messages in all lanes and the delayed ones. None: the configuration has changed."""
        paths = self._state.paths
        lanes = [paths.at(lane) for lane in self._state.config.lanes]
        hours: list[str] = []
        while True:
            queue, later, *lanes_and_hours = await self._zookeeper.read_many(
                [paths.base, paths.later, *lanes, *hours], generation=generation
            )
            if queue is None or queue.stat.version != self._state.version:
                return None
            if len(hours) == (0 if later is None else later.stat.num_children):
                among = sum(len(paths.folders_among(lane)) for lane in lanes)
                return sum(node.stat.num_children for node in lanes_and_hours if node is not None) - among
            names = await below(self._zookeeper, paths.later, generation=generation)
            hours = [f"{paths.later}/{name}" for name in names]

    # -- waiting for a change

    async def _listen(self, generation: int) -> None:
        """Wait until a message has gone.

        The first call only starts the watch; the next count covers earlier changes.
        """
        if not self._watches:
            paths = self._state.paths
            for folder in (paths.items, paths.lanes, paths.later):
                self._watches.append(await self._zookeeper.watch(folder, self._on_event, recursive=True))
            self._watches.append(await self._zookeeper.watch(paths.base, self._on_event))
            await self._announce(generation)
            return
        await self._pause(None)
        self._unwatch()  # one event suffices to count again, and each event costs the consumers
        await asyncio.sleep(PAUSE)

    def _on_event(self, event: WatchEvent) -> None:
        reconfigured = event.kind is EventKind.CHANGED and event.path == self._state.paths.base
        if reconfigured or event.kind in (EventKind.DELETED, EventKind.MISSED):
            self._wakeup.set()

    def _unwatch(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches = []

    async def _pause(self, limit: float | None) -> None:
        timer = None if limit is None else self._clock.call_later(limit, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _announce(self, generation: int) -> None:
        """Create the znode that shows operators that this session waits."""
        if self._listed_in == generation:
            return
        await self._zookeeper.ensure(self._state.paths.waiting)
        path = self._entry(generation)
        await self._write(Create(path, ephemeral=True), generation)
        self._budgets.of(generation).spend(self._zookeeper.path_size(path) + 4)
        self._listed_in = generation

    async def _withdraw(self) -> None:
        """Delete the znode that shows that this session waits."""
        generation, self._listed_in = self._listed_in, 0
        if not generation:
            return
        path = self._entry(generation)
        with suppress(ZooKeeperError):  # it is gone, or ends with its session
            await self._write(Delete(path), generation)
        self._budgets.of(generation).free(self._zookeeper.path_size(path) + 4)

    async def _write(self, operation: Operation, generation: int) -> None:
        """Send the operation until it is answered; otherwise its znode could remain until the session ends."""
        with suppress(MultiError):  # an earlier copy was applied and its reply lost; or the ACL refuses it
            await apply_until_answered(self._zookeeper, [operation], generation=generation)

    def _entry(self, generation: int) -> str:
        return self._state.paths.waiter(f"{self._client}-{generation}")

    # -- failing puts

    def _refuse(self, entry: _Entry) -> None:
        if entry.future.done():
            return
        name = f"queue {self._state.name!r}"
        if entry.seen_full:
            waited = f", and there was no capacity within {entry.seconds:g} s" if entry.seconds else ""
            msg = (
                f"{name} is full (max_size {self._state.config.max_size}){waited}; "
                "the message was not stored; use a longer timeout, or take messages first"
            )
        else:  # disconnected, or messages in progress are not answered yet
            msg = (
                f"{name}: the capacity check took longer than {entry.seconds:g} s; "
                "the message was not stored; use a longer timeout"
            )
        self._answer(entry, QueueFullError(msg))

    def _fail_impossible(self, limit: int, generation: int) -> None:
        """Fail the puts that can never succeed by waiting."""
        for entry in list(self._waiters):
            if entry.generation not in (None, generation):
                msg = (
                    f"queue {self._state.name!r}: the ZooKeeper session of this transaction ended while it "
                    "waited for capacity; nothing was applied, and its messages go to other consumers"
                )
                self._answer(entry, SessionExpiredError(msg))
            elif entry.left > limit:
                msg = (
                    f"queue {self._state.name!r} holds at most {limit} messages, and this commit would leave "
                    f"{entry.left} of its own there; commit in parts"
                )
                self._answer(entry, TransactionTooLargeError(msg))

    def _answer(self, entry: _Entry, error: QueueError) -> None:
        if not entry.future.done():
            entry.future.set_exception(error)
            self._wakeup.set()

    def _fail(self, error: QueueError) -> None:
        for entry in list(self._waiters):
            self._answer(entry, _copy_of(error))


def _copy_of(error: QueueError) -> QueueError:
    """Return a copy of an error for one caller, so that a note added about one put does not reach other callers."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
