"""Claim batches in flight: each is sent by a separate task, next to the dispatcher's loop.

The claims of a batch go to the waiting takers, and the others are released. The candidate index learns which were not
claimed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import QueueError
from aiozkqueue.layout import is_bundle_at, messages_in, name_at
from aiozkqueue.runtime.task_pool import TaskPool
from aiozkqueue.zookeeper import Check, ConnectionLossError, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .candidate_index import Origin
from .claimer import ContendedError, ReopenError
from .collapse import claim_newest
from .foreign import Splitter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.snapshot import Revision
    from aiozkqueue.zookeeper import Operation

    from .bundles import HeldBundles
    from .candidate_index import CandidateIndex
    from .claimer import Claimer, ClaimResult
    from .collapse import Duplicates
    from .groups import GroupLocks
    from .releases import Releases
    from .services import ClaimServices
    from .waiters import WaitQueue

    ClaimBatch = Callable[[Sequence[str], Sequence[str], int, Operation], Awaitable[ClaimResult]]

#: Claim batches in flight: of a session that is alone on the queue, and of one among several.
BATCHES_ALONE = 4
BATCHES_SHARED = 2
#: Failed batches in a row after which the locks are listed again.
MOST_FAILURES = 2


class _PendingBatch(NamedTuple):
    """A claim batch that is being sent."""

    number: int
    claim: ClaimBatch
    places: list[str]
    locks: list[str]
    """The locks of these places, followed by those of attached removals."""
    generation: int
    revision: Revision
    """The configuration for which these candidates were chosen."""
    reserved: int
    """Bytes of the session's lock budget that are reserved for the locks."""
    messages: int
    """The number of messages at these places."""
    last_arrival: int | None
    """Takers that arrived after this arrival number get none of the claims; None: no limit."""


class ClaimBatches:
    """The claim batches in flight of one session and queue. The wakeup event is set when a batch is answered.

    ``releases`` gets the claims that no taker wants. ``fail`` receives the error of a failed batch, unless the failure
    is expected: a contended candidate, another configuration, a lost connection.
    """

    def __init__(
        self,
        services: ClaimServices,
        *,
        claimer: Claimer,
        candidates: CandidateIndex,
        group_locks: GroupLocks,
        held_bundles: HeldBundles,
        waiters: WaitQueue,
        releases: Releases,
        fail: Callable[[Exception], None],
    ) -> None:
        self._state = services.state
        self._claimer = claimer
        self._candidates = candidates
        self._group_locks = group_locks
        self._held_bundles = held_bundles
        self._waiters = waiters
        foreign = self._state.dialect is not None
        self._splitter = Splitter(services, releases=releases, candidates=candidates) if foreign else None
        self._tasks = services.tasks
        self._releases = releases
        self._fail = fail
        self._task_pool = TaskPool(self._claim)
        self._pending: set[int] = set()
        self._awaited: list[tuple[set[int], asyncio.Future[None]]] = []
        self._failures = 0
        self._tried = self._gone = 0  # in batches in a row with candidates that were gone
        self._generation = 0
        self.launched: int = 0
        """The number of batches launched so far, and of the last batch."""
        self.promised: int = 0
        """The most claims that the batches in flight can bring."""

    @property
    def any(self) -> bool:
        """Whether any batch is in flight."""
        return bool(self._pending)

    @property
    def in_flight(self) -> set[int]:
        """The numbers of the batches in flight."""
        return self._pending

    @property
    def splitting(self) -> bool:
        """Whether an item of another program is being split, whose parts come next in order."""
        return self._splitter is not None and self._splitter.busy

    @property
    def full(self) -> bool:
        """Whether the next batch must wait: enough are in flight, or parts of an item come next in order."""
        if self._splitter is not None and self._splitter.busy:
            return True
        return len(self._pending) >= (BATCHES_ALONE if self._candidates.alone else BATCHES_SHARED)

    def when_landed(self) -> asyncio.Future[None]:
        """Return a future that is done when the batches that are in flight now have landed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._pending:
            self._awaited.append((set(self._pending), future))
        else:
            future.set_result(None)
        return future

    def _notify_landed(self, number: int) -> None:
        for flying, future in self._awaited:
            flying.discard(number)
            if not flying and not future.done():
                future.set_result(None)
        self._awaited = [entry for entry in self._awaited if entry[0]]

    def start_over(self, generation: int) -> None:
        """Record a new ZooKeeper session: batches still in flight have no locks in it."""
        self._generation = generation

    def close(self) -> None:
        """Start no more batches; those in flight are still answered."""
        self._task_pool.close()

    def launch(
        self, places: list[str], generation: int, duplicates: Duplicates | None = None, last_arrival: int | None = None
    ) -> None:
        """Send claims of the items at these places, and with them the removal of ``duplicates``.

        Takers that arrived after ``last_arrival`` get none of the claims; None: no limit.
        """
        if self._state.snapshot.config.bundled and any(map(is_bundle_at, places)):
            self._launch_runs(places, generation, last_arrival)
            return
        places = self._launch_heads(places, generation, last_arrival)
        if places and duplicates is None:
            limit = self._candidates.batch_limit() or len(places)
            for start in range(0, len(places), limit):
                part = places[start : start + limit]
                self._submit(part, self._claimer.claim, self._claimer.item_lock_size, generation, last_arrival)
        elif places and duplicates is not None:
            newest = partial(claim_newest, self._claimer, duplicates=duplicates)
            self._submit(places, newest, self._claimer.item_lock_size, generation, last_arrival, duplicates.ids)

    def _launch_heads(self, places: list[str], generation: int, last_arrival: int | None) -> list[str]:
        """Send the claims of groups; return the places of the items without a group."""
        heads, places = self._candidates.split_groups(places)
        if heads:
            self._submit(heads, self._group_locks.claim, self._claimer.group_lock_size, generation, last_arrival)
        return places

    def _launch_runs(self, places: list[str], generation: int, last_arrival: int | None) -> None:
        """Send claims of bundles and of single items, each run of one kind in a separate batch, in order."""
        runs = [(bundles, list(run)) for bundles, run in groupby(places, is_bundle_at)]
        for bundles, run in runs[:BATCHES_ALONE]:
            if not bundles and not (run := self._launch_heads(run, generation, last_arrival)):
                continue
            claim = self._held_bundles.claim if bundles else self._claimer.claim
            messages = sum([messages_in(name_at(place)) for place in run]) if bundles else len(run)
            self._submit(run, claim, self._claimer.item_lock_size, generation, last_arrival, messages=messages)
        self._candidates.put_back([place for _, run in runs[BATCHES_ALONE:] for place in run])

    def _submit(  # noqa: PLR0917 - called for every batch
        self,
        places: list[str],
        claim: ClaimBatch,
        size: int,
        generation: int,
        last_arrival: int | None,
        removed: Sequence[str] = (),
        messages: int | None = None,
    ) -> None:
        """Have a task send a batch by ``claim``; each of its locks takes ``size`` bytes of the session's budget.

        ``removed`` are the locks of attached removals. ``messages`` is how many messages these places hold; None: one
        each.
        """
        locks = [*self._candidates.lock_ids(places), *removed]
        self._candidates.add_held(locks)
        self.launched += 1
        self._pending.add(self.launched)
        messages = len(places) if messages is None else messages
        self.promised += messages
        reserved = size * len(places)
        self._claimer.reserve(reserved, generation)
        if not self._task_pool.submit(
            _PendingBatch(
                self.launched,
                claim,
                places,
                locks,
                generation,
                self._candidates.revision,
                reserved,
                messages,
                last_arrival,
            )
        ):
            self._tasks.spawn(self._task_pool.work, name="claims")

    async def _claim(self, pending: _PendingBatch) -> None:
        """Claim a batch, and offer its claims to the takers."""
        places, locks, generation = pending.places, pending.locks, pending.generation
        kept: set[str] = set()
        try:
            batch = await self._claim_if_current(pending)
            kept = _kept(batch)
            self._failures = 0
            if batch.set_aside or batch.gone or batch.lost:
                self._note_unclaimed(batch, len(places))
            else:
                self._tried = self._gone = 0
            claims = batch.claims if self._splitter is None else await self._splitter.next_of(batch.claims)
            self._offer(pending.number, claims, generation, pending.last_arrival)
        except ContendedError as contended:
            self._contended(places, locks, contended.index)
        except ReopenError:
            self._candidates.put_back(places)
            self._state.invalidate()
        except (ConnectionLossError, ZooKeeperSessionExpiredError):
            self._candidates.relist()
        except (QueueError, ZooKeeperError) as error:
            self._candidates.relist()
            self._fail(error)
        finally:
            if generation == self._generation:
                self._candidates.drop_held(
                    [
                        lock
                        for lock in locks
                        if lock not in kept and lock not in self._group_locks and lock not in self._held_bundles
                    ]
                )
            self._pending.discard(pending.number)
            if self._awaited:
                self._notify_landed(pending.number)
            self.promised -= pending.messages
            self._waiters.batch_landed(pending.number)
            self._candidates.wakeup.set()

    def _note_unclaimed(self, batch: ClaimResult, asked: int) -> None:
        """Record which of the candidates were not claimed; list again if the last listing seems out of date."""
        candidates, gone = self._candidates, batch.gone
        candidates.set_aside(batch.set_aside)
        candidates.note_gone(gone)
        self._tried, self._gone = self._tried + asked, self._gone + len(gone)
        mostly_gone = self._gone > 1 and 2 * self._gone >= self._tried  # also if each batch asks for one
        owner_is_back = bool(gone) and candidates.origin is Origin.STOLEN  # the consumer that they were stolen from
        if mostly_gone or owner_is_back or batch.lost:  # watches reported lost ones while they were ours
            self._tried = self._gone = 0
            candidates.relist()

    def _contended(self, places: Sequence[str], locks: Sequence[str], index: int) -> None:
        """Handle the refusal that another session holds one of these locks; the other candidates are returned."""
        self._candidates.contended(locks[index])
        remaining = [place for number, place in enumerate(places) if number != index]
        if self._candidates.origin is Origin.TAKEN_OVER and len(locks) == len(places):
            self._candidates.leave_to_peers(remaining)  # their locks are read again
            return
        self._failures += 1
        stolen = self._candidates.origin is Origin.STOLEN
        if self._failures >= MOST_FAILURES or stolen or len(locks) > len(places):
            self._candidates.relist()
        self._candidates.put_last(remaining)

    async def _claim_if_current(self, pending: _PendingBatch) -> ClaimResult:
        """Claim, unless the configuration has changed since the candidates were chosen.

        A claim may send several requests. Each asserts that version: a later one may pause the queue.
        """
        if pending.revision != self._state.snapshot.revision:
            self._claimer.unreserve(pending.reserved, pending.generation)
            raise ReopenError
        places = pending.places
        check = Check(self._state.paths.base, pending.revision.version)
        return await pending.claim(places, pending.locks[: len(places)], pending.generation, check)

    def _offer(self, number: int, claims: list[Claim], generation: int, last_arrival: int | None) -> None:
        """Give claims to the waiting takers, or only to those that arrived up to ``last_arrival``."""
        note_given = self._group_locks.note_given if self._candidates.groups is not None else None
        if unwanted := self._waiters.assign(number, self._pending, claims, generation, last_arrival, note_given):
            self._releases.release(unwanted)


def _kept(batch: ClaimResult) -> set[str]:
    """Return the ids of the items that stay locked, or are set aside; not of bundles, which are listed as held."""
    items = () if batch.claims and batch.claims[0].bundled else [claim.id for claim in batch.claims]
    return {*items, *batch.set_aside}
