"""A bundle that this session has claimed, and the claims on its messages. Pure.

The record of a bundle exists from the claim to its end. **Every multi about the bundle writes or deletes the record at
the version that the multi before it has left**, and at most one such multi is in progress. So all of them are in one
order, each is composed from the outcome of all earlier ones, and a late or repeated one is refused. A session that
takes the lock away writes the record as well, so everything that the old holder sends after it is refused.

Only a claim that has sent nothing else may delete the record and keep the bundle: otherwise the record's versions
would start again from 0, and a late multi could match one. The last claim that ends deletes bundle, record and lock.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, cast

from aiozkqueue.layout import BundleName, BundleRecord, single_place
from aiozkqueue.zookeeper import NO_VERSION, Check, Delete, NotEmptyError, SetData

from .claim import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiozkqueue.queue.state.claim import EphemeralBudget
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .hooks import ItemFate
    from .queue_state import QueueState

T = TypeVar("T")


class BundleHolder(Protocol):
    """The part of a session that holds bundles."""

    @property
    def client(self) -> str:
        """The id of the session's client, which is in the locks."""
        ...

    def claim_over(self, claim: BundledClaim, fate: ItemFate) -> None:
        """Handle the end of the claim on one message."""
        ...

    def consumed(self, number: int) -> None:
        """Handle the ends of messages that were processed."""
        ...

    def returned(self, claims: Sequence[BundledClaim]) -> None:
        """Handle the return of messages that no taker has received: they are single items now."""
        ...

    def finished(self, hold: BundleHold, *, unlocked: bool) -> None:
        """Handle the end of a hold: the lock is gone; ``unlocked``: the bundle is still there."""
        ...

    def lost(self, hold: BundleHold) -> None:
        """Handle a refusal: the lock is no longer ours, or the state of the record is unknown."""
        ...


def _on_demand(compose: Callable[[BundledClaim], T]) -> T:
    """Return an attribute that is composed when it is first read: few claims of bundles need it."""
    return cast("T", cached_property(compose))


class _Changes:
    """The changes that one multi makes to a bundle."""

    __slots__ = ("attempts", "consumed", "ended", "errors", "guarded", "unlocked")

    def __init__(self) -> None:
        self.ended: int = 0
        """The messages that leave the bundle, as a bit set."""
        self.consumed: int = 0
        """Those of them that were processed, and need nothing else."""
        self.attempts: dict[int, int] = {}
        """The new numbers of counted attempts, by position."""
        self.errors: dict[int, str | None] = {}
        """The new errors of failed attempts, by position."""
        self.unlocked: bool = False
        """Whether the whole bundle is given back."""
        self.guarded: bool = False
        """Whether the multi asserts first that the bundle is held."""

    @property
    def any(self) -> bool:
        """Whether the record is changed."""
        return bool(self.ended or self.attempts or self.errors)


class BundleHold:
    """A bundle that this session has locked."""

    __slots__ = (
        "_attempts",
        "_changes",
        "_errors",
        "at_hand",
        "budget",
        "claim_id",
        "claimed_at",
        "created",
        "done",
        "generation",
        "gone",
        "holder",
        "name",
        "obstructed",
        "place",
        "size",
        "state",
        "suspended",
        "version",
    )

    def __init__(
        self,
        holder: BundleHolder,
        state: QueueState,
        place: str,
        name: BundleName,
        claim_id: str,
        *,
        generation: int,
        budget: EphemeralBudget,
        size: int,
    ) -> None:
        self.holder = holder
        self.state = state
        self.place = place
        self.name = name
        self.claim_id = claim_id
        self.generation = generation
        self.budget = budget
        self.size = size
        self.created: int = 0
        """The time of the put, ms in ZooKeeper's time."""
        self.claimed_at: int = 0
        """The time of the claim, ms in ZooKeeper's time."""
        self.version: int = 0
        """The version of the record."""
        self.done: int = 0
        """The messages that have left the bundle, as a bit set."""
        self.at_hand: list[BundledClaim] = []
        """The messages that are at hand for the next takers, in order."""
        self.gone: bool = False
        """Whether the lock is no longer ours."""
        self.obstructed: bool = False
        """Whether the bundle cannot be deleted: another program has made znodes below it."""
        self.suspended: bool = False
        """Whether no message is delivered for a while, because this user may not write the record."""
        self._attempts: dict[int, int] = {}
        self._errors: dict[int, str | None] = {}
        self._changes = _Changes()

    @property
    def id(self) -> str:
        """The bundle's id."""
        return self.name.id

    @property
    def count(self) -> int:
        """The number of messages that it was made of."""
        return self.name.size

    @property
    def with_takers(self) -> bool:
        """Whether takers have some of its messages."""
        return self.count - self.done.bit_count() > len(self.at_hand)

    @property
    def path(self) -> str:
        """The bundle's znode."""
        return self.state.paths.at(self.place)

    @property
    def lock(self) -> str:
        """The lock's znode."""
        return self.state.paths.lock(self.name.id)

    @property
    def record(self) -> str:
        """The record's znode."""
        return self.state.paths.bundle_record(self.name.id)

    def is_about(self, operation: Operation) -> bool:
        """Whether an operation is one that the claims of the bundle share."""
        return operation.path in (self.record, self.path, self.lock)

    def keeps(self, operation: Operation, error: ZooKeeperError) -> bool:
        """Whether a refusal means that the bundle has children; its last end then leaves it without messages."""
        if operation.path == self.path and isinstance(error, NotEmptyError):
            self.obstructed = True
        return self.obstructed and isinstance(error, NotEmptyError)

    @property
    def untouched(self) -> bool:
        """Whether this claim has sent nothing about the bundle so far."""
        return self.version == 0 and not self._changes.any

    # -- one multi

    def begin(self) -> None:
        """Forget the changes of an earlier composition."""
        self._changes = _Changes()

    def guard(self) -> Sequence[Operation]:
        """Return the assertion that the bundle is held, once in a multi.

        It comes before the operations that store its messages elsewhere: if the bundle is lost, those are refused too.
        """
        if self._changes.guarded or self.gone:
            return ()
        self._changes.guarded = True
        return (Check(self.record, self.version),)

    def end(self, position: int) -> None:
        """Remove a message from the bundle."""
        self._changes.ended |= 1 << position

    def consume(self, positions: int) -> None:
        """Remove messages that were processed from the bundle; ``positions`` is a bit set."""
        self._changes.ended |= positions
        self._changes.consumed |= positions

    def count_attempt(self, position: int, attempts: int) -> None:
        """Set the number of counted attempts at a message."""
        self._changes.attempts[position] = attempts

    def note_error(self, position: int, error: str | None) -> None:
        """Set the error of the last attempt at a message; None: it has none."""
        if error != self._errors.get(position):
            self._changes.errors[position] = error

    def unlock(self) -> None:
        """Give the whole bundle back, which must be untouched."""
        self._changes.unlocked = True

    def operations(self) -> Iterator[Operation]:
        """Return the operations of all changes of this multi."""
        if self.gone:
            yield Check(self.record, NO_VERSION)  # refused, with all ends of this multi
        elif self._changes.unlocked:
            yield Delete(self.record, self.version)
            yield Delete(self.lock)
        elif self.done | self._changes.ended == (1 << self.count) - 1:
            if self.obstructed:  # it stays without messages
                yield SetData(self.record, self._changed().encode(), self.version)
            else:
                yield Delete(self.record, self.version)
                yield Delete(self.path)
            yield Delete(self.lock)
        elif self._changes.any:
            yield SetData(self.record, self._changed().encode(), self.version)

    def applied(self) -> None:
        """Adopt the changes of the multi."""
        if self.gone:
            return
        if self._changes.any:
            self.version += 1
        changed, changes = self._changed(), self._changes
        self.done, self._attempts, self._errors = changed.done, dict(changed.attempts), dict(changed.errors)
        self.begin()
        if changes.consumed:
            self.holder.consumed(changes.consumed.bit_count())
        if changes.unlocked or self.done == (1 << self.count) - 1:
            self.gone = True
            self.holder.finished(self, unlocked=changes.unlocked)

    def unknown(self) -> None:
        """Give up the hold: nothing can be composed without knowing the version of the record."""
        self.lose()

    def _changed(self) -> BundleRecord:
        done = self.done | self._changes.ended
        attempts = {**self._attempts, **self._changes.attempts}
        left = {position: number for position, number in attempts.items() if number and not done >> position & 1}
        errors = {**self._errors, **self._changes.errors}
        failed = {position: error for position, error in errors.items() if error is not None and position in left}
        return BundleRecord(self.claim_id, done, left, failed)

    # -- events

    def returned(self, claims: Sequence[BundledClaim]) -> None:
        """Handle the return of messages, which has been applied, and may have ended the hold."""
        self.holder.returned(claims)

    def settled(self, claim: BundledClaim, fate: ItemFate) -> None:
        """Handle the end of the claim on one message, which has been applied."""
        if not self.gone:
            self.holder.claim_over(claim, fate)

    def over(self) -> None:
        """End the hold: the ZooKeeper session has ended, and the lock with it."""
        if not self.gone:
            self.gone = True
            self.at_hand.clear()
            self.holder.finished(self, unlocked=False)

    def lose(self) -> None:
        """End the hold: the lock has been taken away, or the state of the record is unknown."""
        if not self.gone:
            self.gone = True
            self.at_hand.clear()
            self.holder.lost(self)


class BundledClaim(Claim):
    """A message of a bundle that this session has locked.

    ``place`` and ``path`` are those of the single item that the message becomes if it leaves the bundle undecided, and
    ``lock`` is that item's lock. The sequence number is the bundle's, so the item sorts where the bundle was.
    """

    bundled: ClassVar[bool] = True
    size: int = 0
    place: str = _on_demand(lambda claim: single_place(claim.bundle.place, claim.id, claim.position))
    path: str = _on_demand(lambda claim: claim.state.paths.at(claim.place))
    lock: str = _on_demand(lambda claim: claim.state.paths.lock(claim.id))
    owner: str = _on_demand(lambda claim: claim.bundle.holder.client)
    budget: EphemeralBudget = _on_demand(lambda claim: claim.bundle.budget)

    def __init__(self, hold: BundleHold, message_id: str, data: bytes, position: int) -> None:
        self.state = hold.state
        self.id = message_id
        self.raw = data
        self.body = data
        self.generation = hold.generation
        self.bundle: BundleHold = hold
        self.position: int = position
        self.created = hold.created
        self.claimed_at = hold.claimed_at

    @property
    def plain(self) -> bool:
        """Whether the item has only its lock: never."""
        return False

    def renewed(self) -> BundledClaim:
        """Return a claim on the same message for its next delivery."""
        claim = BundledClaim(self.bundle, self.id, self.raw, self.position)
        claim.body, claim.header = self.body, self.header
        claim.attempts, claim.retries, claim.recorded = self.attempts, self.retries, self.recorded
        claim.record_refused, claim.error = self.record_refused, self.error
        return claim

    def settled(self, fate: ItemFate) -> None:
        """Record that the claim has ended, and the fate of the message."""
        self.bundle.settled(self, fate)


def bundles_of(claims: Iterable[Claim]) -> tuple[BundleHold, ...]:
    """Return the bundles that hold the messages of claims, without duplicates."""
    return tuple(dict.fromkeys(claim.bundle for claim in claims if isinstance(claim, BundledClaim)))
