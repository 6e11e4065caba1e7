"""Batches of claims on their way: launched beside the pump, each in a task of its own, until they land.

What a batch brings goes to those in line, and what is left of it back; the lookout is told of what was not claimed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import QueueError
from aiozkqueue.queue.runtime.task_pool import TaskPool
from aiozkqueue.zookeeper import ConnectionLossError, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .claimer import ContendedError, ReopenError
from .collapse import claim_newest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState

    from .claimer import Batch, Claimer
    from .collapse import Duplicates
    from .discovery import CandidateSource
    from .foreign import Splitter
    from .groups import GroupLocks
    from .waiters import WaitQueue

    ClaimBatch = Callable[[Sequence[str], Sequence[str], int], Awaitable[Batch]]

#: Batches of claims in flight: of a session that is alone on the queue, and of one among several.
FLIGHTS_ALONE = 4
FLIGHTS_SHARED = 2
#: Failed batches in a row after which the locks are listed again.
MOST_FAILURES = 2


class _Flight(NamedTuple):
    """A batch of claims that is sent."""

    number: int
    claim: ClaimBatch
    places: list[str]
    locks: list[str]
    """What locks those, and then what is locked beside them."""
    generation: int
    room: int
    """What the locks take of the session's budget, bytes: reserved at the launch."""
    since: int | None
    """Who came after this many takers gets none of them; None: anybody may."""


class ClaimBatches:
    """What flies of one session and queue. The bell rings when a batch has landed.

    ``give_back`` takes the claims that nobody in line wants. ``fail`` is told why a batch has failed, unless that is to
    be expected: a candidate that others hold, another configuration, a lost connection.
    """

    def __init__(
        self,
        store: QueueState,
        *,
        claimer: Claimer,
        candidate_source: CandidateSource,
        group_locks: GroupLocks,
        waiters: WaitQueue,
        splitter: Splitter,
        tasks: TaskOwner,
        give_back: Callable[[Sequence[Claim]], object],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._claimer = claimer
        self._candidate_source = candidate_source
        self._group_locks = group_locks
        self._waiters = waiters
        self._splitter = splitter
        self._tasks = tasks
        self._give_back = give_back
        self._fail = fail
        self._task_pool = TaskPool(self._claim)
        self._flying: set[int] = set()
        self._failures = 0
        self._generation = 0
        self.launched: int = 0
        """How many have been launched so far, which is the number of the last."""
        self.promised: int = 0
        """How many claims those that fly bring at the most."""

    @property
    def any(self) -> bool:
        """Whether anything flies."""
        return bool(self._flying)

    @property
    def full(self) -> bool:
        """Whether the next is to wait: so many fly, or parts of an item are about to come, which are next in order."""
        return self._splitter.busy or len(self._flying) >= (
            FLIGHTS_ALONE if self._candidate_source.alone else FLIGHTS_SHARED
        )

    def start_over(self, generation: int) -> None:
        """Another ZooKeeper session begins: what flies still has no locks in it."""
        self._generation = generation

    def close(self) -> None:
        """Begin with none any more; what is under way lands."""
        self._task_pool.close()

    def launch(
        self, places: list[str], generation: int, duplicates: Duplicates | None = None, since: int | None = None
    ) -> None:
        """Send claims of what is at these places beside the pump, and with them the removal of ``duplicates``.

        Who came after ``since`` takers gets none of them; None: anybody may.
        """
        self._candidate_source.at_work()
        heads, places = self._candidate_source.apart(places)
        if heads:
            self._fly(heads, self._group_locks.claim, self._claimer.group_lock_size, generation, since)
        if places and duplicates is None:
            self._fly(places, self._claimer.claim, self._claimer.item_lock_size, generation, since)
        elif places and duplicates is not None:
            newest = partial(claim_newest, self._claimer, duplicates=duplicates)
            self._fly(places, newest, self._claimer.item_lock_size, generation, since, duplicates.ids)

    def _fly(  # noqa: PLR0917 - one caller, above it
        self,
        places: list[str],
        claim: ClaimBatch,
        size: int,
        generation: int,
        since: int | None,
        beside: Sequence[str] = (),
    ) -> None:
        locks = [*self._candidate_source.lock_ids(places), *beside]
        self._candidate_source.begin(locks)
        self.launched += 1
        self._flying.add(self.launched)
        self.promised += len(places)
        room = size * len(places)
        self._claimer.reserve(room, generation)
        if not self._task_pool.submit(_Flight(self.launched, claim, places, locks, generation, room, since)):
            self._tasks.spawn(self._task_pool.work, name="claims")

    async def _claim(self, flight: _Flight) -> None:
        number, _, places, locks, generation, _, since = flight
        kept: set[str] = set()
        try:
            batch = await self._claim_as_chosen(flight)
            kept = {claim.id for claim in batch.claims}.union(batch.sealed)
            self._candidate_source.set_aside(batch.sealed)
            self._failures = 0
            self._candidate_source.ghosts(batch.ghosts)
            if 2 * len(batch.ghosts) >= len(places) and len(batch.ghosts) > 1:
                self._candidate_source.relist()  # the listing is out of date
            if batch.ghosts and self._candidate_source.stealing:
                self._candidate_source.relist()  # their own consumer is back at work
            if batch.lost:
                self._candidate_source.relist()  # the watch told of them while they were ours
            claims = batch.claims if self._store.dialect is None else await self._splitter.next_of(batch.claims)
            self._offer(number, claims, generation, since)
        except ContendedError as contended:
            self._contended(places, locks, contended.index)
        except ReopenError:
            self._candidate_source.put_back(places)
            self._store.invalidate()
        except (ConnectionLossError, ZooKeeperSessionExpiredError):
            self._candidate_source.relist()
        except (QueueError, ZooKeeperError) as error:
            self._candidate_source.relist()
            self._fail(error)
        finally:
            if generation == self._generation:
                self._candidate_source.end([one for one in locks if one not in kept and one not in self._group_locks])
            self._flying.discard(number)
            self.promised -= len(places)
            self._waiters.landed(number)
            self._candidate_source.wakeup.set()

    def _contended(self, places: Sequence[str], locks: Sequence[str], index: int) -> None:
        """Somebody else has what is locked by one of these; the other candidates are taken back."""
        self._candidate_source.contended(locks[index])
        others = [place for number, place in enumerate(places) if number != index]
        if self._candidate_source.taking_over and len(locks) == len(places):
            self._candidate_source.leave(others)  # of those it is looked again which are locked
            return
        self._failures += 1
        if self._failures >= MOST_FAILURES or self._candidate_source.stealing or len(locks) > len(places):
            self._candidate_source.relist()
        self._candidate_source.put_last(others)

    async def _claim_as_chosen(self, flight: _Flight) -> Batch:
        """Claim, unless the claim would assert another configuration than the one these were chosen by."""
        if self._candidate_source.outdated:
            self._claimer.unreserve(flight.room, flight.generation)
            raise ReopenError
        places = flight.places
        return await flight.claim(places, flight.locks[: len(places)], flight.generation)

    def _offer(self, flight: int, claims: list[Claim], generation: int, since: int | None) -> None:
        """Give claims to those in line; to no one who came after ``since``, when they are what was there then."""
        given = self._group_locks.given if self._candidate_source.grouped else None
        self._give_back(self._waiters.give(flight, self._flying, claims, generation, since, given))
