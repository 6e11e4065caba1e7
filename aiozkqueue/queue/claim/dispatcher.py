"""Claims for all waiting takers of one session and queue.

One task, the pump, decides what to do next: let the lookout find candidates, claim a batch for those who wait, or rest.
Batches of claims fly beside it, a few at a time (see `claim_batches`). What a waiter does not take any more (it was
cancelled, it timed out) goes to another or is released.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ConnectionLostError, QueueError, SessionClosedError
from aiozkqueue.queue.commit.dispositions import RELEASE, Disposition
from aiozkqueue.queue.commit.group_commit import CLOSED
from aiozkqueue.queue.commit.release import ReleaseWrite
from aiozkqueue.queue.put.ttl import at_its_end
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.queue.runtime.log_context import about
from aiozkqueue.queue.state.claim import FREE, GONE
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

from .both import Both
from .claimer import Claimer, ContendedError, ReopenError
from .collapse import Collapse
from .delayed_release import DelayedReleases
from .discovery import CandidateSource
from .foreign import Splitter
from .groups import GroupLocks
from .in_flight import ClaimBatches
from .pause import Pause
from .waiters import WaitQueue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from random import Random

    from aiozkqueue.layout import Condition, IdSource
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.claim import Claim, Fate, SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import ZooKeeper

    from .claimer import ClaimCounts
    from .waiters import Waiter

log: Final = logging.getLogger(__name__)


class ClaimDispatcher:
    """Hands out the claims on one queue in one session."""

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        *,
        committer: GroupCommitter,
        tasks: TaskOwner,
        clock: Clock,
        server_clock: ServerClock,
        ids: IdSource,
        about: bytes,
        budgets: SessionBudget,
        random: Random,
        condition: Condition | None = None,
    ) -> None:
        self.store = store
        self._zookeeper = zookeeper
        self._committer = committer
        self._server_clock = server_clock
        self._kept = DelayedReleases(clock, self._release_unseen)
        self._ids = ids
        self._budgets = budgets
        self._claimer = Claimer(
            store, zookeeper, committer=committer, server_clock=server_clock, ids=ids, budgets=budgets
        )
        self._candidate_source = CandidateSource(
            store,
            zookeeper,
            self,
            clock=clock,
            server_clock=server_clock,
            client=ids.client,
            about=about,
            budgets=budgets,
            random=random,
            condition=condition,
        )
        self._collapse: Collapse | None = None
        self._wakeup = self._candidate_source.wakeup
        self._waiters = WaitQueue(store.name, clock, self._wakeup)
        self._pause: Pause | None = None
        self._group_locks = GroupLocks(
            store,
            zookeeper,
            claimer=self._claimer,
            candidate_source=self._candidate_source,
            committer=committer,
            tasks=tasks,
            clock=clock,
            server_clock=server_clock,
            ids=ids,
            budgets=budgets,
            wanted=lambda: any(True for _ in self._waiters),
            give_back=self.release,
        )
        self._splitter = Splitter(
            store,
            zookeeper,
            committer=committer,
            ids=ids,
            give_back=self.release,
            found=self._candidate_source.put_back,
            returning=lambda: self._returning > 0,
        )
        self._claim_batches = ClaimBatches(
            store,
            claimer=self._claimer,
            candidate_source=self._candidate_source,
            group_locks=self._group_locks,
            waiters=self._waiters,
            splitter=self._splitter,
            tasks=tasks,
            give_back=self.release,
            fail=self._answer_failure,
        )
        self._returning = 0  # releases of what nobody took
        self._generation = 0
        self._closed = False
        store.claim_listener = self if store.claim_listener is None else Both(store.claim_listener, self)

    # -- for takers

    @property
    def lock_size(self) -> int:
        """What one claim takes of a session's locks, bytes."""
        return self._claimer.lock_size

    @property
    def counts(self) -> ClaimCounts:
        """How the claims went so far."""
        return self._claimer.counts

    def request(
        self, limit: int, timeout: float | None = None, *, generation: int | None = None, owner: object = None
    ) -> Waiter:
        """Line up for up to ``limit`` claims; the future of who does gives them as soon as there is one.

        It gives none after ``timeout`` seconds (None: never; 0: after a look at the server). Who does not await it to
        its end must `give_up`. A transaction is the ``owner`` of what it takes: it gets further messages of the groups
        that it holds.

        Raises:
            SessionClosedError: the session has been closed.
        """
        if self._closed:
            raise SessionClosedError(CLOSED)
        return self._waiters.join(limit, timeout, generation, owner)

    def request_more(self, waiter: Waiter, more: int) -> bool:
        """Have one in line wait for so many more; False: that takes a request of its own.

        Many of one claim each, of one taker, would have others of this session wait behind them all.
        """
        # What is claimed of keys is the newest when it was asked for, so that each asks at its own time.
        return not self.store.config.collapse and self._waiters.widen(waiter, more, self._claim_batches.promised)

    def give_up(self, waiter: Waiter) -> None:
        """Leave the line; what has been claimed for this waiter goes back."""
        self._wakeup.set()
        future = waiter.future
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.release(future.result())
        else:  # who awaits it and is cancelled has cancelled it, too
            future.cancel()
            self.release(waiter.claims)

    def release(self, claims: Sequence[Claim]) -> asyncio.Future[None] | None:
        """Give claims back at once, as if they had never been made; the future is done when the locks are gone."""
        atomic_write = self._release(claims)
        return None if atomic_write is None else atomic_write.done

    def _release(self, claims: Sequence[Claim]) -> ReleaseWrite | None:
        if not claims or self._closed:
            return None
        atomic_write = ReleaseWrite(
            self._ids.next(), dict.fromkeys(claims, RELEASE), self._server_clock, claims[0].generation
        )
        self._committer.submit(atomic_write)
        self._returning += 1
        atomic_write.watch(self._returned)
        return atomic_write

    def pass_by(self, claim: Claim, error: QueueError) -> None:
        """Give back a claim at which no attempt can be counted, so that nobody here may be shown it, for a while."""
        log.warning(
            "queue %s: message %s is passed by, since the record of attempts at it may not be written by this user: "
            "%s; let this user write to it, or remove it",
            self.store.name,
            claim.id,
            error,
            extra=about(claim),
        )
        claim.record_refused = True
        lock = claim.id if claim.group_lock is None else claim.group_lock.group
        if (atomic_write := self._release([claim])) is not None:
            atomic_write.watch(lambda _: self._candidate_source.set_aside([lock]))

    def _returned(self, _: AtomicWrite) -> None:
        self._returning -= 1
        self._wakeup.set()

    def bury(self, claim: Claim, reason: str) -> asyncio.Future[None] | None:
        """Put a claimed item into the dead letters."""
        return None if self._closed else self._claimer.settle(claim, Disposition("dead", reason=reason))

    def expire(self, claim: Claim, end: int) -> asyncio.Future[None] | None:
        """End the hold on an item whose life has ended while it was claimed ahead."""
        self.counts.expired += 1
        return None if self._closed else self._claimer.settle(claim, at_its_end(self.store.config, end))

    def close(self) -> None:
        """Answer every waiter that the session has been closed."""
        self._closed = True
        self._claim_batches.close()
        self._kept.close()
        self._candidate_source.disarm()
        self._candidate_source.forget_aside()
        self._end_pause()
        self._waiters.close(SessionClosedError(CLOSED))

    # -- told by others

    def claim_settled(self, claim: Claim, fate: Fate) -> None:
        """A lock of ours is gone."""
        if fate is GONE and self._collapse is not None:
            self._collapse.forget([claim.place])
        if claim.generation != self._generation:
            return  # all its locks had gone with its session before this one looked: what lies there is free
        if fate is not FREE:
            self._candidate_source.settled(claim.id, gone=True, place=claim.place)
            return
        ours = claim.id in self._candidate_source.held
        self._candidate_source.settled(claim.id, gone=False)
        if ours:
            self._candidate_source.put_back([claim.place])
            self._wakeup.set()
        else:
            self._candidate_source.heard_bell()  # another dispenser's of this session, that takes by other filters

    def retry_at(self, due: int, message_id: str) -> None:
        """A lock of ours has been swapped for a timed one."""
        self._candidate_source.heard_due(due, message_id)

    def keep(self, claim: Claim, delay: float) -> None:
        """A claim on another program's item has failed."""
        self._kept.keep(claim, delay)

    def _release_unseen(self, claim: Claim) -> None:
        if claim.generation == self._generation:  # else the server has removed the lock
            self.release([claim])

    def state_changed(self, state: State, generation: int) -> None:
        """Answer those who wait for claims of a session that is over."""
        if state is State.LOST or (state is State.CONNECTED and generation != self._generation):
            self._budgets.wake()
            self._wakeup.set()
            self._waiters.expire(None if state is State.LOST else generation)

    # -- the pump

    async def run(self) -> None:
        """Serve waiters until cancelled."""
        while not self._closed:
            try:
                await self._await_waiters()
                await self._serve()
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                continue  # wait_connected is the next thing it does
            except ReopenError:
                self.store.invalidate()
            except (QueueError, ZooKeeperError) as error:
                self._answer_failure(error)

    def _answer_failure(self, error: Exception) -> None:
        """Tell the waiters what waiting cannot cure."""
        cause = error.error if isinstance(error, MultiError) else error
        if isinstance(cause, NoAuthError):
            self._waiters.fail(denied(self.store.name, cause))
        elif isinstance(cause, NoNodeError):
            self.store.invalidate()  # somebody deleted the queue, or a part of it: it is made anew
        elif isinstance(cause, ClientClosedError):
            self.close()
        elif isinstance(cause, QueueError):
            self._waiters.fail(cause)
        else:  # nothing that a server would say
            msg = f"queue {self.store.name!r}: {cause}"
            failure = ConnectionLostError(msg)
            failure.__cause__ = cause
            self._waiters.fail(failure)

    async def _await_waiters(self) -> None:
        while not self._closed and self._waiters.empty:
            await self._candidate_source.linger(lambda: not self._waiters.empty)

    async def _serve(self) -> None:
        """Bring the waiters one step on."""
        generation = await self._zookeeper.wait_connected()
        if generation != self._generation:
            self._start_over(generation)
        await self.store.open()
        if self._candidate_source.follow():
            self._group_locks.reconfigured()
        if self.store.config.paused:
            await self._sit_out()
            return
        if self._pause is not None:
            self._end_pause()
        await self._candidate_source.register(generation)
        await self._candidate_source.tend_timers(generation)
        if self._group_locks.any:
            self._hand_on()
        if self._claim_batches.full or (wanted := self._waiters.wanted(self._claim_batches.promised)) <= 0:
            await self._candidate_source.pause(None)
            return
        room = min(wanted, self._claimer.room(generation))
        if room < 1:
            if not self._claim_batches.any:
                self._waiters.answer_asking(self._waiters.arrivals)  # whoever would free some may be the one that asks
            self._budgets.notify(self._wakeup)
            await self._candidate_source.pause(None)
            return
        await self._look(room, generation)

    async def _sit_out(self) -> None:
        """Claim nothing until the queue's configuration has changed; tell those who do not wait that there is nothing.

        What flies was refused by the version of the configuration, or was applied before it.
        """
        self._waiters.answer_asking(self._waiters.arrivals)
        if self._pause is None:
            self._candidate_source.disarm()
            self._pause = await Pause.begin(self._zookeeper, self.store, self._wakeup)
        else:
            await self._candidate_source.pause(None)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.end()
            self._pause = None

    async def _look(self, room: int, generation: int) -> None:
        """Launch claims of what there is; rest when there is nothing."""
        since = self._waiters.arrivals
        places = await self._candidate_source.look(room, generation)
        if places and self.store.dialect is not None:
            places = self._still_wanted(places)
        if places is None:
            await self._candidate_source.pause(None)
        elif places and self.store.config.collapse:
            heads, places = self._candidate_source.apart(places)
            if heads:
                self._claim_batches.launch(heads, generation)
            if places:
                await self._collapse_and_launch(places, generation, since)
        elif places:
            self._claim_batches.launch(places, generation)
        elif self._group_locks.any and self._hand_on():
            # Messages of groups that are held come one after the other: to look for others at each would cost more.
            await self._candidate_source.listen()
        else:
            self._waiters.answer_asking(since)
            if self._waiters.patient:
                await self._candidate_source.rest()

    def _still_wanted(self, places: list[str]) -> list[str] | None:
        """Leave out what is not to be claimed now, by what has happened since the look began.

        Nobody wants it any more, so that it would be given back; or what comes before it is about to be free.
        """
        before = self._splitter.busy or self._returning > 0
        wanted = 0 if before else max(0, self._waiters.wanted(self._claim_batches.promised))
        self._candidate_source.put_last(places[wanted:])
        return places[:wanted] or None

    async def _collapse_and_launch(self, places: list[str], generation: int, since: int) -> None:
        """Claim the newest of each candidate's key, for those who asked before this looks for it."""
        if self._collapse is None:
            self._collapse = Collapse(
                self.store, self._zookeeper, self._ids, self._server_clock, self._candidate_source.set_aside
            )
        if not (places := self._collapse.without_gone(places)):
            return
        before = self._collapse.removed
        try:
            places, duplicates = await self._collapse.choose(
                places, self._candidate_source.held.__contains__, generation
            )
        except ContendedError:
            self._candidate_source.relist()
            return
        except BaseException:
            self._collapse.look_again()
            self._candidate_source.relist()
            raise
        finally:
            self.counts.collapsed += self._collapse.removed - before
        if places:
            self._claim_batches.launch(places, generation, duplicates, since)
        else:
            self._candidate_source.relist()  # all of them have gone, or are held: the listing is out of date

    @property
    def asking(self) -> bool:
        """Whether somebody wants to know what is there now, and does not wait for more."""
        return self._waiters.asking

    @property
    def flying(self) -> bool:
        """Whether claims are under way, to those who wait or back from those who have gone."""
        return self._claim_batches.any or self._returning > 0 or self._group_locks.reading > 0

    def _hand_on(self) -> bool:
        """Give the messages of groups that are held already to those who may have them; whether that brings any."""
        handed = False
        for waiter in self._waiters:
            if waiter.generation in (None, self._generation):
                claims = self._group_locks.next_for(waiter)
                if claims:
                    waiter.give(self._claim_batches.launched, claims)
                    waiter.answer()
                    handed = True
        return handed or self._group_locks.reading > 0

    def _start_over(self, generation: int) -> None:
        self._generation = generation
        self._candidate_source.start_over()
        self._group_locks.start_over()
        self._claim_batches.start_over(generation)
        self._waiters.expire(generation)
