"""How unsent writes become multis: their order, the writes that share a multi, and its operations.

At most one multi about a chain is in progress (see `Chain`). A write whose chain is busy is blocked, and later writes
about the same chains are blocked behind it, so writes about one chain keep their order. Other writes pass them.

Puts to one queue, and ends of messages of one bundle, are sent as one *shared write*. Its members have no
separate parts: their operations are composed together, and they succeed together. This saves most of the cost of
each. If the multi is not simply applied, or one of the members is withdrawn, it is separated: each member gets its
own part, and is a write like any other.
"""

from __future__ import annotations

import bisect
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .bundle_puts import FEWEST, BundledPuts
from .create_items import CreateItems
from .dispositions import CONSUME
from .end_claims import BUNDLED_WEIGHT, ConsumeBundled, end_claims
from .refusals import likely_refused, refused_alike
from .repairs import RepairedTogether
from .write import PUT_WEIGHT, AtomicWrite, Composition, SharedOps, join_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.bundle_hold import BundledClaim, BundleHold
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.lanes import PutLanes
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.runtime.deadline import Deadline
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .end_claims import EndClaims
    from .put import Put
    from .slot import Sending, Slot
    from .write import Chain, Part

#: Bytes of a batch.
GROUP_BYTES: Final = 512 * 1024
#: Writes of a batch.
GROUP: Final = 250
#: Of the batches with more than `FEW` writes, one in this many decodes its results to read the lanes' counters.
#: Decoding takes about a tenth of a put's cost, and a lane that should have been left has 2^30 numbers to go.
RESULTS_EVERY = 16
#: Writes of a small batch. To look at each of them takes less time than to look at the clock.
FEW = 8
#: Members of a shared write.
MEMBERS: Final = 64
#: Bytes of a shared write.
SHARED_BYTES: Final = GROUP_BYTES // 4


class Contribution(NamedTuple):
    """The operations that one member contributes to a shared write: it ends a message, puts a message, or both."""

    claim: BundledClaim | None
    """A processed message of a queue without end hooks."""
    put: Put | None
    """A put without additions to a queue that `makes_bundles`."""
    deadline: Deadline
    """See `CreateItems`."""


#: Equal to the class itself, but implemented in C.
new_contribution: Callable[[tuple[BundledClaim | None, Put | None, Deadline]], Contribution] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Contribution,
)


class SharedWrite(AtomicWrite):
    """Commits of several callers: each ends a message of the same bundle, or puts one to the same queue, or both.

    It has the number of its first member, so it is sent in the turn of that member.
    """

    __slots__ = (
        "_claims",
        "_created",
        "_deadline",
        "_ended",
        "_members",
        "_own_created",
        "_own_ended",
        "_puts",
        "_state",
        "hold",
    )

    def __init__(self, member: AtomicWrite, contribution: Contribution) -> None:
        claim, put, self._deadline = contribution
        self._members = [member]
        self.hold: BundleHold | None = None
        """The bundle of the messages that it ends."""
        self._state: QueueState | None = None
        self._claims: list[BundledClaim] = []
        self._puts: list[Put] = []
        self._ended: ConsumeBundled | None = None
        self._created: CreateItems | None = None
        self._own_ended: list[EndClaims] = []  # the parts of the members, once they are separate
        self._own_created: list[CreateItems] = []
        parts: list[Part] = []
        if claim is not None:
            self.hold = claim.bundle
            self._claims.append(claim)
            ends = {claim.bundle: 1 << claim.position}
            self._ended = ConsumeBundled(member.transaction_id, {claim: CONSUME}, claim.generation, ends)
            parts.append(self._ended)
        if put is not None:
            self._state = put.state
            self._puts.append(put)
            self._created = CreateItems(self._puts, self._deadline)
            parts.append(self._created)
        super().__init__(member.transaction_id, join_parts(parts))
        self.number = member.number
        self.committer = member.committer

    def add(self, member: AtomicWrite, contribution: Contribution, more: int) -> bool:
        """Add a member, whose operations have ``more`` bytes; return False if it does not fit."""
        claim, put, deadline = contribution
        part = self.part
        if (
            (None if claim is None else claim.bundle) is not self.hold
            or (None if put is None else put.state) is not self._state
            or deadline is not self._deadline
            or len(self._members) >= MEMBERS
            or part.weight + more > SHARED_BYTES
        ):
            return False
        part.weight += more
        self._members.append(member)
        if claim is not None and self._ended is not None:
            self._claims.append(claim)
            self._ended.add(claim)
        if put is not None:
            self._puts.append(put)
        return True

    @property
    def members(self) -> Sequence[AtomicWrite]:
        """The members, in order."""
        return self._members

    @property
    def uniform(self) -> bool:
        """Whether the members may still be composed together: the configuration of a queue may have changed."""
        if self.hold is not None and self.hold.state.snapshot.end_hooks:
            return False
        return self._created is None or self._created.plain

    def separate(self) -> Sequence[AtomicWrite]:
        """Give each member its own part; return the members, in order."""
        self._own_ended = [
            end_claims(member.transaction_id, {claim: CONSUME}, claim.generation)
            for member, claim in zip(self._members, self._claims, strict=False)
        ]
        self._own_created = [CreateItems((put,), self._deadline) for put in self._puts]
        for index, member in enumerate(self._members):
            member.part = join_parts([*self._own_ended[index : index + 1], *self._own_created[index : index + 1]])
        return self._members

    def handlers_for(self, handler: RefusalHandler) -> list[tuple[AtomicWrite, RefusalHandler]]:
        """Return the members, which are separate, each with its handler of a refusal that concerns all of them."""
        if handler is self._ended:
            return [*zip(self._members, self._own_ended, strict=True)]
        return [(member, handler) for member in self._members]

    def handler_at(self, handler: RefusalHandler, offset: int) -> tuple[AtomicWrite, RefusalHandler]:
        """Return the member that a create belongs to, and its handler; all other operations are shared."""
        if handler is self._created:
            return self._members[offset], self._own_created[offset]
        return self, handler

    def succeed(self, results: Sequence[Result] | None, meter: Meter | None = None) -> None:
        """Settle all members as applied."""
        self.part.applied(results, meter)
        if self.committer is not None:
            self.committer.count_settled(len(self._members))
        for member in self._members:
            member.settle(None)

    def fail(self, error: BaseException) -> None:
        """Raise an error: each member fails separately, so that its error names its transaction."""
        raise AssertionError(self.transaction_id) from error


class UnsentWrites:
    """Writes ordered by their number: those that are ready, and those that are blocked until a chain is free."""

    __slots__ = ("_blocked", "_busy", "_growing", "_reserved", "arrived", "ready")

    def __init__(self) -> None:
        self.ready: deque[AtomicWrite] = deque()
        """The writes that may be in the next batch."""
        self.arrived: int = 0
        """The number of writes that were added since the last batch."""
        self._growing: dict[BundleHold, SharedWrite] = {}  # without puts, that take more members
        self._blocked: list[AtomicWrite] = []
        self._busy: set[Chain] = set()  # chains of the multis in progress
        self._reserved: set[Chain] = set()  # chains of the blocked writes

    def add(self, atomic_write: AtomicWrite) -> None:
        """Add a new write."""
        self.arrived += 1
        self.ready.append(atomic_write)

    def share(self, member: AtomicWrite, contribution: Contribution) -> int:
        """Add a new write without a part to a shared write; return the approximate size of its operations, in bytes."""
        self.arrived += 1
        claim, put, _ = contribution
        weight = 0
        shared: AtomicWrite | None = None
        if claim is not None:
            weight = BUNDLED_WEIGHT
            shared = self._growing.get(claim.bundle)
        if put is not None:
            weight += PUT_WEIGHT + len(put.data)
            shared = self.ready[-1] if self.ready else None  # a put passes no put of another write
        if type(shared) is not SharedWrite or not shared.add(member, contribution, weight):
            shared = SharedWrite(member, contribution)
            self.ready.append(shared)
            if claim is not None and put is None:
                self._growing[claim.bundle] = shared
        return weight

    def restore(self, atomic_write: AtomicWrite) -> None:
        """Put a write back in front of those with a higher number."""
        bisect.insort(self.ready, atomic_write, key=_number_of)

    def remove(self, atomic_write: AtomicWrite) -> bool:
        """Remove a write; return False if it is not here."""
        for writes in (self.ready, self._blocked):
            for position, queued in enumerate(writes):
                if atomic_write in queued.members:
                    del writes[position]
                    self._stop_growing(queued)
                    for member in queued.separate():
                        if member is not atomic_write:
                            bisect.insort(writes, member, key=_number_of)
                    return True
        return False

    def pop(self) -> AtomicWrite | None:
        """Remove the write with the lowest number, even if its chains are busy; return None if all are removed.

        The session is closed, so no write is added any more.
        """
        self._unblock()
        if not self.ready:
            return None
        first, *rest = self.ready.popleft().separate()
        self.ready.extendleft(reversed(rest))
        return first

    def next_batch(self, max_request: int) -> list[AtomicWrite]:
        """Remove the writes of the next multi, whose chains are busy from now on; there may be none.

        A multi of several writes takes up to half of the largest request, because weights are estimates.
        """
        most = min(GROUP_BYTES, max_request // 2)
        ready = self.ready
        batch: list[AtomicWrite] = []
        chains: set[Chain] = set()
        weight = number = self.arrived = 0
        while ready and number < GROUP:
            atomic_write = ready[0]
            if atomic_write.part.chains and self._block_if_busy(atomic_write):
                continue
            more = atomic_write.part.weight
            if batch and (atomic_write.alone or weight + more > most):
                break
            weight += more
            number += len(atomic_write.members)
            self._stop_growing(atomic_write)
            batch.append(ready.popleft())
            if atomic_write.part.chains:
                chains.update(atomic_write.part.chains)
            if atomic_write.alone:
                break
        self._busy |= chains
        return batch

    def free(self, chains: set[Chain]) -> None:
        """Record that the multi about these chains is no longer in progress; blocked writes are ready again."""
        if chains:
            self._busy -= chains
            self._unblock()

    def _stop_growing(self, queued: AtomicWrite) -> None:
        """Record that a write gets no more members."""
        if type(queued) is SharedWrite and queued.hold is not None and self._growing.get(queued.hold) is queued:
            del self._growing[queued.hold]

    def _block_if_busy(self, atomic_write: AtomicWrite) -> bool:
        """Block the first ready write if one of its chains is busy, or is reserved by an earlier blocked write."""
        chains = atomic_write.part.chains
        if self._busy.isdisjoint(chains) and self._reserved.isdisjoint(chains):
            return False
        self._blocked.append(self.ready.popleft())
        self._reserved.update(chains)
        return True

    def _unblock(self) -> None:
        self._reserved = set()  # also if the writes that reserved chains have been removed
        if self._blocked:
            self.ready = deque(sorted([*self._blocked, *self.ready], key=_number_of))
            self._blocked = []


class PendingMulti:
    """A batch of writes, and the multi for it."""

    __slots__ = (
        "_ids",
        "batch",
        "composition",
        "failure",
        "needs_results",
        "put_run",
        "queues",
        "sending",
        "shared_start",
        "starts",
        "turns",
        "writes",
    )

    def __init__(self, batch: list[AtomicWrite], clock: ServerClock, ids: IdSource) -> None:
        self.batch = batch
        self.writes: list[AtomicWrite] = []
        """The writes as they were composed. In the batch, shared writes may be separated later."""
        self._ids = ids
        self.shared_start = 0
        """The index of the first operation that several writes share."""
        self.put_run: BundledPuts | None = None
        """The puts that may be stored together; None: each has its own znode."""
        self.queues: list[QueueState] = []
        """The queues that are checked, in the order of their checks, which are the first operations."""
        self.composition = Composition(clock)
        self.starts: list[int] = []
        """The index of the first operation of each write."""
        self.turns: list[tuple[PutLanes, int]] = []
        """The lanes of each queue, and their turn before this multi was composed."""
        self.needs_results = False
        self.sending: Sending | None = None
        """Set when it has been sent."""
        self.failure: ZooKeeperError | None = None
        """Why it cannot be sent at all."""

    def send(self, slot: Slot, generation: int, large_batches: Iterator[int]) -> Sending:
        """Compose the multi from the current state, and send it under a slot.

        ``large_batches`` counts the large batches that need results.
        """
        # One check covers all puts to a queue.
        self.queues = list(dict.fromkeys([state for write in self.batch for state in write.part.queues]))
        self.turns = [(state.snapshot.lanes, state.snapshot.lanes.turn) for state in self.queues]
        operations = self.composition.operations
        operations += [state.snapshot.check for state in self.queues]
        limits = [state.snapshot.bundle for state in self.queues if state.snapshot.bundle > 1]
        if limits and sum([write.part.weight for write in self.batch]) >= PUT_WEIGHT * min(FEWEST, *limits):
            self.composition.put_run = self.put_run = BundledPuts(self._ids)
        if not all(write.uniform for write in self.batch):
            separate(self.batch)
        self.writes = list(self.batch)
        composition = self.composition
        for atomic_write in self.writes:
            self.starts.append(len(operations))
            composition.begin(atomic_write)
            part = atomic_write.part
            part.compose(composition)
            self.needs_results = self.needs_results or part.needs_results
        self.shared_start = len(operations)
        self.composition.compose_shared()
        if self.needs_results and sum([len(write.members) for write in self.writes]) > FEW:
            self.needs_results = next(large_batches) % RESULTS_EVERY == 0
        self.sending = sending = slot.begin(operations, generation, needs_results=self.needs_results)
        return sending

    def refused_by(self, index: int) -> tuple[AtomicWrite, RefusalHandler]:
        """Return the write with a refused operation, and the handler of the refusal. All writes are separate."""
        position = bisect.bisect_right(self.starts, index) - 1
        atomic_write = self.writes[position]
        start = self.starts[position] if index < self.shared_start else self.shared_start
        handler, first = self.composition.handler_of(index, start) or (atomic_write.part, start)
        return atomic_write.handler_at(handler, index - first)

    def affected_writes(self, index: int, error: ZooKeeperError) -> dict[AtomicWrite, tuple[RefusalHandler, Operation]]:
        """Return the writes that the cause of a refusal concerns, each with its handler and its first such operation.

        All writes are separate.
        """
        operations = self.composition.operations[: self.shared_start]
        concerned: dict[AtomicWrite, tuple[RefusalHandler, Operation]] = {}
        for each in refused_alike(operations, index, error):
            member, handler = self.refused_by(each)
            own = [(member, self.handler_with_likely(each, error))]
            members = handler.handlers() if isinstance(handler, SharedOps) else own
            for its_member, its_handler in members:
                concerned.setdefault(its_member, (its_handler, operations[each]))
        return concerned

    def checks_after(self, index: int) -> list[tuple[QueueState, Operation]]:
        """Return the queues whose checks follow the one at this index, with these checks."""
        return list(zip(self.queues[index + 1 :], self.composition.operations[index + 1 :], strict=False))

    def handler_with_likely(self, index: int, error: ZooKeeperError) -> RefusalHandler:
        """Return the handler of a refusal, which also repairs the operations of the write that are likely refused."""
        member, (_, handler) = bisect.bisect_right(self.starts, index) - 1, self.refused_by(index)
        operations = self.composition.operations[: [*self.starts, self.shared_start][member + 1]]
        further = [(self.refused_by(each)[1], operations[each]) for each in likely_refused(operations, index, error)]
        return RepairedTogether(handler, further) if further else handler

    def lanes_missing_from(self, index: int, error: ZooKeeperError) -> list[tuple[QueueState, Operation]]:
        """Return the queue whose missing lane caused a refusal, if any, and then those that may lack lanes too.

        Each has its first put to such a lane. Its puts will choose the same lanes again.
        """
        missing: dict[QueueState, Operation] = {}
        for operation in self.composition.operations[index:]:
            for state, (lanes, turn) in zip(self.queues, self.turns, strict=True):
                if state not in missing and state.lacks_lane(operation, error):
                    missing[state] = operation
                    lanes.rewind(turn)
            if not missing:
                break
        return list(missing.items())


def separate(batch: list[AtomicWrite]) -> None:
    """Separate the shared writes of a batch into their members."""
    batch[:] = [member for atomic_write in batch for member in atomic_write.separate()]


def _number_of(atomic_write: AtomicWrite) -> int:
    return atomic_write.number
