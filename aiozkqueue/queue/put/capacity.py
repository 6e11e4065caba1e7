"""Room in a queue with ``max_size``: who puts asks for it first, here, beside the committer.

A session looks how many messages there are, and may then put as many as fit, `credits_of` the size at the most counting
all it has under way; when these are spent it looks again. Nothing is written, and nobody leaves anything behind. What
several sessions have under way at the same moment is what the queue may be over its size by: one session's credits for
each of the others (`docs/design/15-capacity.md` says why). A lone session never exceeds it.

Who finds no room listens to the lanes, and looks again when something has gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.errors import (
    ConnectionLostError,
    QueueError,
    QueueFullError,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import (
    ClientClosedError,
    ConnectionLossError,
    Create,
    Delete,
    EventKind,
    MultiError,
    NoAuthError,
    ZooKeeperError,
    below,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.runtime.clock import Clock
    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Watch, WatchEvent, ZooKeeper

#: Messages that one session may have under way to a bounded queue, at the most.
MOST_CREDITS = 256
#: The part of a queue's size that they are.
SHARE = 16
#: Seconds after a look until what it allowed is not relied on any more.
FRESH = 0.05
#: Seconds between two looks of a session that waits for room.
PAUSE = 0.02
#: Seconds that one goes on being known as waiting, so that a steady trickle does not make and remove its entry.
LINGER = 0.2


def credits_of(size: int) -> int:
    """How many messages one session may have under way to a queue of this size."""
    return max(1, min(MOST_CREDITS, size // SHARE))


class Waits(Protocol):
    """Who is told that it waits."""

    def __call__(self, *, full: bool) -> None:
        """A look has found no room; ``full``: for nobody, not only because of what this session has under way."""


class _Entry:
    """One put, or one transaction's, that waits for room."""

    __slots__ = ("arrival", "count", "future", "generation", "patient", "seconds", "seen_full", "waits")

    def __init__(
        self,
        count: int,
        generation: int | None,
        arrival: int,
        seconds: float | None,
        *,
        patient: bool,
        waits: Waits | None,
    ) -> None:
        self.count = count
        self.seconds = seconds
        self.generation = generation
        self.arrival = arrival
        self.patient = patient
        self.waits = waits
        self.seen_full = False  # whether a look since it came has found no room
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class CapacityGate:
    """How much one session may put to one bounded queue now, and who waits for more."""

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        *,
        client: str,
        clock: Clock,
        tasks: TaskOwner,
        budgets: SessionBudget,
    ) -> None:
        self.queue: str = store.name
        self._store = store
        self._zookeeper = zookeeper
        self._client = client
        self._clock = clock
        self._tasks = tasks
        self._budgets = budgets
        self._credits = 0
        self._looked = 0.0
        self._under_way = 0
        self._inside: dict[AtomicWrite, int] = {}
        self._line: deque[_Entry] = deque()
        self._arrivals = 0
        self._wakeup = asyncio.Event()
        self._watches: list[Watch] = []
        self._serving = False
        self._closed: QueueError | None = None
        self._known = 0  # the ZooKeeper session in which others know that this one waits

    # -- for those who put

    def follow(self) -> None:
        """Take note of the queue's configuration."""
        self._store.room = self if self._store.config.max_size else None
        self._credits = 0  # of another size, maybe
        self._wakeup.set()

    def try_enter(self, count: int) -> bool:
        """Take room for so many messages if that is known to be there and nobody waits for it; then `leave`."""
        if count > self._credits or self._line or self._clock.monotonic() - self._looked > FRESH:
            return False
        self._credits -= count
        self._under_way += count
        return True

    async def enter(
        self, count: int, patience: Deadline, generation: int | None = None, waits: Waits | None = None
    ) -> None:
        """Take room for so many messages, waiting for it as long as there is patience; then `leave`.

        ``generation`` is the ZooKeeper session without which it is no longer wanted; ``waits`` is told at each look
        that it has to wait.

        Raises:
            QueueFullError: there was none in time.
            TransactionTooLargeError: so many never fit.
            SessionExpiredError: that session is over.
            AccessDeniedError, SessionClosedError.
        """
        if self.try_enter(count):
            return
        if self._closed is not None:
            raise _own(self._closed)
        self._arrivals += 1
        left = patience.left
        entry = _Entry(count, generation, self._arrivals, patience.seconds, patient=left != 0, waits=waits)
        self._line.append(entry)
        self._wakeup.set()
        if not self._serving:
            self._serving = True
            self._tasks.spawn(self._serve, name=f"room of {self._store.name}")
        timer = self._clock.call_later(left, lambda: self._refuse(entry)) if left else None
        try:
            await entry.future
        except asyncio.CancelledError:
            if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None:
                self.leave(count)  # it was let in at the same moment
            self._wakeup.set()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def leave(self, count: int) -> None:
        """Give back what was taken: what was to be put has been, and is counted in the queue, or never will be."""
        self._under_way -= count
        if self._line:
            self._wakeup.set()

    def passed(self, atomic_write: AtomicWrite, count: int) -> None:
        """Have `leave` called when the settlement that was let in is settled, or sent `out`."""
        self._inside[atomic_write] = count
        atomic_write.watch(self.out)

    def out(self, atomic_write: AtomicWrite) -> None:
        """Give back what a settlement has taken, if it has been let in."""
        self.leave(self._inside.pop(atomic_write, 0))

    def holds(self, atomic_write: AtomicWrite) -> bool:
        """Whether a settlement has been let in."""
        return atomic_write in self._inside

    def close(self, error: QueueError) -> None:
        """Answer everybody who waits."""
        self._closed = error
        self._fail(error)

    # -- looking

    async def _serve(self) -> None:
        """Let in who waits, until nobody does."""
        try:
            while self._waiting():
                try:
                    await self._ensure_lane()
                except (ConnectionLossError, ZooKeeperSessionExpiredError):
                    continue  # to be connected is what the next look begins with
                except ClientClosedError:
                    self._fail(SessionClosedError("the session has been closed"))
                except NoAuthError as error:
                    self._fail(denied(self._store.name, error))
                except QueueError as error:
                    self._fail(error)
                except ZooKeeperError as error:
                    self._fail(ConnectionLostError(f"queue {self._store.name!r}: {error}"))
                if not self._waiting() and self._known:
                    self._wakeup.clear()
                    await self._pause(LINGER)
                    if not self._waiting():
                        await self._unlist()
        finally:
            self._unwatch()
            self._serving = False

    async def _ensure_lane(self) -> None:
        """Let in as many as there is room for; when there is none, wait for some."""
        generation = await self._zookeeper.wait_connected()
        await self._store.open()
        limit = self._store.config.max_size
        if not limit:
            self._let_in(None)
            return
        self._refuse_hopeless(limit, generation)
        if not self._waiting():
            return
        self._wakeup.clear()
        arrivals, before = self._arrivals, self._under_way
        if not await self._look(limit, generation) or self._let_in(limit):
            return
        seen = [entry for entry in self._line if entry.arrival <= arrivals]
        for entry in seen:
            if entry.waits is not None:
                entry.waits(full=not before)
        if before:  # it may be in the count already, and has been counted twice then: what comes of it decides
            await self._pause(None)
            return
        for entry in seen:
            entry.seen_full = True
            if not entry.patient:
                self._refuse(entry)
        if self._waiting():
            await self._listen(generation)

    async def _look(self, limit: int, generation: int) -> bool:
        """See how many messages there are, and allow as many as fit; False when the configuration has changed."""
        self._credits = 0
        outstanding = self._under_way  # before it is counted: what lands meanwhile is counted twice, never not at all
        size = await self._size(generation)
        if size is None:
            self._store.invalidate()
            return False
        most = max(credits_of(limit), self._line[0].count if self._line else 0)
        self._credits = max(0, min(limit - size, most) - outstanding)
        self._looked = self._clock.monotonic()
        return True

    def _let_in(self, limit: int | None) -> bool:
        """Let in whoever is first in line as long as there is room; ``None``: everybody. Tell whether anybody was."""
        some = False
        while self._waiting() and (limit is None or self._line[0].count <= self._credits):
            entry = self._line.popleft()
            if limit is not None:
                self._credits -= entry.count
            self._under_way += entry.count
            entry.future.set_result(None)
            some = True
        return some

    def _waiting(self) -> bool:
        """Whether anybody waits; those who do no more leave the line."""
        if any(entry.future.done() for entry in self._line):
            self._line = deque(entry for entry in self._line if not entry.future.done())
        return bool(self._line)

    async def _size(self, generation: int) -> int | None:
        """Count the messages: in all lanes, and those that are not due yet. None: there may be other lanes by now."""
        paths = self._store.paths
        lanes = [paths.at(lane) for lane in self._store.config.lanes]
        hours: list[str] = []
        while True:
            queue, later, *held = await self._zookeeper.read_many(
                [paths.base, paths.later, *lanes, *hours], generation=generation
            )
            if queue is None or queue.stat.version != self._store.version:
                return None
            if len(hours) == (0 if later is None else later.stat.num_children):
                return sum(node.stat.num_children for node in held if node is not None)
            names = await below(self._zookeeper, paths.later, generation=generation)
            hours = [f"{paths.later}/{name}" for name in names]

    # -- waiting

    async def _listen(self, generation: int) -> None:
        """Wait until something has gone. What went before is looked for after this has begun to listen."""
        if not self._watches:
            paths = self._store.paths
            for folder in (paths.items, paths.lanes, paths.later):
                self._watches.append(await self._zookeeper.watch(folder, self._heard, recursive=True))
            self._watches.append(await self._zookeeper.watch(paths.base, self._heard))
            await self._list(generation)
            return
        await self._pause(None)
        self._unwatch()  # one is enough to look again, and each costs who takes
        await asyncio.sleep(PAUSE)

    def _heard(self, event: WatchEvent) -> None:
        reconfigured = event.kind is EventKind.CHANGED and event.path == self._store.paths.base
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

    async def _list(self, generation: int) -> None:
        """Let operators know that this session waits."""
        if self._known == generation:
            return
        await self._zookeeper.ensure(self._store.paths.waiting)
        path = self._entry(generation)
        await self._write(Create(path, ephemeral=True), generation)
        self._budgets.of(generation).spend(self._zookeeper.path_size(path) + 4)
        self._known = generation

    async def _unlist(self) -> None:
        """It does not wait any more."""
        generation, self._known = self._known, 0
        if not generation:
            return
        path = self._entry(generation)
        with suppress(ZooKeeperError):  # gone, or going with its session
            await self._write(Delete(path), generation)
        self._budgets.of(generation).free(self._zookeeper.path_size(path) + 4)

    async def _write(self, operation: Operation, generation: int) -> None:
        """Send it until it is answered: else its entry would be left as long as the session lives."""
        while True:
            try:
                await self._zookeeper.multi([operation], generation=generation)
            except MultiError:  # an earlier copy was applied, its reply lost; or nobody may know
                return
            except ConnectionLossError:
                await self._zookeeper.wait_connected(generation=generation)
            else:
                return

    def _entry(self, generation: int) -> str:
        return self._store.paths.waiter(f"{self._client}-{generation}")

    # -- answering

    def _refuse(self, entry: _Entry) -> None:
        if entry.future.done():
            return
        name = f"queue {self._store.name!r}"
        if entry.seen_full:
            waited = f", and none came free within {entry.seconds:g} s" if entry.seconds else ""
            msg = (
                f"{name} is full: it takes {self._store.config.max_size} messages{waited}; "
                "this was not put; wait longer with `timeout=`, or take some"
            )
        else:  # not connected, or what is under way already is not answered
            msg = (
                f"{name}: whether it has room could not be found out within {entry.seconds:g} s; "
                "this was not put; wait longer with `timeout=`"
            )
        self._answer(entry, QueueFullError(msg))

    def _refuse_hopeless(self, limit: int, generation: int) -> None:
        """Answer those for whom no waiting helps."""
        for entry in list(self._line):
            if entry.generation not in (None, generation):
                msg = (
                    f"queue {self._store.name!r}: while it waited for room, the ZooKeeper session of this transaction "
                    "ended; nothing was applied, its messages go to other consumers"
                )
                self._answer(entry, SessionExpiredError(msg))
            elif entry.count > limit:
                msg = (
                    f"queue {self._store.name!r} takes {limit} messages, and this would put {entry.count} at once; "
                    "commit in parts"
                )
                self._answer(entry, TransactionTooLargeError(msg))

    def _answer(self, entry: _Entry, error: QueueError) -> None:
        if not entry.future.done():
            entry.future.set_exception(error)
            self._wakeup.set()

    def _fail(self, error: QueueError) -> None:
        for entry in list(self._line):
            self._answer(entry, _own(error))


def _own(error: QueueError) -> QueueError:
    """Return an error of one caller's own: what is noted of his puts says nothing about another's."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
