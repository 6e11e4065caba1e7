"""Everything aiozkqueue raises and warns of.

QueueError
├── NotCommittedError            nothing of the commit was applied; doing the work again is safe
│   ├── SessionExpiredError      the ZooKeeper session that held the claims is over
│   ├── ClaimLostError           the claim was forced open or taken over
│   ├── ItemNotEmptyError        znodes lie below the message's item, so ZooKeeper does not delete it
│   ├── TransactionTooLargeError more than one ZooKeeper request, or one session's locks, can hold
│   ├── QueueFullError           the queue is at its limit
│   ├── ConflictError            what the commit was to change has been taken or changed by others first
│   └── DuplicateKeyError        the unique key is waiting already
├── OutcomeUnknownError          the commit is still being found out; `session.outcome(id)` will tell
├── ConnectionLostError          no server could be reached in the time given
├── CheckpointError              the checkpoint of a Spark stream does not belong to the ledger
│   └── UnreadBatchError         Spark committed a batch that no task has read
├── AccessDeniedError            ZooKeeper refused the credentials, or a znode's ACL refused the access
├── ConfigConflictError          another policy or configuration has been chosen for this queue
├── AlreadyExistsError           a job, a notification queue or a subscriber group of this name is there already
├── NotFoundError                (LookupError) there is no job, notification queue or subscriber group of this name
├── UnknownMoveError             (LookupError) there is no move of this reference
├── MissingExtraError            (ModuleNotFoundError) what an extra brings is not installed, or in another version
├── TransactionClosedError       (RuntimeError) the transaction or delivery has been settled already
├── SessionClosedError           (RuntimeError) the session has been closed
├── WrongLoopError               (RuntimeError) used on another event loop, or in a forked child
├── PayloadError                 (ValueError) the value does not fit the queue's type, or the payload does not decode
├── MessageTooLargeError         (ValueError) the message is larger than ZooKeeper takes
├── InvalidNameError             (ValueError) not a name for a queue
└── InvalidOptionError           (ValueError) an option is out of range, of the wrong type, or not supported
    └── InvalidScheduleError     no cron expression, no time zone, or a date that never comes

Retry, Reject                    (Exception) raised *by* handlers, to say how a delivery ends
UncommittedWarning, DirectPutWarning, ImplicitSettleWarning, BlockedLoopWarning      (UserWarning)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import timedelta


class QueueError(Exception):
    """The root of what aiozkqueue raises."""


class NotCommittedError(QueueError):
    """The commit did not happen, none of it: doing the work again is safe. The subclass says why."""


class SessionExpiredError(NotCommittedError):
    """The ZooKeeper session that held the claims is over; the messages go to other consumers."""


class ClaimLostError(NotCommittedError):
    """A claim was forced open or taken over; the message belongs to another consumer."""


class ItemNotEmptyError(NotCommittedError):
    """A message cannot be removed: somebody has created znodes below its item, and ZooKeeper deletes no such znode.

    The message comes again after a growing delay, up to one hour. Delete what lies below the item to end this.
    """

    def __init__(self, message: str, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class TransactionTooLargeError(NotCommittedError):
    """The transaction is larger than one ZooKeeper request, or holds more locks than a session may."""


class QueueFullError(NotCommittedError):
    """The queue is at its limit and had no room in the time given."""


class ConflictError(NotCommittedError):
    """Others were first with what the commit was to change: they took, replaced or removed it. Do the work again."""


class DuplicateKeyError(NotCommittedError):
    """A message with this unique key is waiting already."""


class OutcomeUnknownError(QueueError):
    """Whether the commit was applied is not known yet; ``await session.outcome(error.transaction_id)`` tells."""

    def __init__(self, message: str, transaction_id: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class ConnectionLostError(QueueError):
    """No ZooKeeper server could be reached in the time given."""


class CheckpointError(QueueError):
    """A Spark stream's checkpoint does not belong to the ledger of its group; no message was acknowledged."""


class UnreadBatchError(CheckpointError):
    """Spark committed a batch that no task of the query has read; its messages stay in the queue."""


class AccessDeniedError(QueueError):
    """ZooKeeper refused the credentials, or a znode's ACL refuses this user."""


class ConfigConflictError(QueueError):
    """The queue's stored configuration says otherwise; `Queue.configure` changes it."""


class AlreadyExistsError(QueueError):
    """A job, a notification queue or a subscriber group of this name is there already."""


class NotFoundError(QueueError, LookupError):
    """There is no job, notification queue or subscriber group of this name."""


class MissingExtraError(QueueError, ModuleNotFoundError):
    """A package that an extra brings is not installed, or in another version; the text says which, and what to do."""


class TransactionClosedError(QueueError, RuntimeError):
    """The transaction or delivery has been committed, rolled back or rejected already."""


class SessionClosedError(QueueError, RuntimeError):
    """The session has been closed."""


class WrongLoopError(QueueError, RuntimeError):
    """The session belongs to another event loop, or to the parent of this process; or no loop of asyncio's runs."""


class PayloadError(QueueError, ValueError):
    """The value does not fit the queue's type, or a stored payload does not decode."""


class MessageTooLargeError(QueueError, ValueError):
    """The message is larger than ZooKeeper stores in one znode."""


class InvalidNameError(QueueError, ValueError):
    """Not a name a queue can have."""


class InvalidOptionError(QueueError, ValueError):
    """An option is out of range, of the wrong type, or not supported."""


class InvalidScheduleError(InvalidOptionError):
    """No cron expression, no time zone that is known here, or one whose date never comes."""


#: The delays of killbill-queue's scheduled retries: 5 and 15 minutes, 1, 6 and 24 hours.
RETRY_SCHEDULE: Final = (300.0, 900.0, 3600.0, 21_600.0, 86_400.0)


class Retry(Exception):  # noqa: N818 - handlers raise it to say how a delivery ends; it reports no error
    """Raise in a handler: roll the delivery back and offer it again after ``delay`` seconds (None: the policy's).

    With a ``schedule`` (seconds, `RETRY_SCHEDULE` for one) the n-th retry comes ``schedule[n - 1]`` after the message's
    own date: when it was put, or, for one that was put with a delay, when it was due. When the schedule is used up, the
    message goes to the dead letters, and before that ``exhausted(delivery)`` is awaited: what it puts is committed with
    the dead letter, all or nothing. If that commit fails, or the process dies before it, the message is handed over
    again, which calls it again.

    The schedule replaces the limit of `ConsumeTimes`. That limit comes on top of the schedule for hand-overs that end
    in a crash or in another error, also those of ``exhausted``. `ConsumeOnce` allows no retry: ``exhausted`` is called,
    and the message goes to the dead letters. n counts the hand-overs that are recorded: see `Message.attempt`.

    ``headers`` are kept for the next attempt, over the message's own.
    """

    def __init__(
        self,
        *,
        delay: float | timedelta | None = None,
        schedule: Sequence[float | timedelta] | None = None,
        exhausted: Callable[[Any], Awaitable[None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        wait = f"{delay} s" if isinstance(delay, int | float) else delay
        super().__init__("retry" if delay is None else f"retry after {wait}")
        if schedule is not None and delay is not None:
            msg = "give Retry a delay or a schedule, not both"
            raise InvalidOptionError(msg)
        if exhausted is not None and schedule is None:
            msg = "exhausted= is called when a schedule is used up: give Retry a schedule"
            raise InvalidOptionError(msg)
        self.delay = delay
        self.schedule = schedule
        self.exhausted = exhausted
        self.headers = headers


class Reject(Exception):  # noqa: N818 - as Retry
    """Raise in a handler: put the message into the dead letters, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UncommittedWarning(UserWarning):
    """``session.transaction()`` was left cleanly, without a commit, and undid takes or puts."""


class DirectPutWarning(UserWarning):
    """``await queue.put()`` inside an open transaction is immediate and not part of it."""


class ImplicitSettleWarning(UserWarning):
    """A delivery that the loop settled by itself could not be committed; it comes again."""


class BlockedLoopWarning(UserWarning):
    """The event loop was blocked for a third of the session timeout or more; at the whole of it, claims are lost."""


class UnknownMoveError(QueueError, LookupError):
    """There is no move of this reference: it was never begun here, or ended long ago."""

    def __init__(self, reference: object) -> None:
        super().__init__(f"there is no move {reference!r}; list those that there are with `session.moves.all()`")
        self.reference = reference
