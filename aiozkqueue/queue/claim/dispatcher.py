"""Claims for all waiting takers of one session and queue.

One task, the pump, decides what to do next: let the lookout find candidates, claim a batch for those who wait, or rest.
Batches of claims fly beside it, a few at a time (see `flights`). What a waiter does not take any more (it was
cancelled, it timed out) goes to another or is released.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ConnectionLostError, QueueError, SessionClosedError
from aiozkqueue.queue.commit.dispositions import RELEASE, Ending
from aiozkqueue.queue.commit.group_commit import CLOSED
from aiozkqueue.queue.commit.release import ReleaseSettlement
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
from .delayed_release import KeptClaims
from .discovery import Lookout
from .foreign import Splitter
from .groups import Tenures
from .in_flight import Flights
from .pause import Pause
from .waiters import Line

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from random import Random

    from aiozkqueue.layout import Condition, IdSource
    from aiozkqueue.queue.commit.group_commit import Committer
    from aiozkqueue.queue.commit.write import Settlement
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.claim import Claim, Fate, SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueStore
    from aiozkqueue.zookeeper import ZooKeeper

    from .claimer import ClaimCounts
    from .waiters import Waiter

log: Final = logging.getLogger(__name__)


class Dispenser:
    """Hands out the claims on one queue in one session."""

    def __init__(
        self,
        store: QueueStore,
        zookeeper: ZooKeeper,
        *,
        committer: Committer,
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
        self._kept = KeptClaims(clock, self._let_go)
        self._ids = ids
        self._budgets = budgets
        self._claimer = Claimer(
            store, zookeeper, committer=committer, server_clock=server_clock, ids=ids, budgets=budgets
        )
        self._lookout = Lookout(
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
        self._bell = self._lookout.bell
        self._line = Line(store.name, clock, self._bell)
        self._pause: Pause | None = None
        self._tenures = Tenures(
            store,
            zookeeper,
            claimer=self._claimer,
            lookout=self._lookout,
            committer=committer,
            tasks=tasks,
            clock=clock,
            server_clock=server_clock,
            ids=ids,
            budgets=budgets,
            wanted=lambda: any(True for _ in self._line),
            give_back=self.release,
        )
        self._splitter = Splitter(
            store,
            zookeeper,
            committer=committer,
            ids=ids,
            give_back=self.release,
            found=self._lookout.put_back,
            returning=lambda: self._returning > 0,
        )
        self._flights = Flights(
            store,
            claimer=self._claimer,
            lookout=self._lookout,
            tenures=self._tenures,
            line=self._line,
            splitter=self._splitter,
            tasks=tasks,
            give_back=self.release,
            fail=self._answer_failure,
        )
        self._returning = 0  # releases of what nobody took
        self._generation = 0
        self._closed = False
        store.keeper = self if store.keeper is None else Both(store.keeper, self)

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
        return self._line.join(limit, timeout, generation, owner)

    def request_more(self, waiter: Waiter, more: int) -> bool:
        """Have one in line wait for so many more; False: that takes a request of its own.

        Many of one claim each, of one taker, would have others of this session wait behind them all.
        """
        # What is claimed of keys is the newest when it was asked for, so that each asks at its own time.
        return not self.store.config.collapse and self._line.widen(waiter, more, self._flights.promised)

    def give_up(self, waiter: Waiter) -> None:
        """Leave the line; what has been claimed for this waiter goes back."""
        self._bell.set()
        future = waiter.future
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self.release(future.result())
        else:  # who awaits it and is cancelled has cancelled it, too
            future.cancel()
            self.release(waiter.claims)

    def release(self, claims: Sequence[Claim]) -> asyncio.Future[None] | None:
        """Give claims back at once, as if they had never been made; the future is done when the locks are gone."""
        settlement = self._release(claims)
        return None if settlement is None else settlement.done

    def _release(self, claims: Sequence[Claim]) -> ReleaseSettlement | None:
        if not claims or self._closed:
            return None
        settlement = ReleaseSettlement(
            self._ids.next(), dict.fromkeys(claims, RELEASE), self._server_clock, claims[0].generation
        )
        self._committer.submit(settlement)
        self._returning += 1
        settlement.watch(self._returned)
        return settlement

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
        lock = claim.id if claim.tenure is None else claim.tenure.group
        if (settlement := self._release([claim])) is not None:
            settlement.watch(lambda _: self._lookout.set_aside([lock]))

    def _returned(self, _: Settlement) -> None:
        self._returning -= 1
        self._bell.set()

    def bury(self, claim: Claim, reason: str) -> asyncio.Future[None] | None:
        """Put a claimed item into the dead letters."""
        return None if self._closed else self._claimer.settle(claim, Ending("dead", reason=reason))

    def expire(self, claim: Claim, end: int) -> asyncio.Future[None] | None:
        """End the hold on an item whose life has ended while it was claimed ahead."""
        self.counts.expired += 1
        return None if self._closed else self._claimer.settle(claim, at_its_end(self.store.config, end))

    def close(self) -> None:
        """Answer every waiter that the session has been closed."""
        self._closed = True
        self._flights.close()
        self._kept.close()
        self._lookout.disarm()
        self._lookout.forget_aside()
        self._end_pause()
        self._line.close(SessionClosedError(CLOSED))

    # -- told by others

    def claim_settled(self, claim: Claim, fate: Fate) -> None:
        """A lock of ours is gone."""
        if fate is GONE and self._collapse is not None:
            self._collapse.forget([claim.place])
        if claim.generation != self._generation:
            return  # all its locks had gone with its session before this one looked: what lies there is free
        if fate is not FREE:
            self._lookout.settled(claim.id, gone=True, place=claim.place)
            return
        ours = claim.id in self._lookout.held
        self._lookout.settled(claim.id, gone=False)
        if ours:
            self._lookout.put_back([claim.place])
            self._bell.set()
        else:
            self._lookout.heard_bell()  # another dispenser's of this session, that takes by other filters

    def retry_at(self, due: int, message_id: str) -> None:
        """A lock of ours has been swapped for a timed one."""
        self._lookout.heard_due(due, message_id)

    def keep(self, claim: Claim, delay: float) -> None:
        """A claim on another program's item has failed."""
        self._kept.keep(claim, delay)

    def _let_go(self, claim: Claim) -> None:
        if claim.generation == self._generation:  # else the server has removed the lock
            self.release([claim])

    def state_changed(self, state: State, generation: int) -> None:
        """Answer those who wait for claims of a session that is over."""
        if state is State.LOST or (state is State.CONNECTED and generation != self._generation):
            self._budgets.wake()
            self._bell.set()
            self._line.expire(None if state is State.LOST else generation)

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
                self.store.stale()
            except (QueueError, ZooKeeperError) as error:
                self._answer_failure(error)

    def _answer_failure(self, error: Exception) -> None:
        """Tell the waiters what waiting cannot cure."""
        cause = error.error if isinstance(error, MultiError) else error
        if isinstance(cause, NoAuthError):
            self._line.fail(denied(self.store.name, cause))
        elif isinstance(cause, NoNodeError):
            self.store.stale()  # somebody deleted the queue, or a part of it: it is made anew
        elif isinstance(cause, ClientClosedError):
            self.close()
        elif isinstance(cause, QueueError):
            self._line.fail(cause)
        else:  # nothing that a server would say
            msg = f"queue {self.store.name!r}: {cause}"
            failure = ConnectionLostError(msg)
            failure.__cause__ = cause
            self._line.fail(failure)

    async def _await_waiters(self) -> None:
        while not self._closed and self._line.empty:
            await self._lookout.linger(lambda: not self._line.empty)

    async def _serve(self) -> None:
        """Bring the waiters one step on."""
        generation = await self._zookeeper.wait_connected()
        if generation != self._generation:
            self._start_over(generation)
        await self.store.open()
        if self._lookout.follow():
            self._tenures.reconfigured()
        if self.store.config.paused:
            await self._sit_out()
            return
        if self._pause is not None:
            self._end_pause()
        await self._lookout.register(generation)
        await self._lookout.tend_timers(generation)
        if self._tenures.any:
            self._hand_on()
        if self._flights.full or (wanted := self._line.wanted(self._flights.promised)) <= 0:
            await self._lookout.pause(None)
            return
        room = min(wanted, self._claimer.room(generation))
        if room < 1:
            if not self._flights.any:
                self._line.answer_asking(self._line.arrivals)  # whoever would free some may be the one that asks
            self._budgets.ring(self._bell)
            await self._lookout.pause(None)
            return
        await self._look(room, generation)

    async def _sit_out(self) -> None:
        """Claim nothing until the queue's configuration has changed; tell those who do not wait that there is nothing.

        What flies was refused by the version of the configuration, or was applied before it.
        """
        self._line.answer_asking(self._line.arrivals)
        if self._pause is None:
            self._lookout.disarm()
            self._pause = await Pause.begin(self._zookeeper, self.store, self._bell)
        else:
            await self._lookout.pause(None)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.end()
            self._pause = None

    async def _look(self, room: int, generation: int) -> None:
        """Launch claims of what there is; rest when there is nothing."""
        since = self._line.arrivals
        places = await self._lookout.look(room, generation)
        if places and self.store.dialect is not None:
            places = self._still_wanted(places)
        if places is None:
            await self._lookout.pause(None)
        elif places and self.store.config.collapse:
            heads, places = self._lookout.apart(places)
            if heads:
                self._flights.launch(heads, generation)
            if places:
                await self._collapse_and_launch(places, generation, since)
        elif places:
            self._flights.launch(places, generation)
        elif self._tenures.any and self._hand_on():
            # Messages of groups that are held come one after the other: to look for others at each would cost more.
            await self._lookout.listen()
        else:
            self._line.answer_asking(since)
            if self._line.patient:
                await self._lookout.rest()

    def _still_wanted(self, places: list[str]) -> list[str] | None:
        """Leave out what is not to be claimed now, by what has happened since the look began.

        Nobody wants it any more, so that it would be given back; or what comes before it is about to be free.
        """
        before = self._splitter.busy or self._returning > 0
        wanted = 0 if before else max(0, self._line.wanted(self._flights.promised))
        self._lookout.put_last(places[wanted:])
        return places[:wanted] or None

    async def _collapse_and_launch(self, places: list[str], generation: int, since: int) -> None:
        """Claim the newest of each candidate's key, for those who asked before this looks for it."""
        if self._collapse is None:
            self._collapse = Collapse(
                self.store, self._zookeeper, self._ids, self._server_clock, self._lookout.set_aside
            )
        if not (places := self._collapse.without_gone(places)):
            return
        before = self._collapse.removed
        try:
            places, duplicates = await self._collapse.choose(places, self._lookout.held.__contains__, generation)
        except ContendedError:
            self._lookout.relist()
            return
        except BaseException:
            self._collapse.look_again()
            self._lookout.relist()
            raise
        finally:
            self.counts.collapsed += self._collapse.removed - before
        if places:
            self._flights.launch(places, generation, duplicates, since)
        else:
            self._lookout.relist()  # all of them have gone, or are held: the listing is out of date

    @property
    def asking(self) -> bool:
        """Whether somebody wants to know what is there now, and does not wait for more."""
        return self._line.asking

    @property
    def flying(self) -> bool:
        """Whether claims are under way, to those who wait or back from those who have gone."""
        return self._flights.any or self._returning > 0 or self._tenures.reading > 0

    def _hand_on(self) -> bool:
        """Give the messages of groups that are held already to those who may have them; whether that brings any."""
        handed = False
        for waiter in self._line:
            if waiter.generation in (None, self._generation):
                claims = self._tenures.next_for(waiter)
                if claims:
                    waiter.give(self._flights.launched, claims)
                    waiter.answer()
                    handed = True
        return handed or self._tenures.reading > 0

    def _start_over(self, generation: int) -> None:
        self._generation = generation
        self._lookout.start_over()
        self._tenures.start_over()
        self._flights.start_over(generation)
        self._line.expire(generation)
