"""How the hold on an item ends, and which operations that takes."""

from __future__ import annotations

from dataclasses import replace
from random import random
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiozkqueue.errors import ClaimLostError, InvalidOptionError, ItemNotEmptyError, NotCommittedError, QueueError
from aiozkqueue.layout import AttemptRecord, DeadLetter, End, encode
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import BadVersionError, Check, Create, NoAuthError, NoNodeError, NotEmptyError, SetData

from .write import OPERATION_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

#: The longest time in seconds for which a message that cannot be removed is left alone.
ASIDE = 3600.0
#: The field of a dead letter's header that says what it was called in another program's queue.
FOREIGN_NAME = "name"


class Disposition(NamedTuple):
    """How the hold on one item ends, in a commit or in a release."""

    kind: Literal["consume", "release", "dead", "unlock", "remove"]
    """To unlock is to remove the lock and nothing else: somebody who did not hold the item has deleted it."""
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    leased: bool = False
    """Whether a release with a delay leaves it to somebody who handles it until then."""
    outcome: End | None = None
    """What a history says of it; None: finished, or dead-lettered."""
    rewrite: bytes | None = None
    """What a release leaves the item with; None: as it is."""
    forced_version: int = -1
    """The version of the folder of locks while the lock was seen to be ours, where there is no item to be its fence."""
    left: bool = False
    """Whether the item is still there when only its lock is removed."""


CONSUME = Disposition("consume")
#: Gone for good, by an operator's will.
REMOVED = Disposition("remove")
RELEASE = Disposition("release")


def bury(claim: Claim, reason: str, moment: int) -> Operation:
    """Create the dead letter of an item."""
    died = DeadLetter(reason, claim.attempt if claim.handed else claim.attempts, moment)
    enqueued = claim.created if claim.header.enqueued_at is None else claim.header.enqueued_at
    header = replace(claim.header, enqueued_at=enqueued, dead=died)
    if claim.store.dialect is not None:
        header = replace(header, unknown={FOREIGN_NAME: claim.name})
    return Create(claim.store.dead(claim), encode(claim.body, header))


def guard(claim: Claim, disposition: Disposition) -> Operation:
    """Assert that the claim is still ours.

    A release that leaves a record of attempts behind raises the item's version, so that an item at version 0 of a
    queue that does not count hand-overs has none, and its claim need not read any. The end of a delay raises the
    version of the item that waited for it, not of those behind that one in its group.
    """
    data = _left_with(claim, disposition)
    return Check(claim.path, claim.version) if data is None else SetData(claim.path, data, claim.version)


def _left_with(claim: Claim, disposition: Disposition) -> bytes | None:
    """What a release writes to the item; None: nothing."""
    if disposition.rewrite is not None:
        return disposition.rewrite
    return claim.raw if claim.handed and (not disposition.delay or claim.group_lock is not None) else None


def write_meta(claim: Claim, record: AttemptRecord) -> Operation:
    """Create the record of an item's attempts, or replace the one that was read."""
    path = claim.store.paths.meta(claim.id)
    if claim.meta_version is None:
        return Create(path, record.encode())
    return SetData(path, record.encode(), claim.meta_version)


def refusal_of(claim: Claim, operation: Operation, error: ZooKeeperError) -> QueueError:
    """Say why a claim refused a commit."""
    if isinstance(error, NoAuthError):
        return denied(claim.store.name, error)
    if isinstance(error, NotEmptyError):
        return obstructed_by(claim.store.name, claim.id, operation.path)
    if not isinstance(error, NoNodeError | BadVersionError):
        return NotCommittedError(
            f"message {claim.id} of queue {claim.store.name!r}: ZooKeeper refused the commit: {error}; "
            "nothing of it was applied"
        )
    return ClaimLostError(
        f"message {claim.id} of queue {claim.store.name!r} was forced open or taken over by another consumer "
        f"({error}); nothing of the transaction was applied, and that consumer goes on with it"
    )


def obstructed_by(queue: str, message_id: str, path: str) -> ItemNotEmptyError:
    """Make the error for a message that somebody has created znodes below."""
    return ItemNotEmptyError(
        f"message {message_id} of queue {queue!r} cannot be removed: there are znodes below it, at {path}; "
        "nothing that was asked for with it was applied; delete them, and it can be settled",
        message_id,
    )


def aside(attempt: int) -> float:
    """Seconds after which a message is offered again that could not be removed, by the number of its hand-overs."""
    return min(ASIDE, 8.0 ** min(attempt - 1, 10))


def exhausted(claim: Claim, error: str | None) -> Disposition:
    """Say how a message ends that has used up its attempts."""
    policy = claim.store.policy
    attempts = claim.attempt if claim.handed else claim.attempts
    reason = f"handed over {attempts} of {policy.allowed(claim.retries)} times without success"
    reason = f"{reason}; at last: {error}" if error else reason
    if policy.exhausted == "drop":
        return Disposition("consume", reason=reason, outcome=End.FAILED)
    return Disposition("dead", reason=reason)


def release_disposition(
    claim: Claim, delay: float | None, error: str | None, random: Callable[[], float] = random
) -> Disposition:
    """Say how a claim that was handed over ends when the work is undone: pure, by the queue's policy."""
    policy = claim.store.policy
    if claim.handed and claim.used_up:
        return exhausted(claim, error)
    if delay is None:
        delay = policy.backoff.delay(claim.attempt, random)
    return Disposition("release", delay=delay, error=error)


def fate(disposition: Disposition) -> str:
    """Say in the words of the log what becomes of a message that was handed over and not done."""
    if disposition.kind == "dead":
        return "a dead letter"
    if disposition.kind == "consume":
        return "dropped"
    return f"again after {round(disposition.delay, 3):g} s" if disposition.delay else "again at once"


def refuse_to_overtake(what: str, dispositions: Mapping[Claim, Disposition]) -> None:
    """A message that is given back comes again before those of its group that were put after it.

    Raises: InvalidOptionError.
    """
    for group_lock in {claim.group_lock: None for claim in dispositions if claim.group_lock is not None}:
        kinds = [dispositions[claim].kind for claim in group_lock.live if claim in dispositions]
        if "release" in kinds and set(kinds[kinds.index("release") :]) != {"release"}:
            msg = (
                f"{what}: it gives back a message and ends a later one of the same group, which would "
                "overtake it; release the later ones too"
            )
            raise InvalidOptionError(msg)


def weigh_disposition(claim: Claim, disposition: Disposition) -> int:
    """About how many bytes the end of a hold takes in a multi."""
    if disposition.kind == "dead":
        return len(claim.body) + 5 * OPERATION_WEIGHT
    if disposition.kind == "release" and (data := _left_with(claim, disposition)) is not None:
        return len(data) + 5 * OPERATION_WEIGHT
    return 5 * OPERATION_WEIGHT if disposition.delay else 3 * OPERATION_WEIGHT
