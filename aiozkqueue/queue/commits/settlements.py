"""Which operations a put, an attempt, a commit, a release and a dead letter are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiozkqueue.errors import ClaimLostError, QueueError
from aiozkqueue.layout import AttemptRecord, DeadLetter, End, LockRecord, encode
from aiozkqueue.queue.claim import Claim
from aiozkqueue.queue.store import denied
from aiozkqueue.zookeeper import (
    Check,
    Create,
    Delete,
    NoAuthError,
    NoNodeError,
    SetData,
)

from .admission import needs_of, readmit
from .keys import freed_by
from .settlement import Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from aiozkqueue.layout import Policy
    from aiozkqueue.queue.claims.tenure import Tenure
    from aiozkqueue.queue.clock import ServerClock
    from aiozkqueue.queue.store import QueueStore
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .companions import Mender
    from .plan import PutPlan

#: About what one operation takes in a multi besides its data: header, path, ACL.
OPERATION_WEIGHT = 140
#: The field of a dead letter's header that says what it was called in another program's queue.
FOREIGN_NAME = "name"


class Put(NamedTuple):
    """One item to create; its id is known before it is sent."""

    store: QueueStore
    id: str
    prefix: str
    data: bytes
    plan: PutPlan | None = None
    """What it adds to the create; None: nothing, it is plain."""


class Ending(NamedTuple):
    """How the hold on one item ends, in a commit or in a release."""

    kind: Literal["consume", "release", "dead", "unlock", "remove"]
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    leased: bool = False
    """Whether a release with a delay leaves it to somebody who handles it until then."""
    outcome: End | None = None
    """What a history says of it; None: finished, or dead-lettered."""
    rewrite: bytes | None = None
    """What a release leaves the item with; None: as it is."""


CONSUME = Ending("consume")
#: Gone for good, by an operator's will.
REMOVED = Ending("remove")
RELEASE = Ending("release")
#: Remove the lock and nothing else: the item has been deleted by somebody who does not hold it.
UNLOCK = Ending("unlock")


class PutSettlement(Settlement):
    """Items put at once, outside of any transaction."""

    __slots__ = ("_owners", "_puts", "_sent")

    def __init__(self, transaction_id: str, puts: Sequence[Put]) -> None:
        super().__init__(transaction_id, None, weigh_puts(puts), stores_of(puts))
        self._puts = puts
        self._sent: list[Operation] = []
        self._owners: list[Mender] = []

    def operations(self) -> Sequence[Operation]:
        """Create the items."""
        self._sent, self._owners = [], []
        self._puts = load(self, self._puts, self._sent, self._owners)
        return self._sent

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Open the queue again when something of it is missing or full."""
        return self._owners[index].mend(self._sent[index], error)

    def applied(self, results: Sequence[Result] | None) -> None:
        """See how far the lane's counter has come."""
        note_sequence(self._puts, results)

    async def readmit(self) -> None:
        """Ask for room; its caller waits for some."""
        await readmit(self, needs_of(self._puts, {}), 0)


class AttemptSettlement(Settlement):
    """The record that a message is about to be handed over."""

    __slots__ = ("_claim",)

    def __init__(self, transaction_id: str, claim: Claim) -> None:
        super().__init__(transaction_id, claim.generation, 2 * OPERATION_WEIGHT)
        self._claim = claim

    def operations(self) -> Sequence[Operation]:
        """Assert that the item is still ours, and count."""
        claim = self._claim
        record = AttemptRecord(claim.attempts + 1, claim.id)
        checks = [Check(claim.path, claim.version)] if claim.tenure is None else claim.tenure.checks(claim)
        return [*checks, write_meta(claim, record)]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:  # noqa: ARG002
        """Only a claim that is lost is ever refused."""
        raise refusal_of(self._claim, error)

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """Count here too."""
        claim = self._claim
        claim.attempts += 1
        claim.recorded = True
        claim.meta_version = 0 if claim.meta_version is None else claim.meta_version + 1


class GhostSettlement(Settlement):
    """The removal of a lock behind which nothing can be had: its item had been consumed, or may not be read by us.

    With ``bell``, a znode is written to besides, so that idle consumers hear of it.
    """

    __slots__ = ("_bell", "_gone", "_path")

    def __init__(
        self, transaction_id: str, generation: int, path: str, gone: Callable[[], None], bell: str | None = None
    ) -> None:
        super().__init__(transaction_id, generation, 2 * OPERATION_WEIGHT)
        self._path = path
        self._gone = gone
        self._bell = bell

    def operations(self) -> Sequence[Operation]:
        """Remove the lock."""
        return [Delete(self._path)] if self._bell is None else [Delete(self._path), SetData(self._bell, b"")]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:  # noqa: ARG002
        """It is gone already."""
        self._gone()
        raise ClaimLostError(f"{self._path}: {error}")

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """The lock is gone."""
        self._gone()

    def over(self) -> None:
        """The server has removed the lock."""
        self._gone()


class HoldSettlement(Settlement):
    """What ends the hold on items: the base of commits and releases."""

    __slots__ = ("_clock", "_endings", "_now", "_owners", "_sent")

    def __init__(
        self,
        transaction_id: str,
        endings: dict[Claim, Ending],
        clock: ServerClock,
        generation: int | None,
        puts: Sequence[Put] = (),
    ) -> None:
        weight = 0
        for claim, ending in endings.items():
            weight += 3 * OPERATION_WEIGHT if ending is CONSUME else weigh_ending(claim, ending)
            for attendant in claim.store.attendants:
                weight += attendant.weight(claim, ending)
        if puts:
            super().__init__(transaction_id, generation, weight + weigh_puts(puts), stores_of(puts))
        else:
            super().__init__(transaction_id, generation, weight)
        self._endings = endings
        self._clock = clock
        self._now: int | None = None
        self._sent: list[Operation] = []
        self._owners: list[Claim | Mender] = []

    def operations(self) -> Sequence[Operation]:  # noqa: C901, PLR0912 - on every message's way: in one piece
        """End each hold."""
        sent: list[Operation] = []
        owners: list[Claim | Mender] = []
        bells: dict[str, QueueStore] = {}
        tenures: dict[Tenure, None] | None = None
        for claim, ending in self._endings.items():
            kind = ending.kind
            if claim.tenure is not None:
                tenures = tenures or {}
                tenures[claim.tenure] = None
                for owner, operation in self._end_grouped(claim, ending):
                    sent.append(operation)
                    owners.append(owner)
            elif kind in ("consume", "dead", "remove"):
                # The fence comes first: of a claim that is lost, nothing else may be what refuses.
                sent += (
                    Delete(claim.path, claim.version)
                    if claim.rest is None
                    else SetData(claim.path, claim.rest, claim.version),
                    Delete(claim.lock),
                )
                owners += (claim, claim)
                if kind == "dead":
                    sent.append(bury(claim, ending.reason, self._moment()))
                    owners.append(claim.store)
                if claim.meta_version is not None:
                    sent.append(Delete(claim.store.paths.meta(claim.id)))
                    owners.append(claim)
                if claim.fields is not None and (freed := freed_by(claim)) is not None:
                    sent.append(freed.operation)
                    owners.append(freed.owner)
            elif kind == "unlock":
                sent.append(Delete(claim.lock))
                owners.append(claim)
            else:
                for owner, operation in self._release(claim, ending):
                    sent.append(operation)
                    owners.append(owner)
                if not ending.delay:
                    bells[claim.bell] = claim.store
            for attendant in claim.store.attendants:
                for companion in attendant.companions(claim, ending, self._moment):
                    sent.append(companion.operation)
                    owners.append(companion.owner)
        for tenure in tenures or ():
            for owner, operation in tenure.lock_operations(self._endings, self._due):
                sent.append(operation)
                owners.append(owner)
        for bell, store in bells.items():
            # A watch on items sees no lock go: this write on their parent is what idle consumers hear.
            for operation in store.bell(bell, self.transaction_id):
                sent.append(operation)
                owners.append(store)
        self._sent, self._owners = sent, owners
        return sent

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """Give the claims back."""
        for claim, ending in self._endings.items():
            if claim.tenure is not None:
                claim.tenure.ended(claim, ending, self._due)
                continue
            if ending.delay and claim.store.dialect is not None:
                claim.store.keep(claim, ending.delay)
                continue
            claim.settled(back=(ending.kind == "release" and not ending.delay) or claim.rest is not None)
            if ending.kind == "release" and ending.delay:
                claim.store.retry_at(self._due(ending), claim.id)

    def over(self) -> None:
        """The server has removed the locks."""
        for claim in self._endings:
            claim.settled(back=False)

    def _mend(self, owner: Mender, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Let the owner of an operation mend what refused it. No copy can be applied any more: a new time is taken."""
        self._now = None
        return owner.mend(self._sent[index], error)

    def _release(self, claim: Claim, ending: Ending) -> Iterator[tuple[Claim | QueueStore, Operation]]:
        if ending.delay and claim.store.dialect is not None:
            yield claim, SetData(claim.path, claim.raw, claim.version)
            yield from self._count(claim, ending, None)
            return
        paths = claim.store.paths
        yield claim, guard(claim, ending)
        yield claim, Delete(claim.lock)
        due = self._due(ending) if ending.delay else None
        if due is not None:
            yield claim, Create(claim.lock, LockRecord(claim.id, claim.owner, due, ending.leased).encode())
            yield claim.store, Create(paths.due_node(due, claim.id), claim.place.encode())
        yield from self._count(claim, ending, due)

    def _count(self, claim: Claim, ending: Ending, due: int | None) -> Iterator[tuple[Claim, Operation]]:
        """Record the attempt that a release ends, or take it back."""
        if claim.handed:
            yield claim, write_meta(claim, AttemptRecord(claim.attempt, claim.id, ending.error, due))
        elif claim.recorded:
            # Counted, but nobody has seen it: what was never handed over costs no attempt.
            yield claim, write_meta(claim, AttemptRecord(claim.attempts - 1, claim.id))

    def _end_grouped(self, claim: Claim, ending: Ending) -> Iterator[tuple[Claim | Mender, Operation]]:
        """End the hold on one message of a group; what becomes of the group's lock is for the tenure to say."""
        if ending.kind == "release":
            yield claim, guard(claim, ending)
            yield from self._count(claim, ending, self._due(ending) if ending.delay else None)
            return
        yield claim, Delete(claim.path, claim.version)
        if ending.kind == "dead":
            yield claim.store, bury(claim, ending.reason, self._moment())
        if claim.meta_version is not None:
            yield claim, Delete(claim.store.paths.meta(claim.id))
        if claim.fields is not None and (freed := freed_by(claim)) is not None:
            yield freed.owner, freed.operation

    def _due(self, ending: Ending) -> int:
        return self._moment() + max(1, round(ending.delay * 1000))

    def _moment(self) -> int:
        """ZooKeeper's time when this was first sent: every repetition says the same."""
        if self._now is None:
            self._now = self._clock.now()
        return self._now


class CommitSettlement(HoldSettlement):
    """The commit of a transaction: takes, puts, rejects and releases in one."""

    __slots__ = ("_puts",)

    def __init__(
        self,
        transaction_id: str,
        endings: dict[Claim, Ending],
        puts: Sequence[Put],
        clock: ServerClock,
        generation: int | None,
    ) -> None:
        super().__init__(transaction_id, endings, clock, generation, puts)
        self._puts = puts

    def operations(self) -> Sequence[Operation]:
        """End the holds, then create the items."""
        if self._endings:
            super().operations()
        else:
            self._sent, self._owners = [], []
        if self._puts:
            self._puts = load(self, self._puts, self._sent, self._owners)
        return self._sent

    def applied(self, results: Sequence[Result] | None) -> None:
        """Give the claims back, and see how far the lanes' counters have come."""
        super().applied(results)
        if self._puts:
            note_sequence(self._puts, results)

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """A claim that is lost fails the commit; a queue that has changed is opened again."""
        owner = self._owners[index]
        if isinstance(owner, Claim):
            raise refusal_of(owner, error)
        return self._mend(owner, index, error)

    async def readmit(self) -> None:
        """Wait for room."""
        await readmit(self, needs_of(self._puts, self._endings), None)


class ReleaseSettlement(HoldSettlement):
    """Claims given back, each at once or after a delay. It always succeeds: one that was lost is left out."""

    __slots__ = ()

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Leave out the claim that is ours no more; the others go again."""
        owner = self._owners[index]
        if not isinstance(owner, Claim):
            return self._mend(owner, index, error)
        path = self._sent[index].path
        if owner.tenure is not None and path != owner.store.paths.meta(owner.id):
            # One lock for all of them: it is ours no more, or nothing can be known of it by what was refused.
            self._endings = {claim: one for claim, one in self._endings.items() if claim.tenure is not owner.tenure}
            owner.tenure.lose()
            return None
        if isinstance(error, NoNodeError) and path == owner.path and self._endings[owner].kind != "unlock":
            self._endings[owner] = UNLOCK
            return None
        if path == owner.store.paths.meta(owner.id):
            # Somebody tampered with the count, the lock is ours all the same: let it go, whatever the count says.
            owner.meta_version = None if isinstance(error, NoNodeError) else -1
            return None
        del self._endings[owner]
        owner.settled(back=True)  # whoever forced it open may have left it free
        return None


def bury(claim: Claim, reason: str, moment: int) -> Operation:
    """Create the dead letter of an item."""
    died = DeadLetter(reason, claim.attempt if claim.handed else claim.attempts, moment)
    enqueued = claim.created if claim.header.enqueued_at is None else claim.header.enqueued_at
    header = replace(claim.header, enqueued_at=enqueued, dead=died)
    if claim.store.dialect is not None:
        header = replace(header, unknown={FOREIGN_NAME: claim.name})
    return Create(claim.store.dead(claim), encode(claim.body, header))


def guard(claim: Claim, ending: Ending) -> Operation:
    """Assert that the claim is still ours.

    A release that leaves a record of attempts behind raises the item's version, so that an item at version 0 of a
    queue that does not count hand-overs has none, and its claim need not read any. The end of a delay raises the
    version of the item that waited for it, not of those behind that one in its group.
    """
    if ending.rewrite is not None:
        return SetData(claim.path, ending.rewrite, claim.version)
    if claim.handed and (not ending.delay or claim.tenure is not None):
        return SetData(claim.path, claim.raw, claim.version)
    return Check(claim.path, claim.version)


def write_meta(claim: Claim, record: AttemptRecord) -> Operation:
    """Create the record of an item's attempts, or replace the one that was read."""
    path = claim.store.paths.meta(claim.id)
    if claim.meta_version is None:
        return Create(path, record.encode())
    return SetData(path, record.encode(), claim.meta_version)


def refusal_of(claim: Claim, error: ZooKeeperError) -> QueueError:
    """Say why a claim refused a commit."""
    if isinstance(error, NoAuthError):
        return denied(claim.store.name, error)
    return ClaimLostError(
        f"message {claim.id} of queue {claim.store.name!r} was forced open or taken over by another consumer "
        f"({error}); nothing of the transaction was applied, and that consumer goes on with it"
    )


def exhausted(policy: Policy, attempts: int, error: str | None) -> Ending:
    """Say how a message ends that has used up its attempts."""
    reason = f"handed over {attempts} of {policy.limit} times without success"
    reason = f"{reason}; at last: {error}" if error else reason
    if policy.exhausted == "drop":
        return Ending("consume", reason=reason, outcome=End.FAILED)
    return Ending("dead", reason=reason)


def note_sequence(puts: Sequence[Put], results: Sequence[Result] | None) -> None:
    """Tell the queues of the items put, which are the last of what was sent, where their sequences have got to."""
    if results is not None:
        live = [put for put in puts if put.plan is None or not put.plan.dropped]
        for put, path in zip(live, results[len(results) - len(live) :], strict=True):
            if isinstance(path, str):
                put.store.note_sequence(path)


def load(
    settlement: Settlement, puts: Sequence[Put], sent: list[Operation], owners: list[Claim | Mender] | list[Mender]
) -> Sequence[Put]:
    """Append the operations that puts are now, the creates last, and who answers for each; return the puts as sent."""
    start = len(sent)
    for put in puts:
        if put.plan is not None or put.store.shape is not None:
            del sent[start:], owners[start:]
            return _load_planned(settlement, puts, sent, owners)
        sent.append(create(put))
        owners.append(put.store)
    return puts


def _load_planned(
    settlement: Settlement, puts: Sequence[Put], sent: list[Operation], owners: list[Claim | Mender] | list[Mender]
) -> Sequence[Put]:
    shaped = [put if put.store.shape is None else put.store.shape(put) for put in puts]
    live = [put for put in shaped if put.plan is None or not put.plan.dropped]
    settlement.plans = tuple(put.plan for put in shaped if put.plan is not None)
    for put in live:
        if put.plan is not None:
            for companion in put.plan.companions:
                sent.append(companion.operation())
                owners.append(companion)
    for put in live:
        sent.append(create(put))
        owners.append(put.store)
    return shaped


def create(put: Put) -> Operation:
    """Create an item, in the lane whose turn it is or where its plan says."""
    store, plan = put.store, put.plan
    if plan is None or plan.place is None:
        path = f"{store.paths.at(store.next_lane())}/{put.prefix}"
    else:
        path = store.paths.at(plan.place.path(put.prefix))
    return Create(path, put.data, sequential=True)


def stores_of(puts: Sequence[Put]) -> tuple[QueueStore, ...]:
    """The queues put to, each once."""
    if len(puts) == 1:
        return (puts[0].store,)
    return tuple(dict.fromkeys(put.store for put in puts))


def weigh_puts(puts: Sequence[Put]) -> int:
    """About how many bytes these take in a multi."""
    weight = 0
    for put in puts:
        weight += len(put.data) + 2 * OPERATION_WEIGHT
        if put.plan is not None:
            weight += put.plan.weight
    return weight


def weigh_ending(claim: Claim, ending: Ending) -> int:
    """About how many bytes the end of a hold takes in a multi."""
    if ending.kind == "dead":
        return len(claim.body) + 5 * OPERATION_WEIGHT
    if ending.rewrite is not None:
        return len(ending.rewrite) + 5 * OPERATION_WEIGHT
    if ending.kind == "release" and claim.handed and (not ending.delay or claim.tenure is not None):
        return len(claim.raw) + 5 * OPERATION_WEIGHT
    return 5 * OPERATION_WEIGHT if ending.delay else 3 * OPERATION_WEIGHT
