"""The groups that a session holds: locked, read ahead, handed on, and let go."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import SessionClosedError
from aiozkqueue.layout import LockRecord, item_id
from aiozkqueue.queue.commit.orphan_locks import GhostSettlement, OwnLock
from aiozkqueue.queue.state.claim import Claim
from aiozkqueue.zookeeper import Create, NoAuthError, ZooKeeperError, read_apart

from .claimer import Batch, UnreadableError
from .group_lock import Read, Tenure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.group_commit import Committer
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueStore
    from aiozkqueue.zookeeper import Versioned, ZooKeeper

    from .claimer import Claimer
    from .discovery import Lookout
    from .waiters import Waiter

log: Final = logging.getLogger(__name__)

#: Messages of one group read at a time.
READ_AHEAD = 16
READ_AHEAD_BYTES = 1024 * 1024
#: Seconds for which a kept lock waits for somebody of this session who takes the next message.
LINGER = 0.05
#: Seconds after which a group is let go between two messages where there are other consumers.
LONGEST = 1.0


class Tenures:
    """The groups that one session holds of one queue."""

    def __init__(
        self,
        store: QueueStore,
        zookeeper: ZooKeeper,
        *,
        claimer: Claimer,
        lookout: Lookout,
        committer: Committer,
        tasks: TaskOwner,
        clock: Clock,
        server_clock: ServerClock,
        ids: IdSource,
        budgets: SessionBudget,
        wanted: Callable[[], bool],
        give_back: Callable[[Sequence[Claim]], object],
    ) -> None:
        self._store = store
        self._zookeeper = zookeeper
        self._claimer = claimer
        self._lookout = lookout
        self._committer = committer
        self._tasks = tasks
        self._clock = clock
        self._server_clock = server_clock
        self._ids = ids
        self._budgets = budgets
        self._wanted = wanted
        self._give_back = give_back
        self._held: dict[str, Tenure] = {}
        self._ready: deque[Tenure] = deque()
        self.reading: int = 0
        """Reads under way that may bring messages."""

    def __contains__(self, group: str) -> bool:
        return group in self._held

    @property
    def any(self) -> bool:
        """Whether any group is held."""
        return bool(self._held)

    # -- for the dispenser

    def start_over(self) -> None:
        """Forget all: another ZooKeeper session begins."""
        for tenure in self._held.values():
            tenure.gone = True
        self._held.clear()
        self._ready.clear()

    def reconfigured(self) -> None:
        """Let go what waits for a taker: under another configuration, groups may be others."""
        ready, self._ready = self._ready, deque()
        for tenure in ready:
            self._let_go(tenure)

    def given(self, claims: Iterable[Claim], owner: object) -> None:
        """Claims have been handed on to a taker: read ahead what comes next, for a transaction that may take more."""
        for claim in claims:
            if claim.tenure is not None:
                claim.tenure.owner = owner
                self._read_ahead(claim.tenure)

    def next_for(self, waiter: Waiter) -> list[Claim]:
        """Return what may be handed to a taker now: of what it holds already, or of groups that wait for a taker."""
        claims: list[Claim] = []
        if waiter.owner is not None:
            for tenure in [one for one in self._held.values() if one.owner is waiter.owner and one.live]:
                while tenure.ahead and not tenure.settling and self._current(tenure) and len(claims) < waiter.missing:
                    self._show(tenure, claims)
                self._read_ahead(tenure)
        while self._ready and len(claims) < waiter.missing:
            self._show(self._ready.popleft(), claims)
        self.given(claims, waiter.owner)
        return claims

    async def claim(self, places: Sequence[str], groups: Sequence[str], generation: int) -> Batch:
        """Lock the groups of these places, for which there is room reserved, or none; read the oldest of each.

        Raises:
            ContendedError, ReopenError: none was locked.
            SessionExpiredError, NoAuthError, ClientClosedError: of the zookeeper package.
        """
        budget = self._budgets.of(generation)
        record = LockRecord(self._ids.next(), self._ids.client).encode()
        tenures = [
            Tenure(
                self,
                self._store,
                group,
                record,
                generation=generation,
                budget=budget,
                size=self._claimer.group_lock_size,
                begun=self._clock.monotonic(),
            )
            for group in groups
        ]
        sealed: dict[Tenure, NoAuthError] = {}
        items = await self._lock(places, tenures, generation, sealed)
        held = [tenure for tenure in tenures if tenure.group in self._held]
        try:
            await self._read_heads(places, items, tenures, sealed)
        except BaseException:
            for tenure in held:
                self._unlock(tenure)
            raise
        lost = [one.group for one in tenures if one not in held]
        batch = Batch([], [], lost, [tenure.group for tenure in sealed])
        for tenure in held:
            if (unreadable := sealed.get(tenure)) is not None:
                self._claimer.tell_sealed(f"of the group locked by {tenure.group}", unreadable)
                self._unlock(tenure, partial(self._pass_by, tenure))
            elif tenure.ahead:
                self._show(tenure, batch.claims)
            elif not tenure.gone:
                self._unlock(tenure)
                self._lookout.relist()
        self._claimer.counts.batches += 1
        self._claimer.counts.claimed += len(batch.claims)
        return batch

    async def _lock(
        self, places: Sequence[str], tenures: Sequence[Tenure], generation: int, sealed: dict[Tenure, NoAuthError]
    ) -> list[Versioned | None]:
        """Create the locks; return the items read under them. Those whose lock was taken away meanwhile are left.

        Of groups whose oldest message may not be read, ``sealed`` is told why.
        """
        paths = self._store.paths
        nodes: list[Versioned | None] = []
        try:
            nodes = await self._claimer.lock_and_read(
                [
                    self._store.check(),
                    *(Create(tenure.lock, tenure.record, ephemeral=True) for tenure in tenures),
                ],
                [
                    path
                    for place, tenure in zip(places, tenures, strict=True)
                    for path in (paths.at(place), tenure.lock)
                ],
                generation,
            )
        except UnreadableError:
            pass
        except BaseException:
            for tenure in tenures:
                tenure.budget.free(tenure.size)
            raise
        if not nodes:
            nodes = await self._read_each(places, tenures, generation, sealed)
        for tenure, lock in zip(tenures, nodes[1::2], strict=True):
            if lock is not None and lock.data == tenure.record:
                self._held[tenure.group] = tenure
                tenure.since = lock.ctime
            else:
                tenure.budget.free(tenure.size)
        return nodes[::2]

    async def _read_each(
        self, places: Sequence[str], tenures: Sequence[Tenure], generation: int, sealed: dict[Tenure, NoAuthError]
    ) -> list[Versioned | None]:
        """Read the oldest message of each group by itself, then the lock; of what may not be read, only the lock."""
        path_of = self._store.paths.at
        pairs = [(path_of(place), tenure.lock) for place, tenure in zip(places, tenures, strict=True)]
        nodes: list[Versioned | None] = []
        for tenure, pair in zip(tenures, await read_apart(self._zookeeper, pairs, generation=generation), strict=True):
            if isinstance(pair, NoAuthError):
                sealed[tenure] = pair
                nodes += (None, *await self._zookeeper.read_versioned([tenure.lock], generation=generation))
            else:
                nodes += pair
        return nodes

    async def _read_heads(
        self,
        places: Sequence[str],
        items: Sequence[Versioned | None],
        tenures: Sequence[Tenure],
        sealed: dict[Tenure, NoAuthError],
    ) -> None:
        """Take what was read with the locks; where that has been consumed, what comes next is read."""
        found: list[tuple[str, Versioned, Tenure]] = []
        behind: list[Tenure] = []
        for place, item, tenure in zip(places, items, tenures, strict=True):
            if tenure.group not in self._held or tenure in sealed:
                continue
            if item is None:
                self._gone(place)
                behind.append(tenure)
            else:
                found.append((place, item, tenure))
        if found:
            ids = [item_id(place.rpartition("/")[2]) for place, _, _ in found]
            generation = found[0][2].generation
            metas: list[Versioned | None] = []
            try:
                metas += await self._claimer.read_metas(ids, [item for _, item, _ in found], generation)
            except UnreadableError:
                each = [(self._store.paths.meta(one),) for one in ids]
                answers = await read_apart(self._zookeeper, each, generation=generation)
                for (_, _, tenure), answer in zip(found, answers, strict=True):
                    if isinstance(answer, NoAuthError):
                        sealed[tenure] = answer
                    metas.append(None if isinstance(answer, NoAuthError) else answer[0])
            for (place, item, tenure), meta in zip(found, metas, strict=True):
                if tenure not in sealed:
                    tenure.ahead.append(self._examined(tenure, place, item, meta))
        await asyncio.gather(*(self._read_behind(tenure, sealed) for tenure in behind))

    async def _read_behind(self, tenure: Tenure, sealed: dict[Tenure, NoAuthError]) -> None:
        """Read what comes after messages that have been consumed."""
        try:
            await self._read(tenure)
        except NoAuthError as error:
            sealed[tenure] = error
        except UnreadableError as error:
            sealed[tenure] = error.error

    # -- told by tenures

    def keeps(self, tenure: Tenure) -> bool:
        """See `TenureKeeper`."""
        if not self._current(tenure) or (tenure.owner is not None and not self._wanted()):
            return False
        if not self._lookout.alone and self._clock.monotonic() - tenure.begun > LONGEST:
            return False
        return bool(tenure.ahead) or self._has_more(tenure)

    def deleted(self, claim: Claim) -> None:
        """See `TenureKeeper`."""
        self._lookout.deleted(claim.place)

    def go_on(self, tenure: Tenure) -> None:
        """See `TenureKeeper`."""
        self._lookout.bell.set()
        if tenure.live:
            return
        tenure.owner = None
        if not self._current(tenure) or (not tenure.ahead and not self._has_more(tenure)):
            self._let_go(tenure)
        elif tenure.ahead:
            self._offer(tenure)
        else:
            self._read_ahead(tenure)

    def finish(self, tenure: Tenure, *, locked: bool) -> None:
        """See `TenureKeeper`."""
        tenure.gone = True
        tenure.budget.free(tenure.size)
        if self._held.get(tenure.group) is tenure:
            del self._held[tenure.group]
            self._lookout.group_settled(tenure.group, locked=locked)
        if tenure in self._ready:
            self._ready.remove(tenure)

    def lost(self, tenure: Tenure) -> None:
        """See `TenureKeeper`."""
        self.finish(tenure, locked=False)
        self._lookout.relist()
        # Somebody who changed or deleted an item by hand has left the lock where it was.
        self._tasks.spawn(self._unlock_if_ours, tenure, name="lock of a group that was lost")

    # -- inside

    def _current(self, tenure: Tenure) -> bool:
        return not tenure.gone and self._store.ready and tenure.version == self._store.version

    def _has_more(self, tenure: Tenure) -> bool:
        known = len(tenure.live) + len(tenure.ahead)
        return len(self._lookout.members(tenure.group, known + 1)) > known

    def _show(self, tenure: Tenure, claims: list[Claim]) -> None:
        """Take the next message of a group; one that must not be handed over is settled instead."""
        ending = tenure.ahead[0].ending
        claim = tenure.show()
        if claim is not None:
            claims.append(claim)
        elif ending is not None:
            with suppress(SessionClosedError):
                self._claimer.settle(tenure.live[-1], ending)

    def _offer(self, tenure: Tenure) -> None:
        """Have the next message handed to whoever takes, if anybody does within a while."""
        if tenure.ahead[0].ending is not None:
            self._show(tenure, [])
            return
        self._ready.append(tenure)
        self._lookout.bell.set()
        self._clock.call_later(LINGER, lambda: self._linger_over(tenure))

    def _linger_over(self, tenure: Tenure) -> None:
        if tenure in self._ready and not self._wanted():
            self._ready.remove(tenure)
            self._let_go(tenure)
        elif tenure in self._ready:
            self._lookout.bell.set()
            self._clock.call_later(LINGER, lambda: self._linger_over(tenure))

    def _pass_by(self, tenure: Tenure) -> None:
        """A group is ours no more whose next message may not be read: those behind it wait for it."""
        if not tenure.gone:
            self.finish(tenure, locked=False)
        self._lookout.set_aside([tenure.group])

    def _let_go(self, tenure: Tenure) -> None:
        """End a tenure between two messages."""
        if tenure.gone or tenure.settling:
            return
        if tenure.ahead:
            # Asserts what has been read of the next one: if the lock has been taken away, it is another's by now.
            claim = tenure.show() or tenure.live[-1]
            tenure.ahead.clear()
            self._give_back([claim])
        else:
            self._unlock(tenure)

    def _unlock(self, tenure: Tenure, gone: Callable[[], None] | None = None) -> None:
        """Take off a lock under which nothing was found, unless it has been forced open."""
        tenure.settling = True
        over = gone or (lambda: None if tenure.gone else self.finish(tenure, locked=False))
        with suppress(SessionClosedError):  # then the lock goes with the session
            lock = OwnLock(tenure.lock, tenure.record, tenure.forced)
            self._committer.submit(GhostSettlement(self._ids.next(), tenure.generation, self._store, lock, over))

    async def _unlock_if_ours(self, tenure: Tenure) -> None:
        try:
            (lock,) = await self._zookeeper.read_versioned([tenure.lock], generation=tenure.generation)
        except ZooKeeperError as error:
            # The session is over, and the lock with it.
            log.debug("%s: %s", tenure.lock, error, extra={"queue": self._store.name})
            return
        if lock is not None and lock.data == tenure.record:
            self._unlock(tenure, self._lookout.relist)

    def _read_ahead(self, tenure: Tenure) -> None:
        if tenure.ahead or tenure.reading or tenure.settling or not self._current(tenure):
            return
        if self._has_more(tenure):
            tenure.reading = True
            self.reading += 1
            self._tasks.spawn(self._read_more, tenure, name="messages of a group")

    async def _read_more(self, tenure: Tenure) -> None:
        try:
            await self._read(tenure)
        except (ZooKeeperError, UnreadableError) as error:
            # Whoever claims next is told.
            log.debug("queue %s: %s", self._store.name, error, extra={"queue": self._store.name})
            self._lookout.relist()
        finally:
            self.reading -= 1
            tenure.reading = False
            self._lookout.bell.set()
        if not tenure.gone and not tenure.live and not tenure.settling:
            if tenure.ahead:
                self._offer(tenure)
            else:
                self._let_go(tenure)

    async def _read(self, tenure: Tenure) -> None:
        """Read the next messages, and then the lock: if it is ours, it was when they were read."""
        store, paths = self._store, self._store.paths
        count = max(1, min(READ_AHEAD, int(READ_AHEAD_BYTES / self._claimer.expected_size)))
        while not tenure.gone and not tenure.ahead:
            released, known = tenure.released, {claim.place for claim in tenure.live}
            places = [one for one in self._lookout.members(tenure.group, len(known) + count) if one not in known]
            if not places:
                return
            reads = [*(paths.at(place) for place in places), paths.base, tenure.lock]
            nodes = await self._zookeeper.read_versioned(reads, generation=tenure.generation)
            base, lock = nodes[-2], nodes[-1]
            if _moved_on(tenure, released):
                return
            if lock is None or lock.data != tenure.record:
                self.lost(tenure)
                return
            if base is None or base.version != tenure.version:
                store.stale()
                return
            there = [(place, node) for place, node in zip(places, nodes, strict=False) if node is not None]
            for place, node in zip(places, nodes, strict=False):
                if node is None:
                    self._gone(place)
            metas = await self._claimer.read_metas(
                [item_id(place.rpartition("/")[2]) for place, _ in there],
                [node for _, node in there],
                tenure.generation,
            )
            if _moved_on(tenure, released):
                return
            for (place, node), meta in zip(there, metas, strict=True):
                tenure.ahead.append(self._examined(tenure, place, node, meta))

    def _examined(self, tenure: Tenure, place: str, item: Versioned, meta: Versioned | None) -> Read:
        store, message_id = self._store, item_id(place.rpartition("/")[2])
        path, owner = store.paths.at(place), self._ids.client
        claim = Claim(
            store, place, message_id, path, tenure.lock, owner, tenure.generation, tenure.budget, 0, tenure=tenure
        )
        self._claimer.expect(len(item.data))
        ending = self._claimer.examine(claim, item, meta)
        claim.since = tenure.since if tenure.since is not None else self._server_clock.now()
        if tenure.since is not None and claim.fields is not None and ending is None:
            ending = self._claimer.examine_name(claim, tenure.since)
        tenure.since = None  # what comes after the first is judged when it is handed over
        return Read(claim, ending)

    def _gone(self, place: str) -> None:
        self._claimer.counts.ghosts += 1
        self._lookout.deleted(place)


def _moved_on(tenure: Tenure, released: int) -> bool:
    """Whether what has just been read is not what comes next."""
    return tenure.gone or released != tenure.released
