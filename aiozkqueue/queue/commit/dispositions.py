"""Dispositions: how a claim ends, and the operations that end it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import random
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiozkqueue.errors import ClaimLostError, ItemNotEmptyError, NotCommittedError, QueueError
from aiozkqueue.layout import AttemptRecord, DeadLetter, End, encode
from aiozkqueue.layout.replies import REASONS
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
    SetData,
    ZooKeeperError,
)

from .write import OPERATION_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import Header
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import EndHook
    from aiozkqueue.zookeeper import Operation

#: Maximum seconds for which a message that cannot be removed is skipped.
LONGEST_SKIP = 3600.0
#: The field of a dead letter's header that holds the item's name in another program's queue.
FOREIGN_NAME = "name"


class Disposition(NamedTuple):
    """How the claim on one item ends, in a commit or in a release."""

    kind: Literal["consume", "release", "dead", "unlock", "remove"]
    """``unlock`` removes only the lock: another client has deleted the item."""
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    leased: bool = False
    """Whether a release with a delay leaves the message leased to a holder that handles it until then."""
    outcome: End | None = None
    """The outcome that history records; None: finished, or dead-lettered."""
    rewrite: bytes | None = None
    """The data that a release writes to the item; None: unchanged."""
    forced_version: int = -1
    """The version of the locks znode while the lock was seen to be ours; the fence if there is no item to check."""
    cause: BaseException | None = None
    """The exception for which the message is given up, for the log."""
    left: bool = False
    """Whether the item still exists when only its lock is removed."""
    replaced: bool = False
    """Whether the message continues as another item, which has its payload: it was moved or reassigned."""
    date: int | None = None
    """The moment at which a release with a delay ends, ms in ZooKeeper's time; None: ``delay`` after the release."""
    in_doubt: bool = False
    """Whether a release is sent only after a read has shown that the lock is still ours."""

    @property
    def answer(self) -> str:
        """The reason why no handler will reply to a call of the message; empty: one may reply, or has done so."""
        return "" if self.replaced else self.reason or REASONS.get(self.outcome or End.FINISHED, "")


CONSUME = Disposition("consume")
#: Removed permanently by an operator.
REMOVED = Disposition("remove", outcome=End.REMOVED)
RELEASE = Disposition("release")


def hooks_of(claim: Claim, disposition: Disposition) -> Sequence[EndHook[Claim, Disposition]]:
    """Return the features that take part in an end; the last one answers the caller if no handler will reply."""
    hooks = claim.state.snapshot.end_hooks
    answer = disposition.answer if disposition.reason or disposition.outcome else ""
    return (*hooks, claim.state.answers) if answer else hooks


def create_dead_letter(claim: Claim, reason: str, moment: int) -> Operation:
    """Return the create of an item's dead letter."""
    header = dead_header(claim, reason, moment)
    if claim.state.dialect is not None:
        header = replace(header, unknown={FOREIGN_NAME: claim.name})
    return Create(claim.state.dead_letter_path(claim.name, claim.version, claim.created), encode(claim.body, header))


def dead_header(claim: Claim, reason: str, moment: int) -> Header:
    """Return the header of a message that becomes a dead letter at a moment, ms."""
    dead = DeadLetter(reason, claim.attempts_made, moment)
    return replace(claim.header, enqueued_at=claim.header.put_at(claim.created), dead=dead)


def guard(claim: Claim, disposition: Disposition) -> Operation:
    """Return the operation that fails unless the claim is still ours.

    A release that leaves an attempt record raises the item's version. So on a queue that does not count deliveries, an
    item at version 0 has no record, and a claim need not read one. The end of a delay raises the version of the delayed
    item, but not of the items behind it in its group.
    """
    data = _left_with(claim, disposition)
    return Check(claim.path, claim.version) if data is None else SetData(claim.path, data, claim.version)


def _left_with(claim: Claim, disposition: Disposition) -> bytes | None:
    """Return the data that a release writes to the item; None: nothing is written."""
    if disposition.rewrite is not None:
        return disposition.rewrite
    return claim.raw if claim.delivered and (not disposition.delay or claim.group_lock is not None) else None


def write_meta(claim: Claim, record: AttemptRecord) -> Operation:
    """Return the operation that creates an item's attempt record, or replaces the one that was read."""
    path = claim.state.paths.meta(claim.id)
    if claim.meta_version is None:
        return Create(path, record.encode())
    return SetData(path, record.encode(), claim.meta_version)


def refusal_of(claim: Claim, operation: Operation, error: ZooKeeperError) -> QueueError:
    """Return the error for a commit that a claim's operation made fail."""
    if isinstance(error, NoAuthError):
        return access_denied(claim.state.name, error)
    if isinstance(error, NotEmptyError):
        return obstructed_by(claim.state.name, claim.id, operation.path)
    if not isinstance(error, NoNodeError | BadVersionError):
        return NotCommittedError(
            f"message {claim.id} of queue {claim.state.name!r}: ZooKeeper refused the commit: {error}; nothing was "
            "applied"
        )
    return ClaimLostError(
        f"message {claim.id} of queue {claim.state.name!r} was released by force, taken over by another consumer, or "
        f"acknowledged under an earlier lease ({error}); nothing of the transaction was applied"
    )


async def explain_loss(claim: Claim, loss: ClaimLostError) -> None:
    """Raise the error of a lost claim; if its queue was deleted since, an error that says so."""
    with suppress(QueueError, ZooKeeperError):
        if not await claim.state.exists(claim.created):
            text = f"queue {claim.state.name!r} was deleted, and message {claim.id} with it"
            loss = ClaimLostError(f"{text}; nothing of the transaction was applied")
    raise loss


def obstructed_by(queue: str, message_id: str, path: str) -> ItemNotEmptyError:
    """Return the error for a message whose znode has children."""
    return ItemNotEmptyError(
        f"message {message_id} of queue {queue!r} cannot be removed: there are znodes below it, at {path}; "
        "nothing of the commit was applied; delete these znodes, and the message can be settled",
        message_id,
    )


def exhausted(claim: Claim, error: str | None) -> Disposition:
    """Return the disposition of a message that has used up its attempts."""
    policy = claim.state.snapshot.policy
    reason = f"delivered {claim.attempts_made} of {policy.allowed(claim.retries)} times without success"
    reason = f"{reason}; last error: {error}" if error else f"{reason}; no consumer reported an error"
    if policy.exhausted == "drop":
        return Disposition("consume", reason=reason, outcome=End.FAILED, error=error)
    return Disposition("dead", reason=reason, error=error)


def release_disposition(
    claim: Claim, delay: float | None, error: str | None, random: Callable[[], float] = random
) -> Disposition:
    """Return the disposition of a delivered claim whose work is undone, by the queue's policy. Pure."""
    policy = claim.state.snapshot.policy
    if claim.delivered and claim.used_up:
        return exhausted(claim, error)
    if delay is None:
        delay = policy.backoff.delay(claim.attempt, random)
    return Disposition("release", delay=delay, error=error)


def describe_end(disposition: Disposition) -> str:
    """Describe for the log the fate of a message that was delivered and not finished."""
    if disposition.kind == "dead":
        return "a dead letter"
    if disposition.kind == "consume":
        return "dropped"
    return f"again after {round(disposition.delay, 3):g} s" if disposition.delay else "again at once"


def weigh_disposition(claim: Claim, disposition: Disposition) -> int:
    """Return the approximate size of the end of a claim in a multi, in bytes."""
    if disposition.kind == "dead":
        return len(claim.body) + 5 * OPERATION_WEIGHT
    if disposition.kind == "release" and (data := _left_with(claim, disposition)) is not None:
        return len(data) + 5 * OPERATION_WEIGHT
    return 5 * OPERATION_WEIGHT if disposition.delay else 3 * OPERATION_WEIGHT
