"""Turns candidates into claims: locks them, and reads the items under the locks.

One multi ``[check configuration, create lock, create lock, …]`` is followed, in the same write, by one multi-read of
the items and the last lock. The item version read there is the fence of everything done with the claim, if the item was
read while its lock was ours. Version 0 proves that: a session that takes a lock away raises the item's version. An
item at another version has been changed by some session. It is read again, *and then* its lock, which must still hold
our claim id; otherwise a release between the claim and the read would go unnoticed.

A lost reply is resolved by sending the multi again. If it is refused because a lock exists, and one of the locks holds
our claim id, then the whole first copy was applied.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aiozkqueue.layout import (
    EMPTY_HEADER,
    MAGIC,
    AttemptRecord,
    ItemName,
    MalformedError,
    decode,
    is_plain_at,
    lock_text,
)
from aiozkqueue.queue.candidates.groups import ORDERED
from aiozkqueue.queue.commit.dispositions import REMOVED, Disposition, exhausted
from aiozkqueue.queue.commit.orphan_locks import LockRef
from aiozkqueue.queue.put.ttl import at_its_end
from aiozkqueue.queue.state.claim import Claim
from aiozkqueue.zookeeper import (
    BadVersionError,
    ClientClosedError,
    ConnectionLossError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    ZooKeeperError,
    new_create,
    read_separately,
)

from .orphan_locks import OrphanLocks, ReadFailedError, reading_locked_items
from .undelivered import settle_undelivered

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.zookeeper import Operation, Versioned

    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 128
BATCH_BYTES = 4 * 1024 * 1024
EXPECTED_SIZE = 1024.0
#: Unreadable messages are logged one by one, up to this number.
MOST_LOGGED = 100


class ContendedError(Exception):
    """Another session holds one of the candidates; none was claimed."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class AttachedOpError(Exception):
    """An operation attached to the claims was refused; none was claimed."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class ReopenError(Exception):
    """The queue's configuration has changed, or a znode of the queue is missing; nothing was claimed."""


class UnreadableError(Exception):
    """All candidates are locked, and this user may not read one of them."""

    def __init__(self, error: NoAuthError) -> None:
        super().__init__(str(error))
        self.error = error


class ClaimResult(NamedTuple):
    """The result of claiming a batch of candidates."""

    claims: list[Claim]
    gone: list[str]
    """Ids of candidates that were consumed before they were locked."""
    lost: list[str]
    """Ids whose locks were taken away between the lock and the read."""
    set_aside: list[str]
    """Ids, or groups, that are not tried again for a while, because this user may not read them."""


class _ReadResult:
    """The nodes read under the locks of a batch."""

    __slots__ = ("_lock", "_sure", "items", "locked_at", "lost", "metas", "unreadable")

    def __init__(
        self, items: list[Versioned | None], metas: list[Versioned | None], lock: bytes, last: Versioned | None
    ) -> None:
        self.items = items
        self.metas = metas
        self.lost: list[int] = []
        """Indexes of candidates whose lock was taken away."""
        self.unreadable: dict[int, NoAuthError] = {}
        """Indexes of candidates that this user may not read, with the error."""
        self.locked_at = 0 if last is None else last.ctime
        """When the locks were created, ms: one multi creates all."""
        self._sure = last is not None and last.data == lock
        self._lock = lock

    def doubtful(self) -> Sequence[int]:
        """Return the candidates that were touched, by a session that took our lock away or by earlier holders."""
        if not self._sure:
            return range(len(self.items))
        return [index for index, item in enumerate(self.items) if item is not None and item[2]]

    def record(self, index: int, item: Versioned | None, lock: Versioned | None, meta: Versioned | None) -> None:
        """Record the data read of a candidate, the item before the lock."""
        if lock is None or lock.data != self._lock:
            self.lost.append(index)
            self.items[index] = None
        else:
            self.items[index], self.metas[index], self.locked_at = item, meta, lock.ctime


@dataclass(slots=True)
class ClaimCounts:
    """Counters of one session's claims on one queue; they only grow."""

    batches: int = 0
    """Claim multis that were answered."""
    claimed: int = 0
    """Messages claimed."""
    contended: int = 0
    """Claim multis refused because another session held one of the candidates."""
    contended_locks: int = 0
    """Locks requested in those multis."""
    collapsed: int = 0
    """Messages removed because a newer one of their key was claimed."""
    expired: int = 0
    """Claimed messages that had expired: dropped or dead-lettered."""
    gone: int = 0
    """Locks acquired on items that had already been consumed."""

    def add(self, other: ClaimCounts) -> None:
        """Add other counters."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Claimer:
    """Claims items of one queue for one session."""

    def __init__(self, services: ClaimServices) -> None:
        state, zookeeper, ids = services.state, services.zookeeper, services.ids
        self._state = state
        self._zookeeper = zookeeper
        self._committer = services.committer
        self._server_clock = services.server_clock
        self._ids = ids
        self._budgets = services.budgets
        self._expected_size = EXPECTED_SIZE
        self._lock_text = lock_text(ids.client)
        self._above_places = state.paths.at("")
        self._lock_prefix = state.paths.lock("")
        self._logged: set[str] = set()  # ids already logged as unreadable
        self.counts: ClaimCounts = ClaimCounts()
        # Ids of other programs are shorter than our longest.
        self.item_lock_size: int = zookeeper.path_size(state.paths.lock("0" * state.longest_id)) + 4
        """Bytes of the session's lock budget that the lock of one message uses."""
        self.orphan_locks: OrphanLocks = OrphanLocks(services, self.item_lock_size)
        self.group_lock_size: int = zookeeper.path_size(state.paths.lock(ORDERED)) + 4
        """Bytes that the lock of one group uses."""

    @property
    def lock_size(self) -> int:
        """Bytes of the session's lock budget that one lock uses, at most."""
        return self.group_lock_size if self._state.snapshot.grouped else self.item_lock_size

    @property
    def expected_size(self) -> float:
        """The expected size of the next item, bytes."""
        return self._expected_size

    def expect(self, size: int) -> None:
        """Adapt the expected size to the longest item just read, bytes: upward at once, downward slowly."""
        self._expected_size = max(size, 0.9 * self._expected_size + 0.1 * size, 1.0)

    def capacity(self, generation: int) -> int:
        """Return how many candidates may be claimed now: limited by locks, count and expected bytes."""
        left = self._budgets.of(generation).left // self.lock_size
        return min(left, BATCH, max(1, int(BATCH_BYTES / self._expected_size)))

    def reserve(self, size: int, generation: int) -> None:
        """Charge the locks of a batch to the budget before it is sent, so that the next batch sees the rest."""
        self._budgets.of(generation).spend(size)

    def unreserve(self, size: int, generation: int) -> None:
        """Return the budget of a batch that was not claimed."""
        self._budgets.of(generation).free(size)

    async def claim(  # noqa: C901 - one loop, for every message
        self,
        places: Sequence[str],
        ids: Sequence[str],
        generation: int,
        check: Operation,
        attached: Sequence[Operation] = (),
    ) -> ClaimResult:
        """Claim all of these items, given by place and id, or none. Their locks must be reserved.

        ``check`` asserts the configuration. The ``attached`` operations are applied in the same multi.

        Raises:
            ContendedError, ReopenError, AttachedOpError: none was claimed.
            SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        state, forced_version = self._state, self._state.forced_version
        lock = self._lock_text(self._ids.next()).encode()
        items, locks = self._paths_of(places, ids)
        budget, owner, size = self._budgets.of(generation), self._ids.client, self.item_lock_size
        try:
            read = await self._lock(items, locks, ids, lock, generation, check, attached)
        except ReadFailedError as failure:  # the locks are ours, and each uses the budget until it is removed
            refs = [LockRef(path, lock, forced_version) for path in locks]
            self.orphan_locks.remove_unread(refs, generation, failure)
            raise failure.error from failure
        except BaseException:  # refused as a whole, or the session has ended: no lock is left
            budget.free(size * len(places))
            raise
        if read.lost:
            budget.free(size * len(read.lost))
        batch = ClaimResult([], [], [ids[index] for index in read.lost], [ids[index] for index in read.unreadable])
        locked_at = read.locked_at
        gone: list[LockRef] = []
        for index, node in enumerate(read.items):
            if read.lost and index in read.lost:
                continue
            if read.unreadable and index in read.unreadable:
                self.log_unreadable(ids[index], read.unreadable[index])
                self.orphan_locks.remove_unreadable(LockRef(locks[index], lock, forced_version), generation)
                continue
            if node is None:
                batch.gone.append(ids[index])
                gone.append(LockRef(locks[index], lock, forced_version))
                continue
            place = places[index]
            claim = Claim(state, place, ids[index], items[index], locks[index], owner, generation, budget, size)
            claim.claimed_at = locked_at
            disposition = self.examine(claim, node, read.metas[index])
            if claim.fields is not None and disposition is None:
                disposition = self.examine_name(claim, locked_at)
            if disposition is None:
                batch.claims.append(claim)
            else:
                self.settle(claim, disposition)
        if gone:
            self.orphan_locks.remove_stale(batch.gone, gone, generation)
        if batch.claims:
            self.expect(max([len(claim.raw) for claim in batch.claims]))
        self.counts.batches += 1
        self.counts.claimed += len(batch.claims)
        self.counts.gone += len(batch.gone)
        return batch

    def _paths_of(self, places: Sequence[str], ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the paths of items and of their locks."""
        if self._state.dialect is not None:
            paths = self._state.paths
            return [paths.at(place) for place in places], [paths.lock(message_id) for message_id in ids]
        # The same for our own queues, without a call for every message.
        above, lock = self._above_places, self._lock_prefix
        return [above + place for place in places], [lock + message_id for message_id in ids]

    async def _lock(  # noqa: PLR0917 - one caller
        self,
        items: Sequence[str],
        locks: Sequence[str],
        ids: Sequence[str],
        lock: bytes,
        generation: int,
        check: Operation,
        attached: Sequence[Operation],
    ) -> _ReadResult:
        """Create the locks, and read their items. Raises: as `lock_and_read`, except UnreadableError."""
        paths, count, counted = self._state.paths, len(items), self._state.snapshot.counts
        operations: list[Operation] = [check]
        operations += [new_create((path, lock, True, False, False)) for path in locks]
        reads = [*items, *(paths.meta(message_id) for message_id in ids), locks[-1]] if counted else [*items, locks[-1]]
        try:
            nodes = await self.lock_and_read(operations, reads, generation, attached=attached)
            read = _ReadResult(nodes[:count], nodes[count:-1] if counted else [None] * count, lock, nodes[-1])
            if doubtful := read.doubtful():
                await self._read_again(read, doubtful, items, locks, ids, generation)
        except UnreadableError:
            read = _ReadResult([None] * count, [None] * count, lock, None)
            await self._read_each(read, items, locks, ids, generation)
        if self._state.dialect is not None:
            with reading_locked_items():
                await self._state.distinguish(items, read.items, generation)
        return read

    async def _read_again(  # noqa: PLR0917 - one caller
        self,
        read: _ReadResult,
        doubtful: Sequence[int],
        items: Sequence[str],
        locks: Sequence[str],
        ids: Sequence[str],
        generation: int,
    ) -> None:
        """Read items again, then their locks and the records of attempts."""
        reads: list[str] = []
        for index in doubtful:
            reads += (items[index], locks[index], self._state.paths.meta(ids[index]))
        try:
            with reading_locked_items():
                nodes = iter(await self._zookeeper.read_versioned(reads, generation=generation))
        except NoAuthError as error:
            raise UnreadableError(error) from error
        for index, item, lock, meta in zip(doubtful, nodes, nodes, nodes, strict=True):
            read.record(index, item, lock, meta)

    async def _read_each(
        self, read: _ReadResult, items: Sequence[str], locks: Sequence[str], ids: Sequence[str], generation: int
    ) -> None:
        """Read each candidate separately, then its lock, and find out which are unreadable."""
        metas = (self._state.paths.meta(message_id) for message_id in ids)
        sets = list(zip(items, locks, metas, strict=True))
        with reading_locked_items():
            answers = await read_separately(self._zookeeper, sets, generation=generation)
        for index, nodes in enumerate(answers):
            if isinstance(nodes, NoAuthError):
                read.unreadable[index] = nodes
            else:
                read.record(index, *nodes)

    def log_unreadable(self, subject: str, error: NoAuthError) -> None:
        """Log once that a message, or a group, is skipped."""
        if subject in self._logged or len(self._logged) >= MOST_LOGGED:
            return
        self._logged.add(subject)
        text = "queue %s: message %s is skipped: this user may not read it or the record of its attempts: %s; "
        text += "grant read access, or remove the message"
        log.warning(text, self._state.name, subject, error, extra={"queue": self._state.name})

    def settle(self, claim: Claim, disposition: Disposition) -> asyncio.Future[None]:
        """Settle a claim that is never delivered."""
        return settle_undelivered(claim, disposition, self._committer, self._ids)

    async def lock_and_read(
        self, operations: list[Operation], reads: list[str], generation: int, *, attached: Sequence[Operation] = ()
    ) -> list[Versioned | None]:
        """Create locks (all operations except the first) with the attached operations, and read directly afterwards.

        Raises: as `claim`; UnreadableError, ReadFailedError: the locks are ours, and a node could not be read.
        """
        in_doubt = False
        locks = operations[1:]
        operations += attached
        while True:
            # Both are sent before either is awaited; the multi is answered first.
            pending = self._zookeeper.multi(operations, generation=generation, results=0)
            nodes = await _outcome_of(self._zookeeper.read_versioned(reads, generation=generation))
            outcome = await _outcome_of(pending)
            if isinstance(outcome, ConnectionLossError):
                in_doubt = True
                await self._zookeeper.wait_connected(generation=generation)
                continue
            # Whether the locks are ours comes first: an error of the read must not make them forgotten.
            if isinstance(outcome, SessionExpiredError | ClientClosedError):
                raise outcome
            if isinstance(outcome, ZooKeeperError) and not (in_doubt and await self._are_ours(locks, generation)):
                raise self._refusal_of(outcome, len(locks)) from outcome
            if not isinstance(nodes, ZooKeeperError):
                return nodes
            if isinstance(nodes, NoAuthError):
                raise UnreadableError(nodes)
            with reading_locked_items():
                raise nodes

    async def _are_ours(self, locks: Sequence[Operation], generation: int) -> bool:
        """Whether a multi has created its locks, judged by any of them that has not been taken away since.

        Raises: ReadFailedError: that cannot be known now.
        """
        paths = [lock.path for lock in locks]
        try:
            try:
                nodes = await self._zookeeper.read_versioned(paths, generation=generation)
            except NoAuthError:  # some are other users'
                answers = await read_separately(self._zookeeper, [(path,) for path in paths], generation=generation)
                nodes = [None if isinstance(each, NoAuthError) else each[0] for each in answers]
        except (SessionExpiredError, ClientClosedError):
            raise
        except ZooKeeperError as error:
            raise ReadFailedError(error, sure=False) from error
        return _any_ours(locks, nodes)

    def _refusal_of(self, refusal: ZooKeeperError, locks: int) -> Exception:
        """Return the exception for a refused claim."""
        if not isinstance(refusal, MultiError):
            return refusal
        if refusal.index > locks:
            return AttachedOpError(refusal.index - 1 - locks, refusal.error)
        if isinstance(refusal.error, BadVersionError | NoNodeError):
            return ReopenError()
        if isinstance(refusal.error, NodeExistsError):
            self.counts.batches += 1
            self.counts.contended += 1
            self.counts.contended_locks += locks
            return ContendedError(refusal.index - 1)
        return refusal.error

    async def read_metas(
        self, ids: Sequence[str], items: Sequence[Versioned | None], generation: int
    ) -> list[Versioned | None]:
        """Read the attempt records of the items that may have one, in the items' order. Raises: UnreadableError."""
        metas: list[Versioned | None] = [None] * len(ids)
        counted = self._state.snapshot.counts  # otherwise only an item touched since its put has a record
        touched = [index for index, item in enumerate(items) if item is not None and (counted or item.version > 0)]
        if touched:
            try:
                records = await self._zookeeper.read_versioned(
                    [self._state.paths.meta(ids[index]) for index in touched], generation=generation
                )
            except NoAuthError as error:
                raise UnreadableError(error) from error
            for index, meta in zip(touched, records, strict=True):
                metas[index] = meta
        return metas

    def examine(self, claim: Claim, item: Versioned, meta: Versioned | None) -> Disposition | None:
        """Store the data read in a claim; return its disposition if it must not be delivered."""
        claim.raw, claim.created, claim.version = item
        if not is_plain_at(claim.place):
            claim.fields = ItemName.parse(claim.name)
        try:
            if self._state.dialect is None:
                if claim.raw.startswith(MAGIC):
                    claim.header, claim.body = decode(claim.raw)
                else:  # the usual case: a bare payload
                    claim.body = claim.raw
            elif not read_foreign(self._state.dialect, claim):
                return REMOVED
            if meta is not None:
                record = AttemptRecord.decode(meta.data)
                claim.meta_version, claim.attempts = meta.version, record.attempts
                claim.retries, claim.error = record.retries, record.error
        except MalformedError as malformed:
            claim.header, claim.body, claim.remainder = EMPTY_HEADER, claim.raw, None
            if meta is not None:
                claim.meta_version = meta.version
            return Disposition("dead", reason=f"the stored bytes do not decode: {malformed}", cause=malformed)
        # Every limit allows one attempt, so a message without a counted one is not used up.
        return exhausted(claim, claim.error) if claim.attempts and claim.used_up else None

    def examine_name(self, claim: Claim, locked: int) -> Disposition | None:
        """Return the disposition of a message that had expired when ZooKeeper created the lock."""
        end = None if claim.fields is None else claim.fields.expires
        if end is None:
            return None
        self._server_clock.observe(locked)  # a clock sample for the check at delivery
        if end > locked:
            return None
        self.counts.expired += 1
        return at_its_end(self._state.config, end)


async def _outcome_of(answer: Awaitable[T]) -> T | ZooKeeperError:
    """Return the answer, or the error in its place."""
    try:
        return await answer
    except ZooKeeperError as error:
        return error


def read_foreign(dialect: Dialect, claim: Claim) -> bool:
    """Store the first message of another program's item in a claim; return whether there is one.

    Raises: MalformedError.
    """
    messages = dialect.messages(claim.raw)
    if not messages:
        return False
    claim.body = messages[0]
    claim.remainder = dialect.part(messages[1:], claim.raw) if len(messages) > 1 else None
    return True


def _any_ours(operations: Sequence[Operation], locks: Sequence[Versioned | None]) -> bool:
    """Whether any of the locks read is ours: then the whole multi was applied."""
    ours = operations[0]
    return isinstance(ours, Create) and any(node is not None and node.data == ours.data for node in locks)
