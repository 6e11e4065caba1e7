"""All errors and warnings of aiozkqueue. `aiozkqueue` itself has those that programs usually handle.

QueueError
├── NotCommittedError            no part of the commit was applied; repeating the work is safe
│   ├── SessionExpiredError      the ZooKeeper session that held the claims has ended
│   ├── ClaimLostError           the claim was removed by force or taken over, or the queue deleted
│   ├── ItemNotEmptyError        the message's item has child znodes, so ZooKeeper does not delete it
│   ├── TransactionTooLargeError the transaction exceeds one ZooKeeper request, or the locks of one session
│   ├── QueueFullError           the queue is at its limit
│   ├── QueueInUseError          the queue to delete holds messages, or others consume it
│   ├── ConflictError            other clients have taken or changed data that the commit depends on
│   └── DuplicateKeyError        a message with the unique key exists already
├── OutcomeUnknownError          the commit's outcome is not known yet; `session.outcome(id)` returns it later
├── ConnectionLostError          no server could be reached in time
├── NoReplyError                 (TimeoutError) a call got no reply in time
├── GivenUpError                 the message of a call has become a dead letter, was dropped, or was removed
├── CheckpointError              the checkpoint of a Spark stream does not belong to the ledger
│   └── UnreadBatchError         Spark committed a batch that no task has read
├── AccessDeniedError            ZooKeeper refused the credentials, or an ACL or a quota refused the access
│   └── PartlyDeniedError        an ACL refuses some messages only; the operation was carried out on the others
├── NotRedrivenError             some dead letters cannot be put back; the others have been
├── ConfigConflictError          the queue has another policy or configuration
├── AlreadyExistsError           a job, a notification queue or a subscriber group of this name exists already
├── NotFoundError                (LookupError) there is no queue, job, notification queue or bus group of this name
├── UnknownMoveError             (LookupError) there is no move with this reference
├── MissingExtraError            (ModuleNotFoundError) a package of an extra is not installed, or has another version
├── TransactionClosedError       (RuntimeError) the transaction or delivery has already been settled
├── SessionClosedError           (RuntimeError) the session has been closed
├── WrongLoopError               (RuntimeError) used on another event loop, or in a forked child
├── PayloadError                 (ValueError) the value does not fit the queue's type, or the payload does not decode
├── MessageTooLargeError         (ValueError) the message exceeds ZooKeeper's limit
├── InvalidNameError             (ValueError) the name is not valid for a queue
└── InvalidOptionError           (ValueError) an option is out of range, of the wrong type, or not supported
    └── InvalidScheduleError     a cron expression or time zone is invalid, or the date never occurs

Retry, Reject                    (Exception) raised *by* handlers, to decide how a delivery ends
UncommittedWarning, DirectPutWarning, ImplicitSettleWarning, BlockedLoopWarning      (UserWarning)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from .moments import LONGEST_DELAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "BlockedLoopWarning",
    "CheckpointError",
    "ClaimLostError",
    "ConfigConflictError",
    "ConflictError",
    "ConnectionLostError",
    "DirectPutWarning",
    "DuplicateKeyError",
    "GivenUpError",
    "ImplicitSettleWarning",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidScheduleError",
    "ItemNotEmptyError",
    "MessageTooLargeError",
    "MissingExtraError",
    "NoReplyError",
    "NotCommittedError",
    "NotFoundError",
    "NotRedrivenError",
    "OutcomeUnknownError",
    "PartlyDeniedError",
    "PayloadError",
    "QueueError",
    "QueueFullError",
    "QueueInUseError",
    "Reject",
    "Retry",
    "SessionClosedError",
    "SessionExpiredError",
    "TransactionClosedError",
    "TransactionTooLargeError",
    "UncommittedWarning",
    "UnknownMoveError",
    "UnreadBatchError",
    "WrongLoopError",
]


class QueueError(Exception):
    """The base of all errors of aiozkqueue."""


class NotCommittedError(QueueError):
    """No part of the commit was applied, so repeating the work is safe. The subclass gives the reason."""


class SessionExpiredError(NotCommittedError):
    """The ZooKeeper session that held the claims has ended; the messages go to other consumers."""


class ClaimLostError(NotCommittedError):
    """A claim was removed by force or taken over, or its queue deleted: this consumer no longer holds the message."""


class ItemNotEmptyError(NotCommittedError):
    """A message cannot be removed: its item has child znodes, and ZooKeeper does not delete such a znode.

    The message is redelivered after a growing delay, up to one hour, until the child znodes are deleted.
    """

    def __init__(self, message: str, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class NoReplyError(QueueError, TimeoutError):
    """`Queue.call` got no reply in time. The message may still be handled: it is neither cancelled nor repeated."""

    def __init__(self, message: str, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class GivenUpError(QueueError):
    """The message of a `Queue.call` was given up: it has become a dead letter, was dropped, expired or was removed.

    No handler will reply. ``reason`` is the reason, as in the dead letter, up to 1000 characters.
    """

    def __init__(self, message: str, message_id: str, reason: str) -> None:
        super().__init__(message)
        self.message_id = message_id
        self.reason = reason


class TransactionTooLargeError(NotCommittedError):
    """The transaction is larger than one ZooKeeper request, or holds more locks than a session may."""


class QueueFullError(NotCommittedError):
    """The queue is at its limit, and no capacity became free in time."""


class QueueInUseError(NotCommittedError):
    """The queue to delete holds messages or dead letters, or others consume it; ``uses`` describes them."""

    def __init__(self, message: str, uses: str) -> None:
        super().__init__(message)
        self.uses: str = uses


class ConflictError(NotCommittedError):
    """Other clients have taken or changed data that the commit depends on. Repeat the work."""


class DuplicateKeyError(NotCommittedError):
    """A message with this unique key exists already, or two messages of one commit have it."""

    def __init__(self, message: str, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id
        """The id of the message that exists; None: both are of this commit."""


class OutcomeUnknownError(QueueError):
    """The outcome of a commit or a put is not known yet; ``await session.outcome(error.transaction_id)`` returns it.

    ``transaction_id`` is empty if the call may consist of several writes, such as an administrative call.
    """

    def __init__(self, message: str, transaction_id: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class ConnectionLostError(QueueError):
    """No ZooKeeper server could be reached in time."""


class CheckpointError(QueueError):
    """A Spark stream's checkpoint does not belong to the ledger of its group; no message was acknowledged."""


class UnreadBatchError(CheckpointError):
    """Spark committed a batch that no task of the query has read; its messages stay in the queue."""


class AccessDeniedError(QueueError):
    """ZooKeeper refused the credentials, or a znode's ACL or an enforced quota refused the access."""


class PartlyDeniedError(AccessDeniedError):
    """An ACL refuses this user some messages of the queue; the operation was carried out on all others.

    ``message_ids`` names the remaining messages, and ``done`` counts those on which it was carried out.
    """

    def __init__(self, message: str, message_ids: Sequence[str], done: int) -> None:
        super().__init__(message)
        self.message_ids: tuple[str, ...] = tuple(message_ids)
        self.done: int = done


class NotRedrivenError(QueueError):
    """Some dead letters cannot be put back and are unchanged; all others have been put back.

    ``errors`` has the reason of each remaining one, by its id, and ``done`` counts those that were put back.
    """

    def __init__(self, message: str, errors: Mapping[str, QueueError], done: int) -> None:
        super().__init__(message)
        self.errors: dict[str, QueueError] = dict(errors)
        self.done: int = done


class ConfigConflictError(QueueError):
    """A policy or setting differs from the stored configuration of the queue; `Queue.configure` changes it."""


class AlreadyExistsError(QueueError):
    """A job, a notification queue or a subscriber group of this name exists already."""


class NotFoundError(QueueError, LookupError):
    """There is no queue, job, notification queue or subscriber group of this name."""


class MissingExtraError(QueueError, ModuleNotFoundError):
    """A package of an extra is not installed, or has another version; the error names it, and the remedy."""


class TransactionClosedError(QueueError, RuntimeError):
    """The transaction or delivery has already been committed, rolled back or rejected."""


class SessionClosedError(QueueError, RuntimeError):
    """The session has been closed."""


class WrongLoopError(QueueError, RuntimeError):
    """The session belongs to another event loop or to the parent process, or no asyncio loop is running."""


class PayloadError(QueueError, ValueError):
    """The value does not fit the queue's type, or a stored payload or configuration does not decode."""


class MessageTooLargeError(QueueError, ValueError):
    """The message exceeds ZooKeeper's limit for one znode."""


class InvalidNameError(QueueError, ValueError):
    """The name is not valid for a queue."""


class InvalidOptionError(QueueError, ValueError):
    """An option is out of range, of the wrong type, or not supported."""


class InvalidScheduleError(InvalidOptionError):
    """A cron expression or time zone is invalid, or the date never occurs."""


#: The delays of killbill-queue's scheduled retries: 5 and 15 minutes, 1, 6 and 24 hours.
RETRY_SCHEDULE: Final = (300.0, 900.0, 3600.0, 21_600.0, 86_400.0)


class Retry(Exception):  # noqa: N818 - handlers raise it to decide how a delivery ends; it reports no error
    """Raise in a handler: roll the delivery back, and redeliver it after a delay.

    A ``schedule`` replaces the limit of `ConsumeTimes`. That limit is added to the schedule for attempts that end in a
    crash or in another error, including those of ``exhausted``. `ConsumeOnce` allows no retry: ``exhausted`` is called,
    and the message goes to the dead letters.

    Args:
        delay: the seconds until the redelivery; None: the policy's delay.
        schedule: delays in seconds, such as `RETRY_SCHEDULE`. The n-th retry comes ``schedule[n - 1]`` after the put
            or, if the message was put with a delay, after its due time. n counts the recorded attempts: see
            `Message.attempt`.
        exhausted: ``exhausted(delivery)`` is awaited when the schedule is used up, and then the message goes to the
            dead letters. The puts of ``exhausted`` are committed with the dead letter, all or nothing. If that commit
            fails, or the process dies before it, the message is redelivered, and ``exhausted`` is called again.
        headers: kept for the next attempt, where they override the message's own. Another program's queue stores none:
            the message is released after the policy's delay, and the settlement raises InvalidOptionError.

    Raises:
        InvalidOptionError: a delay is not 0 to 10**9 seconds, a header is not a str, or both ``delay`` and
            ``schedule`` are given.
    """

    def __init__(
        self,
        *,
        delay: float | timedelta | None = None,
        schedule: Sequence[float | timedelta] | None = None,
        exhausted: Callable[[Any], Awaitable[None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if delay is not None:
            _check_delay("delay", delay)
        for number, pause in enumerate(_listed(schedule)):
            _check_delay(f"schedule[{number}]", pause)
        _check_headers(headers)
        wait = f"{delay} s" if isinstance(delay, int | float) else delay
        super().__init__("retry" if delay is None else f"retry after {wait}")
        if schedule is not None and delay is not None:
            msg = "give Retry a delay or a schedule, not both"
            raise InvalidOptionError(msg)
        if exhausted is not None and not callable(cast("object", exhausted)):
            msg = f"Retry: exhausted takes an async function of the delivery, not {type(exhausted).__name__}"
            raise InvalidOptionError(msg)
        if exhausted is not None and schedule is None:
            msg = "exhausted= is called when a schedule is used up: give Retry a schedule"
            raise InvalidOptionError(msg)
        self.delay = delay
        self.schedule = schedule
        self.exhausted = exhausted
        self.headers = headers


def _listed(schedule: object) -> Sequence[object]:
    if schedule is None:
        return ()
    if isinstance(schedule, Sequence) and not isinstance(schedule, str | bytes | bytearray):
        return cast("Sequence[object]", schedule)
    raise InvalidOptionError(f"Retry: schedule takes a list of delays in seconds, not {type(schedule).__name__}")


def _check_delay(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidOptionError(f"Retry: {option} takes seconds (float or timedelta), not {type(value).__name__}")
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= number <= LONGEST_DELAY:
        raise InvalidOptionError(f"Retry: {option}={value!r}: give 0 to 10**9 seconds")


def _check_headers(headers: object) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidOptionError(f"Retry: headers takes a mapping of str to str, not {type(headers).__name__}")
    for name, text in cast("Mapping[object, object]", headers).items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise InvalidOptionError(f"Retry: header {name!r} must be a str, not {type(text).__name__}")


class Reject(Exception):  # noqa: N818 - as Retry
    """Raise in a handler: move the message to the dead letters, with this reason.

    Raises:
        InvalidOptionError: the reason is not a str.
    """

    def __init__(self, reason: str = "rejected by its handler") -> None:
        if not isinstance(cast("object", reason), str):
            msg = f"Reject: reason takes a str, not {type(reason).__name__}; use str() for an error"
            raise InvalidOptionError(msg)
        super().__init__(reason)
        self.reason = reason


class UncommittedWarning(UserWarning):
    """The block of ``transaction(autocommit=False)`` ended without a commit; its takes and puts were rolled back."""


class DirectPutWarning(UserWarning):
    """``await queue.put()`` inside an open transaction or a delivery is immediate and not part of it."""


class ImplicitSettleWarning(UserWarning):
    """A delivery that the loop settled by itself could not be committed, and is redelivered; the log has the reason."""


class BlockedLoopWarning(UserWarning):
    """The event loop was blocked for a third of the session timeout. Claims are lost after a whole timeout.

    The log has the time of each block.
    """


class UnknownMoveError(QueueError, LookupError):
    """There is no move with this reference: it was not started here, or ended long ago."""

    def __init__(self, reference: object) -> None:
        super().__init__(f"there is no move {reference!r}; list the moves with `session.admin.moves.all()`")
        self.reference = reference
