"""The message groups that a session holds: locks them, reads ahead, delivers, and releases them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import SessionClosedError
from aiozkqueue.layout import LockRecord, id_at
from aiozkqueue.queue.commit.orphan_locks import RemoveOrphanLock
from aiozkqueue.queue.commit.release_claims import LONGEST_KEPT
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.state.claim import Claim
from aiozkqueue.zookeeper import Create, NoAuthError, ZooKeeperError, read_separately

from .claimer import ClaimResult, UnreadableError
from .group_lock import GroupLock, ReadMessage
from .orphan_locks import ReadFailedError, reading_locked_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozkqueue.zookeeper import Operation, Versioned

    from .candidate_index import CandidateIndex
    from .claimer import Claimer
    from .releases import Releases
    from .services import ClaimServices
    from .waiters import Waiter, WaitQueue

log: Final = logging.getLogger(__name__)

#: Messages of one group that are read at a time.
READ_AHEAD = 16
READ_AHEAD_BYTES = 1024 * 1024
#: Seconds for which a kept lock waits for a taker of this session.
LINGER = 0.05
#: Seconds after which a group is released between two messages if there are other consumers.
LONGEST = 1.0


class GroupLocks:
    """The groups of one queue that one session holds."""

    def __init__(
        self,
        services: ClaimServices,
        *,
        claimer: Claimer,
        candidates: CandidateIndex,
        waiters: WaitQueue,
        releases: Releases,
    ) -> None:
        self._state = services.state
        self._zookeeper = services.zookeeper
        self._committer = services.committer
        self._tasks = services.tasks
        self._clock = services.clock
        self._server_clock = services.server_clock
        self._ids = services.ids
        self._budgets = services.budgets
        self._claimer = claimer
        self._candidates = candidates
        self._waiters = waiters
        self._releases = releases
        self.held: dict[str, GroupLock] = {}
        """The locked groups, by the id of the lock."""
        self._ready: deque[GroupLock] = deque()
        self.reading: int = 0
        """Reads in flight that may bring messages."""

    def __contains__(self, group: str) -> bool:
        return group in self.held

    # -- called by the dispatcher

    def start_over(self) -> None:
        """Forget everything: a new ZooKeeper session begins."""
        for group_lock in self.held.values():
            group_lock.gone = True
        self.held.clear()
        self._ready.clear()

    def reconfigured(self) -> None:
        """Release the groups that wait for a taker: groups may differ under the new configuration.

        A group whose messages are delivered continues if they are in the same group now.
        """
        ready, self._ready = self._ready, deque()
        for group_lock in ready:
            self._release_unseen(group_lock)
        for group_lock in self.held.values():
            if group_lock.live and self._candidates.lock_id(group_lock.live[0].place) == group_lock.group:
                group_lock.continue_under(self._state.version)

    def note_given(self, claims: Iterable[Claim], transaction: object) -> None:
        """Record the transaction that gets these claims, and read ahead for it: it may take more."""
        for claim in claims:
            if isinstance(claim.group_lock, GroupLock):
                claim.group_lock.transaction = transaction
                self._read_ahead(claim.group_lock)

    def next_for(self, waiter: Waiter) -> list[Claim]:
        """Return the claims that a taker may have now, from groups that it holds or that wait for a taker."""
        claims: list[Claim] = []
        if waiter.transaction is not None:
            for group_lock in [
                group_lock
                for group_lock in self.held.values()
                if group_lock.transaction is waiter.transaction and group_lock.live
            ]:
                while (
                    group_lock.ahead
                    and not group_lock.settling
                    and self._current(group_lock)
                    and len(claims) < waiter.missing
                ):
                    self._take_next(group_lock, claims)
                self._read_ahead(group_lock)
        while self._ready and len(claims) < waiter.missing:
            self._take_next(self._ready.popleft(), claims)
        self.note_given(claims, waiter.transaction)
        return claims

    async def claim(
        self, places: Sequence[str], groups: Sequence[str], generation: int, check: Operation
    ) -> ClaimResult:
        """Lock the groups of these places, or none, and read the oldest message of each. The locks must be reserved.

        ``check`` asserts the configuration.

        Raises:
            ContendedError, ReopenError: none was locked.
            SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        budget, size, begun = self._budgets.of(generation), self._claimer.group_lock_size, self._clock.monotonic()
        record = LockRecord(self._ids.next(), self._ids.client).encode()
        group_locks = [
            GroupLock(self, self._state, group, record, generation=generation, budget=budget, size=size, begun=begun)
            for group in groups
        ]
        unreadable: dict[GroupLock, NoAuthError] = {}
        items = await self._lock(places, group_locks, generation, check, unreadable)
        locked = [group_lock for group_lock in group_locks if group_lock.group in self.held]
        try:
            await self._read_heads(places, items, group_locks, unreadable)
        except BaseException:
            for group_lock in locked:
                self._unlock(group_lock)
            raise
        lost = [group_lock.group for group_lock in group_locks if group_lock not in locked]
        batch = ClaimResult([], [], lost, [group_lock.group for group_lock in unreadable])
        for group_lock in locked:
            if (denied := unreadable.get(group_lock)) is not None:
                self._claimer.log_unreadable(f"of the group locked by {group_lock.group}", denied)
                self._unlock(group_lock, partial(self._set_aside, group_lock))
            elif group_lock.ahead:
                self._take_next(group_lock, batch.claims)
            elif not group_lock.gone:
                self._unlock(group_lock)
                self._candidates.relist()
        self._claimer.counts.batches += 1
        self._claimer.counts.claimed += len(batch.claims)
        return batch

    async def _lock(
        self,
        places: Sequence[str],
        group_locks: Sequence[GroupLock],
        generation: int,
        check: Operation,
        unreadable: dict[GroupLock, NoAuthError],
    ) -> list[Versioned | None]:
        """Create the locks; return the items read under them. A group whose lock was taken away meanwhile is not held.

        ``unreadable`` receives the error of each group whose oldest message is unreadable.
        """
        try:
            nodes = await self._lock_and_read(places, group_locks, generation, check, unreadable)
        except ReadFailedError as failure:
            self._claimer.orphan_locks.log_unread(len(group_locks), failure)
            for group_lock in group_locks:
                self._unlock(group_lock, verified=failure.sure)
            raise failure.error from failure
        except BaseException:
            for group_lock in group_locks:
                group_lock.budget.free(group_lock.size)
            raise
        for group_lock, lock in zip(group_locks, nodes[1::2], strict=True):
            if lock is not None and lock.data == group_lock.ref.record:
                self.held[group_lock.group] = group_lock
                group_lock.locked_at = lock.ctime
            else:
                group_lock.budget.free(group_lock.size)
        return nodes[::2]

    async def _lock_and_read(
        self,
        places: Sequence[str],
        group_locks: Sequence[GroupLock],
        generation: int,
        check: Operation,
        unreadable: dict[GroupLock, NoAuthError],
    ) -> list[Versioned | None]:
        """Create the locks, and read the oldest message and the lock of each group in turn; see `_lock`."""
        path_of = self._state.paths.at
        creates = [Create(group_lock.lock, group_lock.ref.record, ephemeral=True) for group_lock in group_locks]
        pairs = [(path_of(place), group_lock.lock) for place, group_lock in zip(places, group_locks, strict=True)]
        reads = [path for pair in pairs for path in pair]
        try:
            return await self._claimer.lock_and_read([check, *creates], reads, generation)
        except UnreadableError:
            with reading_locked_items():
                return await self._read_each(group_locks, pairs, generation, unreadable)

    async def _read_each(
        self,
        group_locks: Sequence[GroupLock],
        pairs: Sequence[tuple[str, str]],
        generation: int,
        unreadable: dict[GroupLock, NoAuthError],
    ) -> list[Versioned | None]:
        """Read the oldest message of each group separately, then its lock; of an unreadable one, only the lock."""
        nodes: list[Versioned | None] = []
        for group_lock, pair in zip(
            group_locks, await read_separately(self._zookeeper, pairs, generation=generation), strict=True
        ):
            if isinstance(pair, NoAuthError):
                unreadable[group_lock] = pair
                nodes += (None, *await self._zookeeper.read_versioned([group_lock.lock], generation=generation))
            else:
                nodes += pair
        return nodes

    async def _read_heads(
        self,
        places: Sequence[str],
        items: Sequence[Versioned | None],
        group_locks: Sequence[GroupLock],
        unreadable: dict[GroupLock, NoAuthError],
    ) -> None:
        """Store the messages read with the locks; if the oldest one was consumed, read the next ones."""
        heads: list[tuple[str, Versioned, GroupLock]] = []
        consumed: list[GroupLock] = []
        for place, item, group_lock in zip(places, items, group_locks, strict=True):
            if group_lock.group not in self.held or group_lock in unreadable:
                continue
            if item is None:
                self._gone(place)
                consumed.append(group_lock)
            else:
                heads.append((place, item, group_lock))
        if heads:
            ids = [id_at(place) for place, _, _ in heads]
            generation = heads[0][2].generation
            metas: list[Versioned | None] = []
            try:
                metas += await self._claimer.read_metas(ids, [item for _, item, _ in heads], generation)
            except UnreadableError:
                each = [(self._state.paths.meta(message_id),) for message_id in ids]
                answers = await read_separately(self._zookeeper, each, generation=generation)
                for (_, _, group_lock), answer in zip(heads, answers, strict=True):
                    if isinstance(answer, NoAuthError):
                        unreadable[group_lock] = answer
                    metas.append(None if isinstance(answer, NoAuthError) else answer[0])
            for (place, item, group_lock), meta in zip(heads, metas, strict=True):
                if group_lock not in unreadable:
                    group_lock.ahead.append(self._examined(group_lock, place, item, meta))
        await asyncio.gather(*(self._read_next(group_lock, unreadable) for group_lock in consumed))

    async def _read_next(self, group_lock: GroupLock, unreadable: dict[GroupLock, NoAuthError]) -> None:
        """Read the messages after those that were consumed."""
        try:
            await self._read(group_lock)
        except NoAuthError as error:
            unreadable[group_lock] = error
        except UnreadableError as error:
            unreadable[group_lock] = error.error

    # -- called by group locks

    def keeps(self, group_lock: GroupLock) -> bool:
        """See `GroupLockOwner`."""
        if not self._current(group_lock) or (group_lock.transaction is not None and self._waiters.empty):
            return False
        if not self._candidates.alone and self._clock.monotonic() - group_lock.begun > LONGEST:
            return False
        return bool(group_lock.ahead) or self._has_more(group_lock)

    def deleted(self, claim: Claim) -> None:
        """See `GroupLockOwner`."""
        self._candidates.deleted(claim.place)

    def continue_group(self, group_lock: GroupLock) -> None:
        """See `GroupLockOwner`."""
        self._candidates.wakeup.set()
        if group_lock.live:
            return
        group_lock.transaction = None
        if not self._current(group_lock) or (not group_lock.ahead and not self._has_more(group_lock)):
            self._release_unseen(group_lock)
        elif group_lock.ahead:
            self._offer(group_lock)
        else:
            self._read_ahead(group_lock)

    def finish(self, group_lock: GroupLock, *, locked: bool) -> None:
        """See `GroupLockOwner`."""
        group_lock.gone = True
        group_lock.budget.free(group_lock.size)
        if self.held.get(group_lock.group) is group_lock:
            del self.held[group_lock.group]
            self._candidates.group_settled(group_lock.group, locked=locked)
        if group_lock in self._ready:
            self._ready.remove(group_lock)

    def lost(self, group_lock: GroupLock, pause: float = 0.0) -> None:
        """See `GroupLockOwner`."""
        self.finish(group_lock, locked=False)
        self._candidates.relist()
        # The lock still exists if an item was changed or deleted by hand, or ZooKeeper refuses a timed lock.
        self._tasks.spawn(self._unlock_if_ours, group_lock, pause, name="lock of a group that was lost")

    # -- internals

    def _current(self, group_lock: GroupLock) -> bool:
        return not group_lock.gone and self._state.ready and group_lock.version == self._state.version

    def _has_more(self, group_lock: GroupLock) -> bool:
        known = len(group_lock.live) + len(group_lock.ahead)
        return len(self._candidates.members(group_lock.group, known + 1)) > known

    def _take_next(self, group_lock: GroupLock, claims: list[Claim]) -> None:
        """Add the next message of a group to ``claims``; settle it instead if it must not be delivered."""
        disposition = group_lock.ahead[0].disposition
        claim = group_lock.take_next()
        if claim is not None:
            claims.append(claim)
        elif disposition is not None:
            with suppress(SessionClosedError):
                self._claimer.settle(group_lock.live[-1], disposition)

    def _offer(self, group_lock: GroupLock) -> None:
        """Offer the next message to any taker; release the group if none comes within a while."""
        if group_lock.ahead[0].disposition is not None:
            self._take_next(group_lock, [])
            return
        self._ready.append(group_lock)
        self._candidates.wakeup.set()
        self._clock.call_later(LINGER, lambda: self._check_offer(group_lock))

    def _check_offer(self, group_lock: GroupLock) -> None:
        if group_lock in self._ready and self._waiters.empty:
            self._ready.remove(group_lock)
            self._release_unseen(group_lock)
        elif group_lock in self._ready:
            self._candidates.wakeup.set()
            self._clock.call_later(LINGER, lambda: self._check_offer(group_lock))

    def _set_aside(self, group_lock: GroupLock) -> None:
        """Set aside a group whose next message is unreadable, which blocks those behind it."""
        if not group_lock.gone:
            self.finish(group_lock, locked=False)
        self._candidates.set_aside([group_lock.group])

    def _release_unseen(self, group_lock: GroupLock) -> None:
        """Release a group between two messages."""
        if group_lock.gone or group_lock.settling:
            return
        if group_lock.ahead:
            # The release asserts the next message: it is refused if the lock was taken away.
            claim = group_lock.take_next() or group_lock.live[-1]
            group_lock.ahead.clear()
            self._releases.release([claim])
        else:
            self._unlock(group_lock)

    def _unlock(
        self, group_lock: GroupLock, gone: Callable[[], None] | None = None, *, verified: bool = True
    ) -> AtomicWrite | None:
        """Remove a lock under which no message was found, unless it was taken away, by this write; None: closed.

        A lock that is not ``verified`` to be ours is read first.
        """
        group_lock.settling = True
        over = gone or (lambda: None if group_lock.gone else self.finish(group_lock, locked=False))
        with suppress(SessionClosedError):  # then the lock ends with the session
            lock = group_lock.ref if verified else group_lock.ref.unverified()
            removal = RemoveOrphanLock(group_lock.generation, self._state, lock, over)
            atomic_write = AtomicWrite(self._ids.next(), removal)
            self._committer.submit(atomic_write)
            return atomic_write
        return None

    async def _unlock_if_ours(self, group_lock: GroupLock, pause: float) -> None:
        """Remove a lost lock that is still ours; try again while ZooKeeper refuses that."""
        await asyncio.sleep(pause)
        try:
            while True:
                (lock,) = await self._zookeeper.read_versioned([group_lock.lock], generation=group_lock.generation)
                if lock is None or lock.data != group_lock.ref.record:
                    return
                if (removal := self._unlock(group_lock, self._candidates.relist)) is None:
                    return
                await asyncio.wait((removal.done,))
                await asyncio.sleep(0 if removal.error is None else LONGEST_KEPT)
        except ZooKeeperError as error:
            # The session has ended, and the lock with it.
            log.debug("%s: %s", group_lock.lock, error, extra={"queue": self._state.name})

    def _read_ahead(self, group_lock: GroupLock) -> None:
        if group_lock.ahead or group_lock.reading or group_lock.settling or not self._current(group_lock):
            return
        if self._has_more(group_lock):
            group_lock.reading = True
            self.reading += 1
            self._tasks.spawn(self._read_more, group_lock, name="messages of a group")

    async def _read_more(self, group_lock: GroupLock) -> None:
        try:
            await self._read(group_lock)
        except (ZooKeeperError, UnreadableError) as error:
            # The next claim reports the error; until then, nothing is read under this lock.
            log.debug("queue %s: %s", self._state.name, error, extra={"queue": self._state.name})
            group_lock.version = -1
            self._candidates.relist()
        finally:
            self.reading -= 1
            group_lock.reading = False
            self._candidates.wakeup.set()
        if not group_lock.gone and not group_lock.live and not group_lock.settling:
            if group_lock.ahead:
                self._offer(group_lock)
            else:
                self._release_unseen(group_lock)

    async def _read(self, group_lock: GroupLock) -> None:
        """Read the next messages that exist, with the records of their attempts."""
        while not (group_lock.gone or group_lock.ahead) and (places := self._unread_places(group_lock)):
            rereads = group_lock.rereads
            items = await self._read_items(group_lock, places)
            if items is None:
                return
            ids, nodes = [id_at(place) for place, _ in items], [node for _, node in items]
            metas = await self._claimer.read_metas(ids, nodes, group_lock.generation)
            if _moved_on(group_lock, rereads):
                return
            for (place, node), meta in zip(items, metas, strict=True):
                group_lock.ahead.append(self._examined(group_lock, place, node, meta))

    def _unread_places(self, group_lock: GroupLock) -> list[str]:
        """Return the places of the next messages to read."""
        count = max(1, min(READ_AHEAD, int(READ_AHEAD_BYTES / self._claimer.expected_size)))
        held = {claim.place for claim in group_lock.live}
        members = self._candidates.members(group_lock.group, len(held) + count)
        return [place for place in members if place not in held]

    async def _read_items(self, group_lock: GroupLock, places: list[str]) -> list[tuple[str, Versioned]] | None:
        """Read items, and then the lock: if it is ours now, it was ours when they were read. Return those that exist.

        None: the items are no longer the next ones, or the lock or the configuration is another one.
        """
        paths, rereads = self._state.paths, group_lock.rereads
        reads = [*(paths.at(place) for place in places), paths.base, group_lock.lock]
        *nodes, base, lock = await self._zookeeper.read_versioned(reads, generation=group_lock.generation)
        if _moved_on(group_lock, rereads):
            return None
        if lock is None or lock.data != group_lock.ref.record:
            self.lost(group_lock)
            return None
        if base is None or base.version != group_lock.version:
            self._state.invalidate()
            return None
        for place, node in zip(places, nodes, strict=True):
            if node is None:
                self._gone(place)
        return [(place, node) for place, node in zip(places, nodes, strict=True) if node is not None]

    def _examined(self, group_lock: GroupLock, place: str, item: Versioned, meta: Versioned | None) -> ReadMessage:
        state, client, generation = self._state, self._ids.client, group_lock.generation
        path, lock, budget = state.paths.at(place), group_lock.lock, group_lock.budget
        claim = Claim(state, place, id_at(place), path, lock, client, generation, budget, 0, group_lock)
        self._claimer.expect(len(item.data))
        disposition = self._claimer.examine(claim, item, meta)
        claim.claimed_at = group_lock.locked_at if group_lock.locked_at is not None else self._server_clock.now()
        if group_lock.locked_at is not None and claim.fields is not None and disposition is None:
            disposition = self._claimer.examine_name(claim, group_lock.locked_at)
        group_lock.locked_at = None  # later messages are checked when they are delivered
        return ReadMessage(claim, disposition)

    def _gone(self, place: str) -> None:
        self._claimer.counts.gone += 1
        self._candidates.deleted(place)


def _moved_on(group_lock: GroupLock, rereads: int) -> bool:
    """Whether the messages just read are no longer the next ones."""
    return group_lock.gone or rereads != group_lock.rereads
