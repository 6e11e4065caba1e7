"""The bundles that a session holds: claims them, serves their messages, and returns those that no taker comes for.

A bundle is claimed with a mark, its record, in the multi that creates its lock. A bundle with a record but without a
lock was held by a session that died or was forced out, and is dissolved into single items.

A session keeps messages at hand only as long as its takers use them up: every `TICK` seconds it returns what exceeds
the number of waiting takers and the number of messages that it finished in the last two ticks. So a message never waits
behind a slow handler of its bundle.
"""

from __future__ import annotations

import logging
from bisect import insort
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import SessionClosedError
from aiozkqueue.layout import (
    BundleName,
    BundleRecord,
    LockRecord,
    MalformedError,
    decode,
    decode_bundle,
    name_at,
)
from aiozkqueue.queue.commit.bundles import ReturnRest
from aiozkqueue.queue.commit.dispositions import Disposition, exhausted
from aiozkqueue.queue.commit.orphan_locks import LockRef
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.redelivery.bundles import Dissolved, dissolve
from aiozkqueue.queue.state.bundle_hold import BundledClaim, BundleHold
from aiozkqueue.queue.state.hooks import FREE
from aiozkqueue.zookeeper import (
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    ZooKeeperError,
    apply_until_answered,
)

from .claimer import AttachedOpError, Batch, UnreadableError
from .orphan_locks import ReadFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozkqueue.layout import BundledMessage, IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock, Timer
    from aiozkqueue.queue.runtime.lock_budget import SessionBudget
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.hooks import Fate
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Versioned, ZooKeeper

    from .claimer import Claimer
    from .discovery import CandidateSource

log: Final = logging.getLogger(__name__)

#: Seconds between two looks at the messages at hand.
TICK: Final = 0.05
#: With more bundles in the backlog, a session keeps this many times the messages that it finished lately.
DEEP: Final = 10


class Services(NamedTuple):
    """The parts of the session that `HeldBundles` uses."""

    committer: GroupCommitter
    tasks: TaskOwner
    clock: Clock
    server_clock: ServerClock
    ids: IdSource
    budgets: SessionBudget


class HeldBundles:
    """The bundles of one queue that one session holds.

    ``wanted`` returns the number of messages that takers wait for.
    """

    def __init__(
        self,
        state: QueueState,
        zookeeper: ZooKeeper,
        services: Services,
        *,
        claimer: Claimer,
        candidate_source: CandidateSource,
        wanted: Callable[[], int],
    ) -> None:
        self._state = state
        self._zookeeper = zookeeper
        self._claimer = claimer
        self._candidate_source = candidate_source
        self._committer, self._tasks, self._clock, self._server_clock, self._ids, self._budgets = services
        self._wanted = wanted
        self._held: dict[str, BundleHold] = {}
        self._ready: list[BundleHold] = []  # those with messages at hand, in order
        self._timer: Timer | None = None
        self._closed = False
        self._finished = 0  # messages finished since the last tick
        self._recently = 0  # messages finished in the tick before
        self.at_hand: int = 0
        """The number of messages that are ready for takers."""

    def __contains__(self, lock: str) -> bool:
        return lock in self._held

    # -- claiming

    async def claim(self, places: Sequence[str], ids: Sequence[str], generation: int) -> Batch:
        """Claim these bundles, except those that are gone or must be dissolved. Their locks must be reserved.

        Raises: as `Claimer.claim`.
        """
        budget, size = self._budgets.of(generation), self._claimer.item_lock_size
        batch = Batch([], [], [], [])
        claim_id = self._ids.next()
        pending = {place: lock for place, lock in zip(places, ids, strict=True) if self._name_of(place) is not None}
        kept = 0
        try:
            try:
                nodes = await self._lock_existing(pending, claim_id, generation, batch)
            except ReadFailedError as failure:
                kept = len(places)  # the room in the budget is freed when the locks are gone
                raise failure.error from failure
            for place, bundle, record in zip(pending, nodes[::2], nodes[1::2], strict=True):
                name = self._name_of(place)
                assert name is not None  # noqa: S101 - checked above
                kept += 1
                hold = BundleHold(
                    self,
                    self._state,
                    place,
                    name,
                    claim_id,
                    generation=generation,
                    budget=budget,
                    size=size,
                )
                if bundle is None or not _is_ours(record, claim_id):
                    budget.free(size)
                    batch.lost.append(hold.id)
                    continue
                self._held[hold.id] = hold
                self._open(hold, bundle, batch)
            self._claimer.counts.batches += 1
            self._claimer.counts.claimed += len(batch.claims)
            return batch
        finally:
            if kept < len(places):
                budget.free(size * (len(places) - kept))

    async def _lock_existing(
        self, pending: dict[str, str], claim_id: str, generation: int, batch: Batch
    ) -> list[Versioned | None]:
        """Lock the bundles that can be claimed, and read them; ``pending`` and ``batch`` lose and get the others."""
        while pending:
            try:
                return await self._lock(list(pending), claim_id, generation)
            except UnreadableError as failure:
                for own in pending.values():
                    await self._abandon(own, generation)
                first, *others = pending
                if others:  # claim the first alone, and the others later
                    batch.lost.extend(pending.pop(place) for place in others)
                else:
                    self._claimer.log_sealed(f"of bundle {pending[first]}", failure.error)
                    batch.sealed.append(pending.pop(first))
            except AttachedOpError as refused:
                place = list(pending)[refused.index // 2]
                own = pending.pop(place)
                if isinstance(refused.error, NoNodeError):  # it has ended
                    batch.ghosts.append(own)
                elif await self._take_apart(place, own, generation):  # its holder has died, or was forced out
                    batch.lost.append(own)
                else:
                    batch.sealed.append(own)
        return []

    async def _lock(self, places: Sequence[str], claim_id: str, generation: int) -> list[Versioned | None]:
        """Create the locks and the records; return the bundles and records read under the locks."""
        paths, lock, record = (
            self._state.paths,
            LockRecord(claim_id, self._ids.client).encode(),
            BundleRecord(claim_id).encode(),
        )
        operations: list[Operation] = [self._state.check()]
        attached: list[Operation] = []
        reads: list[str] = []
        for place in places:
            name = self._name_of(place)
            assert name is not None  # noqa: S101 - the caller checks it
            operations.append(Create(paths.lock(name.id), lock, ephemeral=True))
            attached += (Check(paths.at(place), -1), Create(paths.bundle_record(name.id), record))
            reads += (paths.at(place), paths.bundle_record(name.id))
        try:
            return await self._claimer.lock_and_read(operations, reads, generation, attached=attached)
        except ReadFailedError as failure:
            ids = [name.id for place in places if (name := self._name_of(place)) is not None]
            refs = [LockRef(paths.lock(own), lock, self._state.forced_version) for own in ids]
            self._claimer.orphan_locks.remove_unread(refs, generation, failure)
            raise

    async def _abandon(self, own: str, generation: int) -> None:
        """Remove our lock on a bundle that this user may not read, and its record."""
        paths = self._state.paths
        operations = [Delete(paths.bundle_record(own), 0), Delete(paths.lock(own))]
        with suppress(MultiError):  # it was taken away meanwhile
            await apply_until_answered(self._zookeeper, operations, generation=generation)

    async def _take_apart(self, place: str, own: str, generation: int) -> bool:
        """Dissolve a bundle whose holder is gone; return False if it is to be left alone for a while."""
        try:
            return await self._dissolve(place, generation) not in (Dissolved.OBSTRUCTED, Dissolved.REFUSED)
        except NoAuthError as error:  # this user may not store its messages
            self._claimer.log_sealed(f"of bundle {own}", error)
            return False

    def _open(self, hold: BundleHold, bundle: Versioned, batch: Batch) -> None:
        """Add the claims on the messages of a bundle to a batch."""
        messages = _decoded(bundle.data, hold.count)
        if messages is None:
            hold.lose()  # it becomes a dead letter
            return
        hold.live = hold.count
        owner, now = self._ids.client, self._server_clock.now()
        self._claimer.expect(len(bundle.data))
        for position, (message_id, data) in enumerate(messages):
            claim = BundledClaim(hold, message_id, position, owner)
            claim.raw, claim.created, claim.since = data, bundle.ctime, now
            try:
                claim.header, claim.body = decode(data)
            except MalformedError as error:
                claim.body = data
                reason = f"the stored bytes do not decode: {error}"
                with suppress(SessionClosedError):
                    self._claimer.settle(claim, Disposition("dead", reason=reason))
                continue
            batch.claims.append(claim)

    async def _dissolve(self, place: str, generation: int, ours: bytes | None = None) -> Dissolved:
        now = self._server_clock.now()
        dissolved = await dissolve(
            self._zookeeper, self._state.paths, place, self._ids, now=now, ours=ours, generation=generation
        )
        self._candidate_source.relist()
        return dissolved

    def _name_of(self, place: str) -> BundleName | None:
        return BundleName.parse(name_at(place))

    # -- serving

    def next(self, limit: int) -> list[BundledClaim]:
        """Return up to ``limit`` messages that are at hand, in order."""
        claims: list[BundledClaim] = []
        while self._ready and len(claims) < limit:
            hold = self._ready[0]
            while hold.ahead and len(claims) < limit:
                claims.append(hold.ahead.popleft())
                hold.live += 1
            if not hold.ahead:
                self._ready.pop(0)
        self.at_hand -= len(claims)
        return claims

    def give_back(self, claims: Iterable[BundledClaim]) -> None:
        """Take back messages that their takers do not want, as if they had never been delivered."""
        for claim in claims:
            if not claim.bundle.gone:
                claim.bundle.live -= 1
                self._keep_at_hand(claim)

    def _keep_at_hand(self, claim: BundledClaim) -> None:
        hold = claim.bundle
        if not hold.ahead:
            insort(self._ready, hold, key=_order)
        if hold.ahead and hold.ahead[-1].position < claim.position:
            hold.ahead.append(claim)
        else:
            insort(hold.ahead, claim, key=_position)
        self.at_hand += 1
        self._candidate_source.wakeup.set()
        if self._timer is None and not self._closed:
            self._timer = self._clock.call_later(TICK, self._tick)

    # -- events

    def claim_over(self, claim: BundledClaim, fate: Fate) -> None:
        """See `BundleOwner`."""
        if fate is not FREE:
            claim.bundle.live -= 1
            self._finished += claim.handed
            return
        claim = claim.renewed()
        if claim.attempts and claim.used_up:
            with suppress(SessionClosedError):  # then the lock goes with the session
                self._claimer.settle(claim, exhausted(claim, None))
        else:
            claim.bundle.live -= 1
            self._keep_at_hand(claim)

    def consumed(self, hold: BundleHold, number: int) -> None:
        """See `BundleOwner`."""
        hold.live -= number
        self._finished += number

    def returned(self, claims: Sequence[BundledClaim]) -> None:
        """See `BundleOwner`. A lone consumer takes them next, because they are the oldest."""
        for claim in claims:
            claim.bundle.live -= 1
        if self._candidate_source.alone:
            self._candidate_source.put_back([claim.place for claim in claims])

    def finished(self, hold: BundleHold, *, unlocked: bool) -> None:
        """See `BundleOwner`."""
        self._forget(hold)
        self._candidate_source.settled(hold.id, gone=not unlocked, place=hold.place)
        if unlocked:
            self._candidate_source.put_back([hold.place])
        self._candidate_source.wakeup.set()

    def lost(self, hold: BundleHold) -> None:
        """See `BundleOwner`."""
        self._forget(hold)
        self._candidate_source.settled(hold.id, gone=False)
        if not self._closed:  # otherwise the lock goes with the session
            self._tasks.spawn(self._recover, hold, name="bundle that was lost")

    def start_over(self) -> None:
        """Forget everything: a new ZooKeeper session begins."""
        for hold in self._held.values():
            hold.gone = True
            hold.ahead.clear()
        self._held.clear()
        self._ready.clear()
        self.at_hand = 0

    def close(self) -> None:
        """Stop the timer: the session ends, and the locks with it."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def return_all(self) -> list[AtomicWrite]:
        """Return all messages at hand to all consumers, by these writes."""
        return self._return(self.at_hand)

    def _forget(self, hold: BundleHold) -> None:
        hold.budget.free(hold.size)
        if self._held.get(hold.id) is hold:
            del self._held[hold.id]
        if hold in self._ready:
            self._ready.remove(hold)
        self.at_hand = sum(len(ready.ahead) for ready in self._ready)

    async def _recover(self, hold: BundleHold) -> None:
        """Dissolve a bundle whose lock may still be ours."""
        ours = LockRecord(hold.claim_id, self._ids.client).encode()
        try:
            await self._dissolve(hold.place, hold.generation, ours)
        except ZooKeeperError as error:
            log.debug("bundle %s: %s", hold.id, error, extra={"queue": self._state.name})
        self._candidate_source.wakeup.set()

    # -- the bound

    def _tick(self) -> None:
        """Return the messages at hand that this session will not use up soon."""
        self._timer = None
        recently, self._recently, self._finished = self._finished + self._recently, self._finished, 0
        if not self.at_hand:
            return
        keep = max(self._wanted(), recently * (DEEP if self._candidate_source.has_more else 1))
        self._return(self.at_hand - keep)
        if self.at_hand:
            self._tasks.spawn(self._check_configuration, name="configuration of a queue with bundles")
            self._timer = self._clock.call_later(TICK, self._tick)

    async def _check_configuration(self) -> None:
        """Have the queue opened again if its configuration has changed: it may be paused, or have another policy."""
        try:
            queue = await self._zookeeper.exists(self._state.paths.base)
        except ZooKeeperError as error:
            log.debug("queue %s: %s", self._state.name, error, extra={"queue": self._state.name})
            return
        if queue is None or (queue.czxid, queue.version) != self._state.snapshot.revision:
            self._state.invalidate()
            self.return_all()
            self._candidate_source.wakeup.set()

    def _return(self, number: int) -> list[AtomicWrite]:
        """Return the last ``number`` messages at hand to all consumers, by these writes."""
        writes: list[AtomicWrite] = []
        for hold in reversed(list(self._ready)):
            if number <= 0:
                break
            if hold.stuck:
                continue
            claims = [hold.ahead.pop() for _ in range(min(number, len(hold.ahead)))][::-1]
            number -= len(claims)
            self.at_hand -= len(claims)
            hold.live += len(claims)
            if not hold.ahead:
                self._ready.remove(hold)
            atomic_write = AtomicWrite(self._ids.next(), ReturnRest(hold, claims))
            with suppress(SessionClosedError):  # then the lock goes with the session
                self._committer.submit(atomic_write)
                writes.append(atomic_write)
        return writes


def _decoded(data: bytes, count: int) -> list[BundledMessage] | None:
    """Return the messages of a bundle; None if it does not decode, or holds another number than its name says."""
    try:
        messages = decode_bundle(data)
    except MalformedError:
        return None
    return messages if len(messages) == count else None


def _is_ours(record: Versioned | None, claim_id: str) -> bool:
    """Whether a record is the one that this claim has created, and has not been written since."""
    if record is None or record.version:
        return False
    try:
        return BundleRecord.decode(record.data).claim == claim_id
    except MalformedError:
        return False


def _order(hold: BundleHold) -> tuple[str, str]:
    return hold.name.digits, hold.id


def _position(claim: BundledClaim) -> int:
    return claim.position
