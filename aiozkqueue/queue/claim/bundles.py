"""The bundles that a session holds: serves their messages, and returns those that no taker claims.

A session keeps messages at hand only as long as its takers use them up: every `TICK` seconds it returns the messages
that exceed the number of waiting takers and the number of messages that it finished in the last two ticks. So a message
never waits behind a slow handler of its bundle. A session that has finished nothing lately checks sooner if there are
other consumers and no more bundles are listed: in an idle fleet, they wait for the rest of its bundle.

While more bundles are listed, no other consumer waits for this one: takers that have some of its messages then have
`DEEP_SPAN` seconds to finish them. The session also claims ahead the number of messages that its takers use up in about
the time of a claim, so that they need not wait for one.
"""

from __future__ import annotations

import logging
from bisect import insort
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import OutcomeUnknownError, SessionClosedError
from aiozkqueue.layout import MAGIC, MalformedError, decode, read_table
from aiozkqueue.queue.commit.bundles import ReturnUndelivered
from aiozkqueue.queue.commit.dispositions import Disposition, exhausted
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.state.bundle_hold import BundledClaim, BundleHold
from aiozkqueue.queue.state.hooks import FREE
from aiozkqueue.runtime.ticks import Pauses, RecentlyFinished, Ticks
from aiozkqueue.zookeeper import ZooKeeperError

from .bundle_claimer import BundleClaimer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.layout import BundleTable
    from aiozkqueue.queue.state.hooks import ItemFate
    from aiozkqueue.zookeeper import Operation, Versioned

    from .candidate_index import CandidateIndex
    from .claimer import Claimer, ClaimResult
    from .services import ClaimServices
    from .waiters import WaitQueue

log: Final = logging.getLogger(__name__)

#: Seconds between two checks of the messages at hand.
TICK: Final = 0.05
#: The same for the first check of a session that has finished nothing lately and is not the only consumer.
FIRST_TICK: Final = 0.02
#: With more bundles in the backlog, a session keeps this many times the messages that it finished lately.
DEEP: Final = 10
#: Seconds in which a session finishes a message while more bundles are listed: longer than a commit of a busy fleet.
DEEP_SPAN: Final = 0.3
#: Seconds without deliveries from a bundle whose record this user may not write, if the bundle cannot be returned.
SUSPENSION: Final = 60.0
#: Maximum seconds between two returns of messages of a bundle while ZooKeeper refuses them.
LONGEST_PAUSE: Final = 5.0
#: The share of the messages finished in the last two ticks that a session claims ahead.
AHEAD: Final = 0.5


class HeldBundles:
    """The bundles of one queue that one session holds."""

    def __init__(
        self, services: ClaimServices, *, claimer: Claimer, candidates: CandidateIndex, waiters: WaitQueue
    ) -> None:
        self._state = services.state
        self._zookeeper = services.zookeeper
        self._committer = services.committer
        self._tasks = services.tasks
        self._clock = services.clock
        self._ids = services.ids
        self._claimer = claimer
        self._candidates = candidates
        self._bundle_claimer = BundleClaimer(services, claimer, candidates.relist)
        self._waiters = waiters
        self._held: dict[str, BundleHold] = {}
        self._ready: list[BundleHold] = []  # those with messages at hand, in order
        self._ticks = Ticks(self._clock, self._tick)
        self._closed = False
        self._checking = False  # whether the configuration is being read
        self._finished = RecentlyFinished(self._clock, TICK)
        self._refused = Pauses[BundleHold](self._clock, services.random, first=2 * TICK, longest=LONGEST_PAUSE)
        self._aim = 0  # the number of messages to have at hand while more bundles are listed
        self.at_hand_count: int = 0
        """The number of messages that are ready for takers."""
        self.returning: set[AtomicWrite] = set()
        """The returns in flight. The messages in them come before all that are claimed in the meantime."""

    @property
    def any(self) -> bool:
        """Whether a bundle is held, or being returned."""
        return bool(self._held or self.returning)

    @property
    def client(self) -> str:
        """The id of the session's client."""
        return self._ids.client

    def __contains__(self, lock: str) -> bool:
        return lock in self._held

    # -- claiming

    async def claim(self, places: Sequence[str], ids: Sequence[str], generation: int, check: Operation) -> ClaimResult:
        """Claim these bundles, except those that are gone or must be dissolved. Their locks must be reserved.

        ``check`` asserts the configuration.

        Raises: as `Claimer.claim`.
        """
        batch, locked = await self._bundle_claimer.claim(self, places, ids, generation, check)
        for hold, bundle in locked:
            self._held[hold.id] = hold
            self._open(hold, bundle, batch)
        self._claimer.counts.batches += 1
        self._claimer.counts.claimed += len(batch.claims)
        return batch

    def _open(self, hold: BundleHold, bundle: Versioned, batch: ClaimResult) -> None:
        """Add the claims on the messages of a bundle to a batch."""
        table = _table(bundle.data, hold.count)
        if table is None:
            hold.lose()  # it becomes a dead letter
            return
        self._claimer.expect(len(bundle.data))
        claims = [BundledClaim(hold, message_id, data, position) for message_id, data, position in table.messages()]
        if MAGIC in bundle.data:  # one search: most messages have no envelope
            claims = [claim for claim in claims if not claim.raw.startswith(MAGIC) or self._decode(claim)]
        batch.claims.extend(claims)

    def _decode(self, claim: BundledClaim) -> bool:
        """Decode the envelope of a message; return False if it becomes a dead letter."""
        try:
            claim.header, claim.body = decode(claim.raw)
        except MalformedError as error:
            reason = f"the stored bytes do not decode: {error}"
            with suppress(SessionClosedError):
                self._claimer.settle(claim, Disposition("dead", reason=reason, cause=error))
            return False
        return True

    # -- serving

    @property
    def is_low(self) -> bool:
        """Whether `wanted_ahead` may return a number: fewer messages are at hand than half of those that should be."""
        return self._aim > 2 * self.at_hand_count

    def wanted_ahead(self, promised: int) -> int:
        """Return how many messages to claim ahead of the takers, besides those in flight: many at a time."""
        missing = self._aim - self.at_hand_count - promised
        return missing if 2 * missing > self._aim and self._candidates.has_more else 0

    def stop_ahead(self) -> None:
        """Claim nothing ahead until more messages are finished: none of those listed can be claimed now."""
        self._aim = 0

    def next(self, limit: int) -> list[BundledClaim]:
        """Return up to ``limit`` messages that are at hand, in order."""
        claims: list[BundledClaim] = []
        while self._ready and (missing := limit - len(claims)):
            hold = self._ready[0]
            claims += hold.at_hand[:missing]
            del hold.at_hand[:missing]
            if not hold.at_hand:
                self._ready.pop(0)
        self.at_hand_count -= len(claims)
        return claims

    def put_back(self, claims: Iterable[BundledClaim]) -> None:
        """Take back messages that their takers do not want, as if they had never been delivered."""
        for hold, returned in groupby(claims, attrgetter("bundle")):
            if not hold.gone:
                self._keep_at_hand(hold, list(returned))

    def _keep_at_hand(self, hold: BundleHold, claims: list[BundledClaim]) -> None:
        """Keep messages of one bundle for the next takers."""
        if not (hold.at_hand or hold.suspended):
            insort(self._ready, hold, key=attrgetter("name.digits", "id"))
        in_order = not hold.at_hand or hold.at_hand[-1].position < claims[0].position
        hold.at_hand += claims
        if not in_order:
            hold.at_hand.sort(key=attrgetter("position"))
        if hold.suspended:
            self._return_suspended(hold)
            return
        self.at_hand_count += len(claims)
        self._candidates.wakeup.set()
        if not (self._ticks.planned or self._closed):
            candidates = self._candidates
            idle = not (candidates.alone or candidates.has_more or self._finished.recent())
            self._ticks.begin(FIRST_TICK if idle else TICK)
        elif hold not in self._refused:
            self._ticks.plan_within(TICK)

    def suspend(self, claim: BundledClaim) -> None:
        """Deliver no message of a bundle for a while, because this user may not write its record.

        If nothing has been written to the record, other consumers get the bundle as soon as its messages are back.
        """
        hold = claim.bundle
        if hold.gone:
            return
        if not hold.suspended:
            hold.suspended = True
            if hold in self._ready:
                self._ready.remove(hold)
                self.at_hand_count -= len(hold.at_hand)
            self._clock.call_later(SUSPENSION, partial(self._resume, hold))
        self._keep_at_hand(hold, [claim])

    def _return_suspended(self, hold: BundleHold) -> None:
        """Return a suspended bundle to other consumers if it has not changed since the claim."""
        if hold.version or hold.with_takers or hold in self._refused or self._closed:
            return
        claims, hold.at_hand = hold.at_hand, []
        self._refused.mark(hold)  # it is tried once
        for atomic_write in self._send_back(hold, claims):
            atomic_write.watch(lambda _: self._candidates.set_aside([hold.id]))

    def _resume(self, hold: BundleHold) -> None:
        claims, hold.at_hand, hold.suspended = hold.at_hand, [], False
        self._refused.forget(hold)
        if claims and not (hold.gone or self._closed):
            self._keep_at_hand(hold, claims)

    # -- events

    def claim_over(self, claim: BundledClaim, fate: ItemFate) -> None:
        """See `BundleHolder`."""
        if fate is not FREE:
            self._finished.add(int(claim.delivered))
            return
        claim = claim.renewed()
        if claim.attempts and claim.used_up and not claim.recorded:  # otherwise the last attempt was not delivered
            with suppress(SessionClosedError):  # then the lock ends with the session
                self._claimer.settle(claim, exhausted(claim, claim.error))
        else:
            self._keep_at_hand(claim.bundle, [claim])

    def consumed(self, number: int) -> None:
        """See `BundleHolder`."""
        self._finished.add(number)
        self._aim = int(AHEAD * self._finished.recent())

    def returned(self, claims: Sequence[BundledClaim]) -> None:
        """See `BundleHolder`. A lone consumer takes them next, because they are the oldest."""
        if self._candidates.alone and claims[0].generation == self._zookeeper.generation:
            self._candidates.put_back([claim.place for claim in claims])

    def finished(self, hold: BundleHold, *, unlocked: bool) -> None:
        """See `BundleHolder`."""
        self._forget(hold)
        self._candidates.settled(hold.id, gone=not unlocked, place=hold.place)
        if unlocked:
            self._candidates.put_back([hold.place])

    def lost(self, hold: BundleHold) -> None:
        """See `BundleHolder`."""
        self._forget(hold)
        self._candidates.settled(hold.id, gone=False)
        if not self._closed:  # otherwise the lock ends with the session
            self._tasks.spawn(self._recover, hold, name="bundle that was lost")

    def start_over(self) -> None:
        """Forget everything: a new ZooKeeper session begins."""
        for hold in self._held.values():
            hold.gone = True
            hold.at_hand.clear()
        self._held.clear()
        self._refused.clear()
        self._ready.clear()
        self.at_hand_count = 0

    def close(self) -> None:
        """Stop the timer: the session ends, and the locks with it."""
        self._closed = True
        self._ticks.stop()

    def return_all(self) -> list[AtomicWrite]:
        """Return all messages at hand to all consumers, by these writes."""
        return self._return(self.at_hand_count)

    def _forget(self, hold: BundleHold) -> None:
        hold.budget.free(hold.size)
        self._refused.forget(hold)
        if self._held.get(hold.id) is hold:
            del self._held[hold.id]
        if hold in self._ready:
            self._ready.remove(hold)
        self.at_hand_count = sum(len(ready.at_hand) for ready in self._ready)

    async def _recover(self, hold: BundleHold) -> None:
        await self._bundle_claimer.recover(hold)
        self._candidates.wakeup.set()

    # -- the bound

    def _tick(self) -> None:
        """Return the messages at hand that this session will not use up soon."""
        late, deep = self._ticks.late, self._candidates.has_more
        recently = self._finished.recent((DEEP_SPAN if deep else 2 * TICK) + late)
        self._aim = min(self._aim, recently)
        if not self.at_hand_count:
            return
        begins = deep and self._clock.monotonic() - self._ticks.series_began < DEEP_SPAN + late
        if not (begins and any(hold.with_takers for hold in self._held.values())):
            self._return(self.at_hand_count - max(self._waiters.missing, recently * (DEEP if deep else 1)))
        if self.at_hand_count:
            if not self._checking:  # without a connection, a check waits for the next one
                self._checking = True
                self._tasks.spawn(self._check_configuration, name="configuration of a queue with bundles")
            # While ZooKeeper refuses all returns, the next check comes with the next try of one.
            self._ticks.plan(max(TICK, min(map(self._refused.left, self._ready))))

    @property
    def checks_pause(self) -> bool:
        """Whether the checks are rare at the moment; see `confirm`."""
        return self._ticks.pause > TICK

    async def confirm(self) -> bool:
        """Return whether messages at hand may be delivered; this reads the configuration while the checks pause."""
        if self.checks_pause and not self._checking:
            self._checking = True
            await self._check_configuration()
        return self._state.ready

    async def _check_configuration(self) -> None:
        """Have the queue opened again if its configuration has changed: it may be paused, or have another policy."""
        try:
            queue = await self._zookeeper.exists(self._state.paths.base)
        except ZooKeeperError as error:
            log.debug("queue %s: %s", self._state.name, error, extra={"queue": self._state.name})
            return
        finally:
            self._checking = False
        if queue is None or (queue.czxid, queue.version) != self._state.snapshot.revision:
            self._state.invalidate()
            self.return_all()
            self._candidates.wakeup.set()

    def _return(self, number: int) -> list[AtomicWrite]:
        """Return the last ``number`` messages at hand to all consumers, by these writes."""
        writes: list[AtomicWrite] = []
        for hold in reversed(list(self._ready)):
            if number <= 0:
                break
            if self._refused.left(hold):
                continue
            claims = hold.at_hand[-number:]
            del hold.at_hand[-number:]
            number -= len(claims)
            self.at_hand_count -= len(claims)
            if not hold.at_hand:
                self._ready.remove(hold)
            writes += self._send_back(hold, claims)
        return writes

    def _send_back(self, hold: BundleHold, claims: Sequence[BundledClaim]) -> list[AtomicWrite]:
        """Return messages of a bundle to all consumers, by this write; none: the session is closed."""
        atomic_write = AtomicWrite(self._ids.next(), ReturnUndelivered(hold, claims))
        try:
            self._committer.submit(atomic_write)
        except SessionClosedError:  # the lock ends with the session
            return []
        self.returning.add(atomic_write)
        atomic_write.watch(partial(self._landed, hold))
        return [atomic_write]

    def _landed(self, hold: BundleHold, returned: AtomicWrite) -> None:
        self.returning.discard(returned)
        error = returned.error
        if error is None:
            self._refused.forget(hold)
        elif not (hold.gone or isinstance(error, SessionClosedError | OutcomeUnknownError)):
            times = self._refused.refused(hold)
            text = "queue %s: messages of bundle %s stay with this session until ZooKeeper accepts their return: %s"
            level = logging.WARNING if times == 1 else logging.DEBUG
            log.log(level, text, self._state.name, hold.id, error, extra={"queue": self._state.name})
        self._candidates.wakeup.set()


def _table(data: bytes, count: int) -> BundleTable | None:
    """Return the table of a bundle; None if it does not decode, or its name states a different number."""
    try:
        table = read_table(data)
    except MalformedError:
        return None
    return table if len(table.lengths) == count else None
