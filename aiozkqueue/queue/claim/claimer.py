"""From candidates to claims: lock them, and read under the locks what they hold.

One multi ``[check configuration, create lock, create lock, …]``, and right behind it, in the same write, one multi-read
of the items and the last lock. The item's version read there is the fence of everything done with the claim, if the
item was read while its lock was ours. At version 0 it was: whoever takes a lock away raises it. An item at another
version has been touched by somebody; it is read again *and then* its lock, which must still bear our claim id: else a
release between the claim and the read would go unnoticed.

A lost reply is resolved by sending the multi again: refused because a lock is there, and one of the locks bears our
claim id, means that the first copy had been applied, all of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aiozkqueue.layout import EMPTY_HEADER, AttemptRecord, ItemName, LockRecord, MalformedError, decode
from aiozkqueue.queue.candidates.groups import ORDERED
from aiozkqueue.queue.commit.dispositions import REMOVED, Disposition, exhausted
from aiozkqueue.queue.commit.orphan_locks import LockRef, RemoveOrphanLock
from aiozkqueue.queue.put.ttl import at_its_end
from aiozkqueue.queue.state.claim import Claim
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    ZooKeeperError,
    new_create,
    read_apart,
)

from .undelivered import settle_unshown

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Versioned, ZooKeeper

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 128
BATCH_BYTES = 4 * 1024 * 1024
EXPECTED_SIZE = 1024.0
#: Messages that may not be read are logged, one by one, up to this number.
TOLD = 100


class ContendedError(Exception):
    """Somebody else holds one of the candidates; none was claimed."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class BesideError(Exception):
    """What was to be done beside the claims was refused; none was claimed."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class ReopenError(Exception):
    """The queue's configuration has changed, or something of the queue is missing; nothing was claimed."""


class UnreadableError(Exception):
    """All candidates are locked, and one of them may not be read by this user."""

    def __init__(self, error: NoAuthError) -> None:
        super().__init__(str(error))
        self.error = error


class Batch(NamedTuple):
    """What became of a batch of candidates."""

    claims: list[Claim]
    ghosts: list[str]
    """Ids of candidates that had been consumed before they were locked."""
    lost: list[str]
    """Ids that were forced open between the lock and the read."""
    sealed: list[str]
    """Ids, or groups, that may not be read by this user."""


class _Found:
    """What was read under the locks of a batch."""

    __slots__ = ("_lock", "_sure", "items", "lost", "metas", "sealed", "since")

    def __init__(
        self, items: list[Versioned | None], metas: list[Versioned | None], lock: bytes, last: Versioned | None
    ) -> None:
        self.items = items
        self.metas = metas
        self.lost: list[int] = []
        """Of which candidates the lock has been taken away."""
        self.sealed: dict[int, NoAuthError] = {}
        """Which candidates may not be read."""
        self.since = 0 if last is None else last.ctime
        """When the locks were made, ms: all by one multi."""
        self._sure = last is not None and last.data == lock
        self._lock = lock

    def doubtful(self) -> Sequence[int]:
        """The candidates that have been touched, by somebody who took our lock away or by others before."""
        if not self._sure:
            return range(len(self.items))
        return [index for index, item in enumerate(self.items) if item is not None and item[2]]

    def look(self, index: int, item: Versioned | None, lock: Versioned | None, meta: Versioned | None) -> None:
        """Take what was read of a candidate, the item before the lock."""
        if lock is None or lock.data != self._lock:
            self.lost.append(index)
        else:
            self.items[index], self.metas[index], self.since = item, meta, lock.ctime


@dataclass(slots=True)
class ClaimCounts:
    """How the claims of one session on one queue went so far; they only grow."""

    batches: int = 0
    """Claim multis that were answered."""
    claimed: int = 0
    """Messages claimed."""
    contended: int = 0
    """Claim multis refused because somebody else held one of the candidates."""
    locks_in_vain: int = 0
    """Locks that were asked for in those."""
    collapsed: int = 0
    """Messages removed because a newer one of their key was claimed."""
    expired: int = 0
    """Messages claimed whose life had ended: dropped, or dead letters."""
    ghosts: int = 0
    """Locks gained on items that had been consumed before."""


class Claimer:
    """Claims on one queue, by one session."""

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        *,
        committer: GroupCommitter,
        server_clock: ServerClock,
        ids: IdSource,
        budgets: SessionBudget,
    ) -> None:
        self._store = store
        self._zookeeper = zookeeper
        self._committer = committer
        self._server_clock = server_clock
        self._ids = ids
        self._budgets = budgets
        self._expected_size = EXPECTED_SIZE
        self._told: set[str] = set()  # what may not be read
        self.counts: ClaimCounts = ClaimCounts()
        # Ids of other programs are shorter than the longest of ours.
        self.item_lock_size: int = zookeeper.path_size(store.paths.lock("0" * store.longest_id)) + 4
        """What the lock of one message takes of a session's budget, bytes."""
        self.group_lock_size: int = zookeeper.path_size(store.paths.lock(ORDERED)) + 4
        """What the lock of one group takes of it."""

    @property
    def lock_size(self) -> int:
        """What one lock takes of a session's budget at the most, bytes."""
        return self.group_lock_size if self._store.config.grouped else self.item_lock_size

    @property
    def expected_size(self) -> float:
        """About how many bytes the next item has."""
        return self._expected_size

    def expect(self, size: int) -> None:
        """Go by the longest item that has just been read, bytes: at once when they grow, slowly when they shrink."""
        self._expected_size = max(size, 0.9 * self._expected_size + 0.1 * size, 1.0)

    def room(self, generation: int) -> int:
        """Return how many candidates may be claimed at once now: bounded by locks, count and expected bytes."""
        left = self._budgets.of(generation).left // self.lock_size
        return min(left, BATCH, max(1, int(BATCH_BYTES / self._expected_size)))

    def reserve(self, size: int, generation: int) -> None:
        """Count the locks of a batch that is about to be claimed: the next one must find only what room that leaves."""
        self._budgets.of(generation).spend(size)

    def unreserve(self, size: int, generation: int) -> None:
        """Give back the room of a batch that is not claimed after all."""
        self._budgets.of(generation).free(size)

    async def claim(  # noqa: C901, PLR0915 - one loop, for every message
        self, places: Sequence[str], ids: Sequence[str], generation: int, beside: Sequence[Operation] = ()
    ) -> Batch:
        """Claim all of these items, given by place and id, for which there is room reserved; or none.

        What is to be done beside is done with it.

        Raises:
            ContendedError, ReopenError, BesideError: none was claimed.
            SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        store, paths, forced_version = self._store, self._store.paths, self._store.forced_version
        lock = LockRecord(self._ids.next(), self._ids.client).encode()
        count, counted = len(places), store.config.counts
        items, locks = [paths.at(place) for place in places], [paths.lock(one) for one in ids]
        operations: list[Operation] = [store.check()]
        operations += [new_create((path, lock, True, False, False)) for path in locks]
        reads = [*items, *(paths.meta(one) for one in ids), locks[-1]] if counted else [*items, locks[-1]]
        budget, owner, size = self._budgets.of(generation), self._ids.client, self.item_lock_size
        kept = 0
        try:
            try:
                nodes = await self.lock_and_read(operations, reads, generation, beside=beside)
                found = _Found(nodes[:count], nodes[count:-1] if counted else [None] * count, lock, nodes[-1])
                if doubtful := found.doubtful():
                    await self._read_again(found, doubtful, items, locks, ids, generation)
            except UnreadableError:
                found = _Found([None] * count, [None] * count, lock, None)
                await self._read_each(found, items, locks, ids, generation)
            batch = Batch([], [], [ids[index] for index in found.lost], [ids[index] for index in found.sealed])
            since = found.since
            for index, node in enumerate(found.items):
                if found.lost and index in found.lost:
                    continue
                kept += 1
                if found.sealed and index in found.sealed:
                    self.tell_sealed(ids[index], found.sealed[index])
                    self._release_ghost(LockRef(locks[index], lock, forced_version), generation, wakeup=paths.items)
                    continue
                if node is None:
                    batch.ghosts.append(ids[index])
                    self._release_ghost(LockRef(locks[index], lock, forced_version), generation)
                    continue
                place = places[index]
                claim = Claim(store, place, ids[index], items[index], locks[index], owner, generation, budget, size)
                claim.since = since
                disposition = self.examine(claim, node, found.metas[index])
                if claim.fields is not None and disposition is None:
                    disposition = self.examine_name(claim, since)
                if disposition is None:
                    batch.claims.append(claim)
                else:
                    self.settle(claim, disposition)
            if batch.claims:
                sizes = [len(claim.raw) for claim in batch.claims]
                self.expect(max(sizes))
            self.counts.batches += 1
            self.counts.claimed += len(batch.claims)
            self.counts.ghosts += len(batch.ghosts)
            return batch
        finally:
            if kept < count:
                budget.free(size * (count - kept))

    async def _read_again(  # noqa: PLR0917 - one caller
        self,
        found: _Found,
        doubtful: Sequence[int],
        items: Sequence[str],
        locks: Sequence[str],
        ids: Sequence[str],
        generation: int,
    ) -> None:
        """Read items once more, and then their locks and what has been recorded of attempts at them."""
        reads: list[str] = []
        for index in doubtful:
            reads += (items[index], locks[index], self._store.paths.meta(ids[index]))
        try:
            nodes = iter(await self._zookeeper.read_versioned(reads, generation=generation))
        except NoAuthError as error:
            raise UnreadableError(error) from error
        for index, item, lock, meta in zip(doubtful, nodes, nodes, nodes, strict=True):
            found.look(index, item, lock, meta)

    async def _read_each(
        self, found: _Found, items: Sequence[str], locks: Sequence[str], ids: Sequence[str], generation: int
    ) -> None:
        """Read each candidate by itself, then its lock, and find out which may not be read."""
        metas = (self._store.paths.meta(one) for one in ids)
        sets = list(zip(items, locks, metas, strict=True))
        for index, nodes in enumerate(await read_apart(self._zookeeper, sets, generation=generation)):
            if isinstance(nodes, NoAuthError):
                found.sealed[index] = nodes
            else:
                found.look(index, *nodes)

    def tell_sealed(self, what: str, error: NoAuthError) -> None:
        """Log, once, that something is passed by."""
        if what in self._told:
            return
        if len(self._told) < TOLD:
            log.warning(
                "queue %s: message %s is passed by, since it, or the record of attempts at it, may not be read by this "
                "user: %s; let this user read it, or remove it",
                self._store.name,
                what,
                error,
                extra={"queue": self._store.name},
            )
        self._told.add(what)

    def settle(self, claim: Claim, disposition: Disposition) -> asyncio.Future[None]:
        """End the hold on a claim that nobody is shown."""
        return settle_unshown(claim, disposition, self._committer, self._ids, self._server_clock)

    def _release_ghost(self, lock: LockRef, generation: int, *, wakeup: str | None = None) -> None:
        budget, size, name = self._budgets.of(generation), self.item_lock_size, self._ids.next()
        self._committer.submit(
            RemoveOrphanLock(name, generation, self._store, lock, lambda: budget.free(size), wakeup=wakeup)
        )

    async def lock_and_read(
        self,
        operations: list[Operation],
        reads: list[str],
        generation: int,
        *,
        beside: Sequence[Operation] = (),
    ) -> list[Versioned | None]:
        """Create locks, all operations but the first, do what is to be done beside, and read right behind that.

        Raises: as `claim`; UnreadableError: the locks are ours.
        """
        in_doubt = False
        locks = operations[1:]
        operations += beside
        while True:
            # Both are sent before either is awaited; the multi is answered first.
            pending = self._zookeeper.multi(operations, generation=generation, results=0)
            nodes = await _outcome_of(self._zookeeper.read_versioned(reads, generation=generation))
            outcome = await _outcome_of(pending)
            if isinstance(outcome, ConnectionLossError):
                in_doubt = True
                await self._zookeeper.wait_connected(generation=generation)
                continue
            if isinstance(nodes, NoAuthError) and not isinstance(outcome, ZooKeeperError):
                raise UnreadableError(nodes)
            if isinstance(nodes, ZooKeeperError):
                raise nodes
            if not isinstance(outcome, ZooKeeperError) or (in_doubt and await self._are_ours(locks, generation)):
                return nodes
            if not isinstance(outcome, MultiError):
                raise outcome
            raise self._refusal_of(outcome, len(locks)) from outcome

    async def _are_ours(self, locks: Sequence[Operation], generation: int) -> bool:
        """Tell whether the locks that a multi was to create are there, by any that has not been forced open since."""
        nodes = await self._zookeeper.read_versioned([lock.path for lock in locks], generation=generation)
        return _bears(locks, nodes)

    def _refusal_of(self, refusal: MultiError, locks: int) -> Exception:
        """Say what it means that a claim was refused."""
        if refusal.index > locks:
            return BesideError(refusal.index - 1 - locks, refusal.error)
        if refusal.index == 0 or isinstance(refusal.error, NoNodeError):
            return ReopenError()
        if isinstance(refusal.error, NodeExistsError):
            self.counts.batches += 1
            self.counts.contended += 1
            self.counts.locks_in_vain += locks
            return ContendedError(refusal.index - 1)
        return refusal.error

    async def read_metas(
        self, ids: Sequence[str], items: Sequence[Versioned | None], generation: int
    ) -> list[Versioned | None]:
        """Read the attempts at items that can have any, in the order of the items. Raises: UnreadableError."""
        metas: list[Versioned | None] = [None] * len(ids)
        counted = self._store.config.counts  # else an item has some only if it was touched since its put
        touched = [index for index, item in enumerate(items) if item is not None and (counted or item.version > 0)]
        if touched:
            try:
                read = await self._zookeeper.read_versioned(
                    [self._store.paths.meta(ids[index]) for index in touched], generation=generation
                )
            except NoAuthError as error:
                raise UnreadableError(error) from error
            for index, meta in zip(touched, read, strict=True):
                metas[index] = meta
        return metas

    def examine(self, claim: Claim, item: Versioned, meta: Versioned | None) -> Disposition | None:
        """Take what was read into a claim; return how it ends when it must not be handed over."""
        claim.raw, claim.created, claim.version = item
        if "/item-i" not in claim.place:  # its name says more than its id
            claim.fields = ItemName.parse(claim.name)
        error: str | None = None
        try:
            if self._store.dialect is None:
                claim.header, claim.body = decode(claim.raw)
            elif not read_foreign(self._store.dialect, claim):
                return REMOVED
            if meta is not None:
                record = AttemptRecord.decode(meta.data)
                claim.meta_version, claim.attempts, error = meta.version, record.attempts, record.error
                claim.retries = record.retries
        except MalformedError as malformed:
            claim.header, claim.body, claim.rest = EMPTY_HEADER, claim.raw, None
            if meta is not None:
                claim.meta_version = meta.version
            return Disposition("dead", reason=f"what is stored does not decode: {malformed}")
        return exhausted(claim, error) if claim.used_up else None

    def examine_name(self, claim: Claim, locked: int) -> Disposition | None:
        """Say how it ends when its life had ended by the time at which ZooKeeper made the lock."""
        end = None if claim.fields is None else claim.fields.expires
        if end is None:
            return None
        self._server_clock.observe(locked)  # a sample for the hand-over to judge by
        if end > locked:
            return None
        self.counts.expired += 1
        return at_its_end(self._store.config, end)


async def _outcome_of(answer: Awaitable[T]) -> T | ZooKeeperError:
    """What is answered, or why it is not."""
    try:
        return await answer
    except ZooKeeperError as error:
        return error


def read_foreign(dialect: Dialect, claim: Claim) -> bool:
    """Take the first of the messages that an item of another program holds into a claim; whether there is one.

    Raises: MalformedError.
    """
    messages = dialect.messages(claim.raw)
    if not messages:
        return False
    claim.body = messages[0]
    claim.rest = dialect.item(messages[1:]) if len(messages) > 1 else None
    return True


def _bears(operations: Sequence[Operation], locks: Sequence[Versioned | None]) -> bool:
    """Tell whether any of the locks read is the one we wrote: then the whole multi was applied."""
    ours = operations[0]
    return isinstance(ours, Create) and any(node is not None and node.data == ours.data for node in locks)
