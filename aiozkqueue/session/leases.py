"""Leases: messages that are locked for a time and settled by a token, from any process.

A message is claimed as in any transaction. The commit replaces its ephemeral lock with a persistent one that has an
end, as for a delayed retry (see `EndClaims`), and counts the attempt. From then on no session holds the message: its
token, which names the item's place, is all that an acknowledgement needs. Any consumer removes the lock of a lease that
has ended (see `timed_locks`).

Each change below is one multi that fails if it is sent twice. It is made from the data just read, and applied only if
that still holds; if it has changed, it is read again. So a lost reply or a dead process leaves a message either
unchanged or changed completely.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from aiozkqueue.arguments import collection, positive, required_seconds, seconds
from aiozkqueue.errors import (
    InvalidOptionError,
    ItemNotEmptyError,
    NotCommittedError,
    QueueError,
    SessionClosedError,
)
from aiozkqueue.layout import ItemRef, LockRecord, MalformedError, lease_token, leased_place
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.operations.alter import updated_places
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.claim.group_lock import due_data
from aiozkqueue.queue.commit.conditional import Change, settle
from aiozkqueue.queue.commit.dispositions import CONSUME, Disposition, obstructed_by
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import as_configured, attempts_of, find, opening, removal
from aiozkqueue.queue.message import Message
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.zookeeper import Check, Create, Delete, SetData, ZooKeeperError, changes

from .internals import work_of
from .transaction import TransactionBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, Unreadable
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import CallLimit

    from .core import SessionCore
    from .transaction import Transaction

T = TypeVar("T")

#: Messages leased in one request.
BATCH = 200
#: How many times a change is computed again after concurrent changes before it fails.
MAX_TRIES = 20


class Lease(Message[T]):
    """A message that is locked until `Leases.acknowledge`, or until the lease ends."""

    __slots__ = ("token",)

    def __init__(self, message: Message[T], token: str) -> None:
        super().__init__(message._content, message._codec, message._value)  # noqa: SLF001 - the same message
        self.token: str = token
        """The token that settles it, from any session."""


class Leases(Generic[T]):
    """The leases on one queue: `Queue.leases`."""

    def __init__(self, runtime: SessionCore, queue: Destination[T], state: QueueState) -> None:
        self._runtime = runtime
        self._queue = queue
        self._state = state

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit(f"queue {self._queue.name!r}")

    async def take(self, limit: int = 1, *, lifetime: Seconds = 30, timeout: Seconds | None = 0) -> list[Lease[T]]:
        """Lease up to ``limit`` messages for ``lifetime`` seconds; return as soon as any are available.

        The list is empty if none becomes available within ``timeout`` seconds (0: search once; None: no limit). Each
        lease counts as an attempt.

        Raises:
            InvalidOptionError: the lifetime is 0, or an option is out of range.
            TransactionTooLargeError: there are more messages than a session may lock at once, or than a request may
                hold.
            ConnectionLostError: as `Transaction.take`.
            NotCommittedError: the messages could not be leased; they go to other takers.
            AccessDeniedError, PayloadError, ConfigConflictError, OutcomeUnknownError, SessionClosedError,
            WrongLoopError.
        """
        duration = required_seconds(lifetime, "lifetime")
        if not duration:
            msg = "lifetime=0: give more than 0 seconds; use peek to read messages without a lease"
            raise InvalidOptionError(msg)
        wanted, wait = positive(limit, "limit"), seconds(timeout, "timeout")
        leased: list[Lease[T]] = []
        try:
            while len(leased) < wanted:
                batch = min(BATCH, wanted - len(leased))
                taken = await self._take(batch, duration, 0 if leased else wait)
                leased += taken
                if len(taken) < batch:
                    break
        except BaseException:
            # No caller receives these tokens: make the messages available now, not when the leases end.
            self._in_background(self._end_early, leased)
            raise
        return leased

    @changes
    async def acknowledge(self, tokens: Iterable[str]) -> None:
        """Remove these messages permanently. The lease may have ended, and the call may be repeated.

        Raises:
            InvalidOptionError: a token is not one of this queue; no message was removed.
            ItemNotEmptyError: a message cannot be removed, because znodes were created below it; the others were.
            AccessDeniedError: this user may not read a message; the others were removed.
            PayloadError, ConfigConflictError, NotCommittedError, OutcomeUnknownError, SessionClosedError,
            WrongLoopError.
        """
        await self._change(
            self._places(tokens), lambda snapshot: removal(self._runtime, self._state, snapshot, CONSUME)
        )

    @changes
    async def renew(self, tokens: Iterable[str], *, lifetime: Seconds = 30) -> None:
        """Extend these leases to ``lifetime`` seconds from now; a lease that lasts longer is unchanged.

        A lease that has ended, or never existed, is created again, except that of a message of a group, because another
        message of the group may be first by now. A message that a transaction or delivery holds is not changed, and a
        message that no longer exists is skipped. ``lifetime=0`` ends the leases: the messages are available at once. A
        token names a message, so an old token ends the lease of a later holder too; `release` does not.

        Raises: as `acknowledge`.
        """
        duration = required_seconds(lifetime, "lifetime")
        places = self._places(tokens)
        if not places or not await self._opened():
            return
        if duration:
            await self._change(places, lambda snapshot: self._extension(snapshot, duration), needs_time=True)
        else:
            await self._change(
                places, lambda snapshot: None if snapshot.end is None else opening(self._state, snapshot)
            )

    @changes
    async def release(self, leases: Iterable[Lease[T]]) -> None:
        """End these leases, so that the messages are available at once. A lease that has ended is skipped.

        A lease has also ended if its message has been taken again.

        Raises: as `acknowledge`.
        """
        given = list(collection(leases, "leases", "leases"))
        for lease in cast("list[object]", given):
            if not isinstance(lease, Lease):
                msg = f"leases takes leases, as `take` returned them, not {type(lease).__name__}"
                raise InvalidOptionError(msg)
        attempts = {lease.id: lease.attempt for lease in given}  # each take is an attempt
        await self._change(
            self._places([lease.token for lease in given]),
            lambda snapshot: (
                opening(self._state, snapshot)
                if snapshot.end is not None and attempts_of(snapshot.meta) == attempts[snapshot.id]
                else None
            ),
        )

    # -- internals

    async def _take(self, limit: int, duration: float, wait: float | None) -> list[Lease[T]]:
        leases: list[Lease[T]] = []
        transaction: Transaction | None = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with TransactionBlock(self._runtime, autocommit=True) as transaction:
                work = work_of(transaction)
                messages = await transaction.take_many(self._queue, limit, timeout=wait)
                # One lease per group: later messages of the group wait for its end.
                later = [claim for claim in work.claims if claim.group_lock and claim.group_lock.live[0] is not claim]
                await work.release_unseen(later)
                places = {claim.id: claim.place for claim in work.claims}
                messages = [message for message in messages if message.id in places]
                for message in messages:
                    work.end(message.queue, message.id, Disposition("release", delay=duration, leased=True))
                leases = [Lease(message, lease_token(self._state.name, places[message.id])) for message in messages]
                silent = loop.time() - max(began, self._runtime.zookeeper.last_received)
                await transaction.commit(timeout=max(0.0, self._runtime.operation_timeout - silent))
        except BaseException:  # cancelled during the commit, which continues, or its outcome is unknown
            if transaction is not None and leases:
                self._in_background(self._end_unreturned, transaction.id, leases)
            raise
        return leases

    def _in_background(self, end: Callable[..., Coroutine[object, object, None]], *args: object) -> None:
        """End leases in a task of the session. After its close, they end at their time."""
        with suppress(SessionClosedError):
            self._runtime.tasks.spawn(end, *args, name="released leases")

    async def _end_unreturned(self, transaction_id: str, leases: list[Lease[T]]) -> None:
        """End the leases of a commit, if it was applied, whose caller has not received them."""
        if await self._runtime.outcome(transaction_id, None) is not Outcome.ROLLED_BACK:
            await self._end_early(leases)

    async def _end_early(self, leases: list[Lease[T]]) -> None:
        """End these leases, whose tokens no caller has received."""
        with suppress(QueueError, ZooKeeperError):
            await self.release(leases)

    async def _opened(self) -> bool:
        """Open the queue if it exists; return whether it does."""
        return self._state.ready or await self._state.open_existing()

    async def _change(
        self, places: list[str], make: Callable[[ItemSnapshot], Change | None], *, needs_time: bool = False
    ) -> None:
        """Make and apply a change for each place (None: none); repeat it for those that were changed concurrently.

        Without a change, the configuration is asserted all the same: by another one, another lock is the message's.
        ``needs_time``: the changes have moments in ZooKeeper's time, which is then measured before they are made.
        """
        obstructed: list[ItemNotEmptyError] = []
        unreadable: Unreadable = {}
        for _ in range(MAX_TRIES):
            if not places or not await self._opened():  # again, if the configuration has changed
                return
            # A lagging server may not show an existing message yet, and its acknowledgement would be lost.
            await self._runtime.zookeeper.sync(self._state.paths.base)
            snapshots = await self._find(places, unreadable)
            if needs_time:
                await self._runtime.server_clock.learned(self._state.paths.due)
            made = [
                (snapshot, as_configured(snapshot, make(snapshot) or Change(self._state, []))) for snapshot in snapshots
            ]
            settled = await settle(self._runtime, [change for _, change in made])
            places = []
            for (snapshot, _), part in zip(made, settled, strict=True):
                if part.obstacle is not None:
                    obstructed.append(obstructed_by(self._state.name, snapshot.id, part.obstacle))
                elif part.left:
                    places.append(snapshot.place)
            if not places:
                break
        for error in (*obstructed, *unreadable.values()):  # the other messages are settled
            raise error
        if not places:
            return
        msg = f"queue {self._state.name!r}: {len(places)} leases changed each time they were read; try again"
        raise NotCommittedError(msg)

    async def _find(self, places: list[str], unreadable: Unreadable) -> list[ItemSnapshot]:
        """Read the messages at these places, or where they are after they were reassigned or updated."""
        handle = QueueHandle(self._runtime, self._state)
        found = await find(handle, places, unreadable)
        missing = set(places).difference(unreadable, (snapshot.place for snapshot in found))
        moved = {place: ItemRef.parse(place).without_node().path for place in missing}
        found += await find(handle, [new for old, new in moved.items() if new != old], unreadable)
        read = {*unreadable, *(snapshot.place for snapshot in found)}
        updated = await updated_places(handle, [old for old, new in moved.items() if new not in read])
        return found + await find(handle, updated, unreadable)

    def _places(self, tokens: Iterable[str]) -> list[str]:
        listed = collection(tokens, "tokens", "lease tokens")
        self._runtime.check()
        return list(dict.fromkeys(self._place(token) for token in listed))

    def _place(self, token: object) -> str:
        try:
            if isinstance(token, str):
                return leased_place(self._state.name, token)
        except MalformedError as error:
            raise InvalidOptionError(f"queue {self._state.name!r}: {error}") from error
        msg = f"queue {self._state.name!r}: a lease token is a str, not {type(token).__name__}"
        raise InvalidOptionError(msg)

    def _extension(self, snapshot: ItemSnapshot, duration: float) -> Change | None:
        paths, end = self._state.paths, self._runtime.server_clock.now() + milliseconds_in(duration)
        grouped, path = is_group(snapshot.lock_id), paths.lock(snapshot.lock_id)
        if grouped and (snapshot.lock is None or LockRecord.decode(snapshot.lock.data).claim != snapshot.id):
            return None  # another message of its group may be first by now
        claim = snapshot.id if grouped else self._runtime.ids.next()
        lock = LockRecord(claim, self._runtime.ids.client, end, leased=True).encode()
        place = due_data(snapshot.place, snapshot.lock_id) if grouped else snapshot.place.encode()
        due = Create(paths.due_node(end, snapshot.id), place)
        unchanged = Check(paths.at(snapshot.place), snapshot.item.stat.version)
        if snapshot.lock is None:
            return Change(self._state, [unchanged, Create(path, lock), due])
        if snapshot.end is None or snapshot.end >= end:
            return None
        replaced = SetData(path, lock, snapshot.lock.stat.version)
        return Change(self._state, [unchanged, replaced, Delete(paths.due_node(snapshot.end, snapshot.id)), due])
