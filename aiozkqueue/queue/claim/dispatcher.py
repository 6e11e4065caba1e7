"""Claims messages for all waiting takers of one session and queue.

One task, the dispatch loop, decides what to do next: claim a batch of candidates for the waiting takers, let the
candidate source find more, or sleep. A few batches are in flight at a time, each in a separate task (see
`claim_batches`). If a taker is cancelled or times out, its claim goes to another taker or is released.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ConnectionLostError, NotFoundError, PayloadError, QueueError, SessionClosedError
from aiozkqueue.layout import is_bundle_at, messages_in, name_at
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.failures import CLOSED
from aiozkqueue.queue.put.ttl import at_its_end
from aiozkqueue.queue.state.hooks import FREE, GONE
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.runtime.tasks import wait_settled
from aiozkqueue.zookeeper import (
    ClientClosedError,
    ConnectionLossError,
    MultiError,
    NoAuthError,
    NoNodeError,
    State,
    ZooKeeperError,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .bundles import HeldBundles
from .claim_batches import ClaimBatches
from .claimer import Claimer, ContendedError, ReopenError
from .collapse import Collapse
from .discovery import CandidateSource
from .groups import LONGEST, GroupLocks
from .pause import ABSENT, PAUSED, Pause
from .releases import DelayedReleases, Releases
from .waiters import WaitQueue
from .watched_index import WatchedIndex

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import ItemFate
    from aiozkqueue.queue.state.queue_state import QueueState

    from .claimer import ClaimCounts
    from .collapse import Duplicates
    from .pause import Reason
    from .services import ClaimServices
    from .waiters import Waiter

log: Final = logging.getLogger(__name__)

#: Seconds for which a listener or a loop that ends waits for claims that are in progress: they take a round trip.
LEAVING: Final = 2.0


class ClaimDispatcher:
    """Dispatches the claims on one queue in one session."""

    def __init__(self, services: ClaimServices, condition: Condition | None) -> None:
        self.state: QueueState = services.state
        self._zookeeper = services.zookeeper
        self._budgets = services.budgets
        self._claimer = claimer = Claimer(services)
        self._candidates = candidates = WatchedIndex(services, condition)
        self._candidate_source = CandidateSource(services, candidates, self)
        self._waiters = waiters = WaitQueue(self.state.name, services.clock, candidates.wakeup)
        self._held_bundles = held_bundles = HeldBundles(
            services, claimer=claimer, candidates=candidates, waiters=waiters
        )
        self.releases: Releases = Releases(services, candidates=candidates, held_bundles=held_bundles)
        self._delayed_releases = DelayedReleases(services.clock, self._release_unseen)
        self._group_locks = GroupLocks(
            services, claimer=claimer, candidates=candidates, waiters=waiters, releases=self.releases
        )
        self._claim_batches = ClaimBatches(
            services,
            claimer=claimer,
            candidates=candidates,
            group_locks=self._group_locks,
            held_bundles=held_bundles,
            waiters=waiters,
            releases=self.releases,
            fail=self._answer_failure,
        )
        self._collapse: Collapse | None = None
        self._new_collapse = partial(Collapse, services, candidates.set_aside)
        self._pause: Pause | None = None
        self._generation = 0
        self._lingering = False  # whether it waits, with nothing in progress, because there are no takers
        self._closed = False
        self.users: int = 0
        """The listeners that use it, between two requests too."""
        self.state.claim_listeners += (self,)

    # -- for takers

    @property
    def lock_size(self) -> int:
        """Bytes of the session's lock budget that one claim uses."""
        return self._claimer.lock_size

    @property
    def counts(self) -> ClaimCounts:
        """The claim counters."""
        return self._claimer.counts

    def request(
        self, limit: int, timeout: float | None = None, *, generation: int | None = None, transaction: object = None
    ) -> Waiter:
        """Request up to ``limit`` claims; the waiter's future returns them as soon as there is at least one.

        The future returns an empty list after ``timeout`` seconds (None: no limit; 0: after one search). A caller that
        stops waiting for it must call `cancel_request`. A ``transaction`` also gets further messages of the groups that
        it holds.

        Raises:
            SessionClosedError: the session has been closed.
        """
        if self._closed:
            raise SessionClosedError(CLOSED)
        return self._waiters.add(limit, timeout, generation, transaction)

    def take_at_hand(self, limit: int, generation: int | None) -> list[Claim]:
        """Return ``limit`` messages that can be delivered without a wait; none if there are fewer.

        ``generation`` is the ZooKeeper session of the taker's other claims; None: it has none.
        """
        held = self._held_bundles
        if held.at_hand_count < limit or held.checks_pause or not (self._waiters.empty and self._current(generation)):
            return []
        claims: list[Claim] = [*held.next(limit)]
        if held.is_low and self._wanted_ahead:
            self._candidates.wakeup.set()
        return claims

    def _current(self, generation: int | None) -> bool:
        """Whether messages may be delivered to a taker now, as far as known of the session and the queue."""
        zookeeper, state = self._zookeeper, self.state
        return (
            zookeeper.state is State.CONNECTED
            and zookeeper.generation == self._generation
            and generation in (None, self._generation)
            and state.ready
            and not (state.config.paused or self._candidates.revision != state.snapshot.revision or self._closed)
        )

    def request_more(self, waiter: Waiter, more: int) -> bool:
        """Raise the limit of a waiter by ``more``; False: the caller must make a new request.

        Many requests of one claim each by one taker would make the other takers of this session wait behind all of
        them.
        """
        # With compaction, a take gets the newest message as of its request: each request has its own time.
        return not self.state.config.collapse and self._waiters.extend(waiter, more, self._claim_batches.promised)

    def cancel_request(self, waiter: Waiter) -> None:
        """Cancel a request; claims already assigned to this waiter are released."""
        self._candidates.wakeup.set()
        future = waiter.future
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.releases.release(future.result())
        else:  # a cancelled caller has cancelled it too
            future.cancel()
            self.releases.release(waiter.claims)
        self._return_idle()

    async def await_releases(self) -> None:
        """Wait until the claims in flight have been answered, and those that no taker wanted are free again.

        After this, nothing is locked for a taker that has left the line. While ZooKeeper does not answer, this waits
        for `LEAVING` seconds, through any number of cancellations; the releases continue in the background.

        Raises:
            asyncio.CancelledError: the caller was cancelled in the meantime.
        """
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._return_idle()

        def finish(_: object) -> None:
            if not released.done():
                released.set_result(None)

        def landed(_: object) -> None:
            self._return_idle()
            self.releases.when_done().add_done_callback(finish)

        self._claim_batches.when_landed().add_done_callback(landed)
        await wait_settled(released, limit=LEAVING)

    def _return_idle(self) -> None:
        """Return the messages at hand if no taker waits for any."""
        if self._held_bundles.at_hand_count and self._waiters.empty:
            self.releases.return_all_at_hand()

    def dead_letter(self, claim: Claim, error: PayloadError) -> asyncio.Future[None] | None:
        """Move a claimed item that does not decode to the dead letters."""
        dead = Disposition("dead", reason=str(error), cause=error)
        return None if self._closed else self._claimer.settle(claim, dead)

    def expire(self, claim: Claim, end: int) -> asyncio.Future[None] | None:
        """Settle an item whose time to live ended after it was claimed."""
        self.counts.expired += 1
        return None if self._closed else self._claimer.settle(claim, at_its_end(self.state.config, end))

    def close(self) -> None:
        """Fail every waiter because the session is closed."""
        self.releases.close()
        self._stop()
        self._delayed_releases.close()
        self._waiters.close(SessionClosedError(CLOSED))

    def retire(self) -> bool:
        """End, if no taker and no claim needs this dispatcher now; return whether it has ended.

        A taker that has no request in progress gets another dispatcher for its next one.
        """
        held = self._group_locks.held or self._candidates.held
        needed = self.users or not self._waiters.empty or self.claims_in_progress or held
        if needed or not self._lingering or self._held_bundles.any or self._delayed_releases.any:
            return False
        self._stop()
        self.state.claim_listeners = tuple(own for own in self.state.claim_listeners if own is not self)
        self._candidates.wakeup.set()
        return True

    def _stop(self) -> None:
        """Make no more claims, and end all watches and timers of the candidates."""
        self._closed = True
        self._claim_batches.close()
        self._candidates.unwatch()
        self._candidates.forget_aside()
        self._held_bundles.close()
        self._end_pause()

    # -- events

    def claim_settled(self, claim: Claim, fate: ItemFate) -> None:
        """See `ClaimListener`."""
        if fate is GONE and self._collapse is not None:
            self._collapse.forget([claim.place])
        if claim.generation != self._generation:
            return  # its locks ended with its session while this one listed the items
        if fate is not FREE:
            self._candidates.settled(claim.id, gone=True, place=claim.place)
            return
        was_held = claim.id in self._candidates.held
        self._candidates.settled(claim.id, gone=False)
        if was_held:
            self._candidates.put_back([claim.place])
            self._candidates.wakeup.set()
        else:
            self._candidates.on_relist()  # of another dispatcher of this session, with other filters

    def retry_at(self, due: int, message_id: str) -> None:
        """See `ClaimListener`."""
        self._candidates.on_timed_lock(due, message_id)

    def release_later(self, claim: Claim, delay: float) -> None:
        """See `ClaimListener`."""
        self._delayed_releases.release_later(claim, delay)

    def _release_unseen(self, claim: Claim) -> None:
        if claim.bundled:
            claim.settled(FREE)  # at hand again; it ends now if its attempts are used up
        elif claim.generation == self._generation:  # otherwise the server has removed the lock
            self.releases.release([claim])

    def state_changed(self, state: State, generation: int) -> None:
        """Fail the waiters that hold claims of an ended ZooKeeper session, and all if no session follows."""
        if state is State.FAILED:
            self._candidates.wakeup.set()
        elif state is State.LOST or (state is State.CONNECTED and generation != self._generation):
            self._candidates.wakeup.set()
            self._waiters.expire(None if state is State.LOST else generation)

    # -- the dispatch loop

    async def run(self) -> None:
        """Serve waiters until cancelled, or retired."""
        while not self._closed:
            try:
                await self._await_waiters()
                if not self._closed:
                    await self._serve()
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                continue  # `_serve` begins with wait_connected
            except ReopenError:
                self.state.invalidate()
            except (QueueError, ZooKeeperError) as error:
                self._answer_failure(error)
        if self not in self.state.claim_listeners:  # otherwise its entry ends with the session
            await self._candidate_source.unregister()

    def _answer_failure(self, error: Exception) -> None:
        """Fail the waiters with an error that waiting does not resolve."""
        cause = error.error if isinstance(error, MultiError) else error
        if isinstance(cause, NoAuthError):
            self._waiters.fail(access_denied(self.state.name, cause))
        elif isinstance(cause, NoNodeError):
            self.state.invalidate()  # the queue, or a part of it, was deleted: it is created again
        elif isinstance(cause, ClientClosedError):
            self.close()
        elif isinstance(cause, QueueError):
            self._waiters.fail(cause)
        else:  # not an error that a server returns
            msg = f"queue {self.state.name!r}: {cause}"
            failure = ConnectionLostError(msg)
            failure.__cause__ = cause
            self._waiters.fail(failure)

    async def _await_waiters(self) -> None:
        while not self._closed and self._waiters.empty and not self._wanted_ahead:
            self._lingering = True
            try:
                if not self._candidates.watched:
                    await self._await_wakeup()
                elif await self._candidate_source.linger() and self._waiters.empty:
                    self._candidates.unwatch()
            finally:
                self._lingering = False

    async def _await_wakeup(self) -> None:
        """Wait until something changes."""
        await self._candidates.wakeup.wait()
        self._candidates.wakeup.clear()

    @property
    def _wanted_ahead(self) -> int:
        """The number of messages to claim ahead of the takers."""
        if not self.state.snapshot.config.bundled:
            return 0
        return self._held_bundles.wanted_ahead(max(0, self._claim_batches.promised - self._waiters.missing))

    async def _serve(self) -> None:
        """Do one step for the waiting takers."""
        generation = await self._zookeeper.wait_connected()
        if generation != self._generation:
            self._start_over(generation)
        if (self._pause is not None or not self._candidates.ready(generation)) and not await self._prepare(generation):
            return
        if self._group_locks.held:  # otherwise a listing or a watch shows new consumers
            await self._candidate_source.update_share(generation, within=LONGEST)
            self._deliver_from_groups()
        if self._held_bundles.at_hand_count:
            if not await self._held_bundles.confirm():
                return
            self._deliver_at_hand()
        full = self._claim_batches.full or bool(self._held_bundles.returning)
        wanted = 0 if full else self._waiters.wanted(self._claim_batches.promised)
        if wanted > 0:
            await self._claim(wanted, generation)
        elif full or not await self._claim_ahead(generation):
            await self._await_claims()

    async def _prepare(self, generation: int) -> bool:
        """Open the queue, and bring everything up to date before the next claims; return whether any may be made."""
        try:
            await self.state.open()
        except NotFoundError:
            self._candidates.registration.forget()
            await self._wait_for_change(ABSENT)
            return False
        if self._candidates.adopt_configuration():
            self._group_locks.reconfigured()
            self._held_bundles.return_all()
        if self.state.config.paused:
            await self._wait_for_change(PAUSED)
            return False
        self._end_pause(over=True)
        await self._candidate_source.register(generation)
        await self._candidate_source.process_timers(generation)
        return True

    async def _claim(self, wanted: int, generation: int) -> None:
        """Claim for the takers, if the session may hold more locks."""
        capacity = min(wanted, self._claimer.capacity(generation))
        if capacity < 1:
            self._waiters.settle_partial(self._claim_batches.in_flight)
            if not self._claim_batches.any:
                # The transaction that holds the locks may be the one that takes.
                self._waiters.answer_nonblocking(self._waiters.arrivals)
            self._budgets.notify(self._candidates.wakeup)
            await self._await_wakeup()
            return
        await self._launch_available(capacity, wanted, generation)

    async def _claim_ahead(self, generation: int) -> bool:
        """Claim listed bundles ahead of the takers; return whether any is."""
        if not (missing := self._wanted_ahead):
            return False
        capacity = max(0, self._claimer.capacity(generation))
        places = await self._candidates.listed(missing if capacity else 0)
        self._candidates.put_back(places[capacity:])
        if bundles := self._enough(places[:capacity], 0):
            self._launch(bundles, generation)
        else:
            self._held_bundles.stop_ahead()
        return bool(bundles)

    async def _wait_for_change(self, reason: Reason) -> None:
        """Claim nothing until the queue's configuration changes; answer takers that do not wait.

        Batches in flight were refused by the configuration version, or were applied before the pause.
        """
        self._waiters.answer_nonblocking(self._waiters.arrivals)
        self._waiters.settle_partial(self._claim_batches.in_flight)  # they get no more messages
        if self._pause is not None and self._pause.reason is not reason:
            self._end_pause()
        if self._pause is None:
            self._candidates.unwatch()
            self._pause = await Pause.begin(self._zookeeper, self.state, self._candidates.wakeup, reason)
        else:
            await self._await_wakeup()

    def _end_pause(self, *, over: bool = False) -> None:
        """Stop waiting for a change; with ``over``, log that the wait has ended."""
        if self._pause is not None:
            self._pause.end(over=over)
            self._pause = None

    async def _launch_available(self, capacity: int, wanted: int, generation: int) -> None:
        """Launch claims of the available candidates; sleep if there are none."""
        last_arrival = self._waiters.arrivals
        places = await self._candidates.next(capacity)
        if not places:
            found = await self._candidate_source.find_candidates(capacity, generation)
            if not found.places:
                await (self._await_claims() if found.pending else self._found_nothing(last_arrival))
                return
            places = found.places
        if self._waiters.empty:  # the takers that wanted them have gone
            self._candidates.put_back(places)
            return
        places = self._still_wanted(places, wanted)
        if not places:
            await self._await_claims()
        elif self.state.snapshot.config.collapse:
            heads, places = self._candidates.split_groups(places)
            if heads:
                self._launch(heads, generation)
            if places:
                await self._collapse_and_launch(places, generation, last_arrival)
        else:
            self._launch(places, generation)
            self._waiters.settle_partial(self._claim_batches.in_flight)

    async def _await_claims(self) -> None:
        """Wait for the claims in flight, which may return candidates."""
        self._waiters.settle_partial(self._claim_batches.in_flight)
        await self._await_wakeup()

    async def _found_nothing(self, last_arrival: int) -> None:
        """Answer the takers that do not wait, if they arrived before the search; sleep for the others."""
        if self._group_locks.held and self._deliver_from_groups():
            # Messages of held groups come one after the other: listing the queue after each would cost more.
            await self._candidate_source.listen()
            return
        self._waiters.settle_partial(self._claim_batches.in_flight)
        self._waiters.answer_nonblocking(last_arrival)
        if self._waiters.any_blocking:
            await self._candidate_source.sleep()

    def _launch(
        self, places: list[str], generation: int, duplicates: Duplicates | None = None, last_arrival: int | None = None
    ) -> None:
        """Launch claims; see `ClaimBatches.launch`."""
        if self._candidates.watch.armed:
            self._candidate_source.at_work()
        self._claim_batches.launch(places, generation, duplicates, last_arrival)

    def _still_wanted(self, places: list[str], wanted: int) -> list[str]:
        """Return the candidates to claim now, and put the others back."""
        if self.state.dialect is not None:
            return self._still_wanted_foreign(places)
        return self._enough(places, wanted) if self.state.snapshot.config.bundled else places

    def _enough(self, places: list[str], wanted: int) -> list[str]:
        """Return the candidates for the wanted messages, and bundles for those to claim ahead; put the others back."""
        ahead = self._wanted_ahead
        for number, place in enumerate(places):
            if wanted + ahead <= 0 or (wanted <= 0 and not is_bundle_at(place)):
                self._candidates.put_back(places[number:])
                return places[:number]
            wanted -= messages_in(name_at(place))
        return places

    def _still_wanted_foreign(self, places: list[str]) -> list[str]:
        """Return the items of another program's queue to claim now, as `_still_wanted` does.

        Since the search began, takers may have left, and earlier messages may be about to be free.
        """
        soon_free = self.releases.any or self._claim_batches.splitting
        wanted = 0 if soon_free else max(0, self._waiters.wanted(self._claim_batches.promised))
        self._candidates.put_last(places[wanted:])
        return places[:wanted]

    async def _collapse_and_launch(self, places: list[str], generation: int, last_arrival: int) -> None:
        """Claim the newest message of each candidate's key, for the takers that asked before this search."""
        if self._collapse is None:
            self._collapse = self._new_collapse()
        if not (places := self._collapse.without_gone(places)):
            return
        removed_before = self._collapse.removed
        try:
            places, duplicates = await self._collapse.choose(places, self._candidates.held.__contains__, generation)
        except ContendedError:
            self._candidates.relist()
            return
        except BaseException:
            self._collapse.forget_listings()
            self._candidates.relist()
            raise
        finally:
            self.counts.collapsed += self._collapse.removed - removed_before
        if places:
            self._launch(places, generation, duplicates, last_arrival)
        else:
            self._candidates.relist()  # all of them are gone, or locked: the listing is out of date

    @property
    def any_nonblocking(self) -> bool:
        """Whether a taker takes only messages that are available now."""
        return self._waiters.any_nonblocking

    @property
    def claims_in_progress(self) -> bool:
        """Whether claims are in flight, or being released."""
        return self._claim_batches.any or self.releases.any or self._group_locks.reading > 0

    def _deliver_from_groups(self) -> bool:
        """Deliver messages of held groups to takers that may have them; return whether any is delivered or read."""
        delivered = False
        for waiter in self._waiters:
            if waiter.generation in (None, self._generation):
                claims = self._group_locks.next_for(waiter)
                if claims:
                    waiter.assign(self._claim_batches.launched, claims)
                    waiter.answer()
                    delivered = True
        return delivered or self._group_locks.reading > 0

    def _deliver_at_hand(self) -> None:
        """Deliver messages of held bundles to the takers that may have them."""
        for waiter in self._waiters:
            if not self._held_bundles.at_hand_count:
                break
            if waiter.generation in (None, self._generation):
                waiter.assign(self._claim_batches.launched, [*self._held_bundles.next(waiter.missing)])
                if not waiter.missing:
                    waiter.answer()

    def _start_over(self, generation: int) -> None:
        self._generation = generation
        self._held_bundles.start_over()
        self._candidates.start_over()
        self._group_locks.start_over()
        self._claim_batches.start_over(generation)
        self._waiters.expire(generation)
