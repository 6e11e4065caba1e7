"""Leases: messages held for a time, by whoever bears their token, in whatever process.

A message is claimed as by any transaction; the commit swaps its ephemeral lock for a persistent one with an end, as a
backoff does (see `EndClaims`), and counts the attempt. From then on no session holds it: its token, which names
the item's place, is all that an acknowledgement needs. A lease that ends is taken off by any consumer (see `reaper`).

Each change below is one multi that a second copy of it fails, made from what was just read and applied only if that
still holds; what has changed meanwhile is read again. So a lost reply or a dead process leaves a message either as it
was or as it was to be.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from aiozkqueue.errors import InvalidOptionError, ItemNotEmptyError, NotCommittedError, QueueError
from aiozkqueue.layout import LockRecord, MalformedError, lease_token, leased_place
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.zookeeper import Check, Create, Delete, SetData, ZooKeeperError

from .candidates.groups import is_group
from .claim.group_lock import due_data
from .commit.conditional import Change, settle
from .commit.dispositions import CONSUME, Disposition, obstructed_by
from .commit.unclaimed import find, opening, removal
from .message import Message
from .options import collection, positive, required_seconds, seconds
from .outcome import Outcome
from .transaction import TransactionBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .codec import Codec
    from .commit.unclaimed import ItemSnapshot, Sealed
    from .destination import Destination
    from .options import Seconds
    from .session_core import SessionCore
    from .state.queue_state import QueueState
    from .transaction import Transaction

T = TypeVar("T")

#: Messages leased in one request.
TOGETHER = 200
#: How often a change is made anew from what others have left, before it is given up.
TRIES = 20


class Lease(Message[T]):
    """A message that is held until `Leases.acknowledge`, or until the lease ends."""

    __slots__ = ("token",)

    def __init__(self, message: Message[T], token: str) -> None:
        super().__init__(message._content, message._codec, message._value)  # noqa: SLF001 - the same message
        self.token: str = token
        """Settles it, from any session."""


class Leases(Generic[T]):
    """The leases on one queue: `Queue.leases`."""

    def __init__(self, engine: SessionCore, queue: Destination[T], store: QueueState, codec: Codec[T]) -> None:
        self._engine = engine
        self._queue = queue
        self._store = store
        self._codec = codec

    async def take(self, limit: int = 1, *, lifetime: Seconds = 30, timeout: Seconds | None = 0) -> list[Lease[T]]:
        """Lease up to ``limit`` messages for ``lifetime`` seconds: as many as are there as soon as there is one.

        None after ``timeout`` seconds (0: looks once; None: waits for ever). Each counts as an attempt.

        Raises:
            InvalidOptionError: a lifetime of 0, or another bad option.
            TransactionTooLargeError: more than a session may lock at once, or than a request takes.
            NotCommittedError: they could not be leased; they go to other takers.
            AccessDeniedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        lasting = required_seconds(lifetime, "lifetime")
        if not lasting:
            msg = "lifetime=0: a lease lasts for some time; use peek to look without leasing"
            raise InvalidOptionError(msg)
        wanted, patience = positive(limit, "limit"), seconds(timeout, "timeout")
        leased: list[Lease[T]] = []
        try:
            while len(leased) < wanted:
                together = min(TOGETHER, wanted - len(leased))
                taken = await self._take(together, lasting, 0 if leased else patience)
                leased += taken
                if len(taken) < together:
                    break
        except BaseException:
            # Nobody will learn their tokens: offer them again now, not when the leases end.
            self._engine.tasks.spawn(self._give_back, [one.token for one in leased], name="leases given back")
            raise
        return leased

    async def acknowledge(self, tokens: Iterable[str]) -> None:
        """Remove these messages for good. Needs no live lease, and may be repeated.

        Raises:
            InvalidOptionError: one is no token of this queue; none was removed.
            ItemNotEmptyError: one cannot be removed, since somebody has created znodes below it; the others were.
            AccessDeniedError: likewise one that this user may not read.
            SessionClosedError, WrongLoopError.
        """
        await self._change(self._places(tokens), lambda found: removal(self._engine, self._store, found, CONSUME))

    async def renew(self, tokens: Iterable[str], *, lifetime: Seconds = 30) -> None:
        """Make these leases last for ``lifetime`` seconds from now, or as long as they do if that is longer.

        One that has ended, or has never been, is made anew; a message that a transaction or delivery holds is left to
        it, one that is gone is passed over. ``lifetime=0`` ends the leases: the messages are offered at once.

        Raises: as `acknowledge`.
        """
        lasting = required_seconds(lifetime, "lifetime")
        places = self._places(tokens)
        if not places or not await self._is_there():
            return
        if lasting:
            end = await self._engine.server_clock.learned(self._store.paths.due) + milliseconds_in(lasting)
            await self._change(places, lambda found: self._extension(found, end))
        else:
            await self._change(places, lambda found: None if found.end is None else opening(self._store, found))

    # -- inside

    async def _take(self, limit: int, lasting: float, patience: float | None) -> list[Lease[T]]:
        leases: list[Lease[T]] = []
        transaction: Transaction | None = None
        try:
            async with TransactionBlock(self._engine, commits=True) as transaction:
                messages = await transaction.take_many(self._queue, limit, timeout=patience)
                # One lease a group: what comes behind it waits for its end.
                later = [
                    claim for claim in transaction.claims if claim.group_lock and claim.group_lock.live[0] is not claim
                ]
                await transaction.release_unseen(later)
                messages = [one for one in messages if one.id not in {claim.id for claim in later}]
                places = {claim.id: claim.place for claim in transaction.claims}
                for message in messages:
                    held = Disposition("release", delay=lasting, leased=True)
                    transaction._work.end(message.queue, message.id, held)  # noqa: SLF001 - as `Transaction.release`
                leases = [Lease(message, lease_token(self._store.name, places[message.id])) for message in messages]
        except BaseException:  # cancelled while the commit was under way, which then goes on
            if transaction is not None and leases:
                tokens = [lease.token for lease in leases]
                self._engine.tasks.spawn(self._give_back_committed, transaction.id, tokens, name="leases given back")
            raise
        return leases

    async def _give_back_committed(self, transaction_id: str, tokens: list[str]) -> None:
        """Give back what was leased by a commit whose caller did not stay to learn of it."""
        if await self._engine.outcome(transaction_id, None) is Outcome.COMMITTED:
            await self._give_back(tokens)

    async def _give_back(self, tokens: list[str]) -> None:
        with suppress(QueueError, ZooKeeperError):
            await self.renew(tokens, lifetime=0)

    async def _is_there(self) -> bool:
        """Open the queue, if there is one: what tokens say of one that is gone makes none."""
        if not self._store.ready:
            if not await self._store.exists():
                return False
            await self._store.open()
        return True

    async def _change(self, places: list[str], make: Callable[[ItemSnapshot], Change | None]) -> None:
        """Make and apply a change for each, anew for those that others were quicker with."""
        if not places or not await self._is_there():
            return
        obstructed: list[ItemNotEmptyError] = []
        sealed: Sealed = {}
        for _ in range(TRIES):
            # A server that lags would show a message that is there as gone, and its acknowledgement would be lost.
            await self._engine.zookeeper.sync(self._store.paths.base)
            found = await find(self._engine, self._store, places, sealed)
            made = [(one, change) for one in found if (change := make(one))]
            settled = await settle(self._engine, [change for _, change in made])
            places = []
            for (one, _), atomic_write in zip(made, settled, strict=True):
                if atomic_write.obstacle is not None:
                    obstructed.append(obstructed_by(self._store.name, one.id, atomic_write.obstacle))
                elif atomic_write.left:
                    places.append(one.place)
            if not places:
                break
        for error in (*obstructed, *sealed.values()):  # the others are done
            raise error
        if not places:
            return
        msg = f"queue {self._store.name!r}: {len(places)} leases changed each time they were looked at; try again"
        raise NotCommittedError(msg)

    def _places(self, tokens: Iterable[str]) -> list[str]:
        listed = collection(tokens, "tokens", "lease tokens")
        self._engine.check()
        return list(dict.fromkeys(self._place(token) for token in listed))

    def _place(self, token: object) -> str:
        try:
            if isinstance(token, str):
                return leased_place(self._store.name, token)
        except MalformedError as error:
            raise InvalidOptionError(f"queue {self._store.name!r}: {error}") from error
        msg = f"queue {self._store.name!r}: a lease token is a str, not {type(token).__name__}"
        raise InvalidOptionError(msg)

    def _extension(self, found: ItemSnapshot, end: int) -> Change | None:
        paths = self._store.paths
        grouped, path = is_group(found.locked_by), paths.lock(found.locked_by)
        if grouped and (found.lock is None or LockRecord.decode(found.lock.data).claim != found.id):
            return None  # another of its group may come first by now
        claim = found.id if grouped else self._engine.ids.next()
        lock = LockRecord(claim, self._engine.ids.client, end, leased=True).encode()
        place = due_data(found.place, found.locked_by) if grouped else found.place.encode()
        due = Create(paths.due_node(end, found.id), place)
        unchanged = Check(paths.at(found.place), found.item.stat.version)
        if found.lock is None:
            return Change(self._store, [unchanged, Create(path, lock), due])
        if found.end is None or found.end >= end:
            return None
        replaced = SetData(path, lock, found.lock.stat.version)
        return Change(self._store, [unchanged, replaced, Delete(paths.due_node(found.end, found.id)), due])
