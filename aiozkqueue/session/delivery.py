"""Deliveries: messages given to a handler, with the means to settle them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, overload

from aiozkqueue.arguments import required_seconds, seconds
from aiozkqueue.codec import codec_of
from aiozkqueue.errors import InvalidOptionError, QueueError, Reject, Retry
from aiozkqueue.layout import ConsumeOnce, ItemName, encode
from aiozkqueue.layout.replies import REPLY_TO, ReplyAddress
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.queue.message import Message, content_of
from aiozkqueue.queue.options import reason_text
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.replies.reply import Reply
from aiozkqueue.runtime.exception_groups import only_of
from aiozkqueue.runtime.sizes import too_large

from .cancellations import foreign_cancellations
from .failures import describe
from .undo import commit_or_undo, undo
from .unit_of_work import UnitOfWork, current_work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Unpack

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.codec import Codec
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.message import Content
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.state.claim import Claim

    from .core import SessionCore

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SETTLED_HINT = (
    "a listener settles a delivery when its handler has returned, and a loop when it asks for the next one; settle it "
    "before that, in any task; in a loop, keep it inside `async with delivery`, or use consume(settle='explicit')"
)


class Settling(Protocol):
    """The operations that settle a delivery, real or recorded for a test."""

    @property
    def outcome(self) -> Outcome:
        """The outcome."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be lost."""
        ...

    @property
    def once(self) -> bool:
        """Whether the policy allows a single delivery and no retry, not even a scheduled one."""
        ...

    def put(self, queue: Destination[Any] | str, value: object, options: Mapping[str, Any]) -> str:
        """Add a put; return its id."""
        ...

    def reply(self, address: ReplyAddress, value: object) -> None:
        """Send a reply with the commit."""
        ...

    async def commit(self, timeout: float | None) -> None:
        """Commit."""
        ...

    async def rollback(self, delay: float | None) -> None:
        """Roll back."""
        ...

    async def reject(self, reason: str) -> None:
        """Move the message to the dead letters."""
        ...

    async def settle_failed(self, error: BaseException) -> None:
        """Settle the message according to the error that ended the handler."""
        ...

    async def give_up(self, reason: str, exhausted: Callable[[], Awaitable[None]], cause: BaseException) -> None:
        """Dead-letter the message of a handler whose scheduled retries are used up.

        The handler's puts are dropped. ``exhausted`` is called first, and its puts are stored with the dead letter.
        ``reason`` is stored, and ``cause`` is the exception for the log.
        """
        ...


class Delivery(Message[T_co]):
    """A message that is being handled.

    ``async with delivery:`` commits on success and rolls back on an exception. The messages that `put` collects are
    created by the same commit that removes the message. A delivery holds no reference to its consumer.
    """

    __slots__ = ("_entered", "_outer", "_settling")

    def __init__(self, content: Content, codec: Codec[T_co], settling: Settling, value: object) -> None:
        super().__init__(content, codec, value)
        self._settling = settling
        self._entered: bool = False
        """Whether an ``async with`` block settles it."""

    @property
    def _work(self) -> UnitOfWork:
        """Its unit of work. Raises: InvalidOptionError: the delivery was made for a test."""
        if not isinstance(self._settling, WorkSettling):
            msg = f"{self!r} was made for a test: only `put` adds to it"
            raise InvalidOptionError(msg)
        return self._settling.work

    @property
    def outcome(self) -> Outcome:
        """Its outcome; a rejected delivery is `Outcome.COMMITTED`, because the move to the dead letters is a commit."""
        return self._settling.outcome

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be lost, so that a commit must fail: its ZooKeeper session has ended."""
        return self._settling.lost

    @overload
    def put(self, queue: Destination[T], value: T, **options: Unpack[PutOptions]) -> str: ...
    @overload
    def put(self, queue: str, value: bytes, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: Destination[Any] | str, value: Any, **options: Unpack[PutOptions]) -> str:
        """Put a message when this delivery commits; return its id at once, without sending anything.

        Raises: as `Transaction.put`.
        """
        return self._settling.put(queue, value, options)

    def reply(self, value: object) -> bool:
        """Reply to `Queue.call` when this delivery commits; return False, and do nothing, for a message of a plain put.

        A second reply replaces the first. The value is stored as JSON, by its own type; bytes are stored unchanged. The
        commit stores the reply and removes the message together. If the caller no longer waits, the reply is dropped.

        Raises:
            PayloadError: pydantic cannot store the value.
            MessageTooLargeError: the reply is larger than ZooKeeper accepts.
            TransactionClosedError, InvalidOptionError.
        """
        address = ReplyAddress.parse(self.headers.get(REPLY_TO))
        if address is None:
            return False
        self._settling.reply(address, value)
        return True

    async def commit(self, *, timeout: Seconds | None = None) -> None:
        """Remove the message and create the messages put, all or nothing. On return it has been applied.

        ``timeout`` is as for `Transaction.commit`.

        Raises: as `Transaction.commit`.
        """
        await self._settling.commit(seconds(timeout, "timeout"))

    async def rollback(self, *, delay: Seconds | None = None) -> None:
        """Release the message, to be redelivered after ``delay`` seconds (0: at once; None: the policy's delay).

        Raises: as `Transaction.rollback`.
        """
        await self._settling.rollback(None if delay is None else required_seconds(delay, "delay"))

    async def reject(self, reason: str) -> None:
        """Move the message to the dead letters now, and drop the puts.

        Raises: as `Transaction.commit`.
        """
        await self._settling.reject(reason_text(reason))

    def _date_retries_from(self, date: int) -> None:
        """Have schedules of retries count from a date, ms, instead of the message's own."""
        if isinstance(self._settling, WorkSettling):
            self._settling.date = date

    def _add_headers(self, headers: Mapping[str, str]) -> None:
        """Add these headers to the message if it is released."""
        if isinstance(self._settling, WorkSettling):
            self._settling.extra_headers = headers

    async def __aenter__(self) -> Self:
        self._entered = True
        if isinstance(self._settling, WorkSettling):
            self._outer: UnitOfWork | None = current_work.get()
            current_work.set(self._settling.work)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(self._settling, WorkSettling) and current_work.get() is self._settling.work:
            current_work.set(self._outer)  # it differs if the block is left in another task
        if self.outcome is not Outcome.OPEN:
            return
        if error is None:
            await self._settling.commit(None)
        else:
            await self._settle_failed(error)

    async def _settle_failed(self, error: BaseException) -> None:
        """Settle the message according to the error that ended the handler: `Retry`, `Reject`, or any other."""
        error = only_of(error)
        if not isinstance(error, Retry) or error.schedule is None:
            await self._settling.settle_failed(error)
        elif self._settling.once or self.attempt > len(error.schedule):
            reason = used_up(error, self.attempt, once=self._settling.once)
            await self._settling.give_up(reason, partial(_exhausted, error, self), error.__cause__ or error)
        else:
            await self._settling.settle_failed(error)


class WorkSettling:
    """Settles a delivery by its own unit of work."""

    __slots__ = ("_claim", "date", "extra_headers", "work")

    def __init__(self, runtime: SessionCore, claim: Claim) -> None:
        self._claim = claim
        self.date: int | None = None
        """The date from which schedules of retries count, ms; None: the message's due time, or the time of its put."""
        self.extra_headers: Mapping[str, str] = {}
        """Headers to add to the message if it is released; they are left out if they do not fit."""
        self.work: UnitOfWork = UnitOfWork(runtime, runtime.ids.next(), claim, SETTLED_HINT)

    @property
    def outcome(self) -> Outcome:
        """See `Delivery`."""
        return self.work.outcome

    @property
    def lost(self) -> bool:
        """See `Delivery`."""
        return self.work.lost

    @property
    def once(self) -> bool:
        """See `Settling`."""
        return isinstance(self._claim.state.snapshot.policy, ConsumeOnce)

    def put(self, queue: Destination[Any] | str, value: object, options: Mapping[str, Any]) -> str:
        """See `Delivery`."""
        self.work.runtime.check()
        put = prepare(self.work.runtime, queue, value, options)
        return self.work.add_put(put)

    def reply(self, address: ReplyAddress, value: object) -> None:
        """See `Delivery`."""
        runtime, queue = self.work.runtime, self._claim.state.name
        runtime.check()
        data = codec_of(queue, type(value), runtime.calls.codecs).encode(value, queue)
        if len(data) > runtime.max_message:
            raise too_large(f"queue {queue!r}: the reply", len(data), runtime.max_message)
        self.work.reply_with(Reply(address.path(runtime.root), data))

    async def commit(self, timeout: float | None) -> None:
        """See `Delivery`."""
        await commit_or_undo(self.work, timeout)

    async def rollback(self, delay: float | None) -> None:
        """See `Delivery`."""
        await self.work.rollback(delay)

    async def reject(self, reason: str) -> None:
        """See `Delivery`."""
        await self._reject(reason)

    async def settle_failed(self, error: BaseException) -> None:
        """Settle the message according to the error that ended the handler."""
        if isinstance(error, Retry):
            await self._retry(error)
        elif isinstance(error, Reject):
            await self._reject(error.reason, error)
        else:
            await undo(self.work, error, rewrite=self._released_as())

    async def give_up(self, reason: str, exhausted: Callable[[], Awaitable[None]], cause: BaseException) -> None:
        """See `Settling`. If it fails, it is repeated after the policy's delay."""
        self.work.drop_puts()
        rewrite = self._released_as()
        try:
            await exhausted()
        except BaseException as error:
            if self.work.open:
                await undo(self.work, error, rewrite=rewrite)
            if not isinstance(error, Exception):
                raise
            log.warning(
                "message %s: the function for used-up retries failed",
                self._claim.id,
                exc_info=error,
                extra=self._claim.log_ids(self.work.id),
            )
            return
        if self.work.open:
            dead = Disposition("dead", reason=reason, cause=cause)
            self.work.end(self._claim.state.name, self._claim.id, dead)
            await commit_or_undo(self.work)

    async def _reject(self, reason: str, cause: Reject | None = None) -> None:
        dead = Disposition("dead", reason=reason, cause=cause)
        self.work.end(self._claim.state.name, self._claim.id, dead)
        self.work.drop_puts()
        self._released_as()  # the dead letter has the extra headers too
        await self.work.commit()

    async def _retry(self, error: Retry) -> None:
        claim = self._claim
        try:
            if error.schedule is not None:
                await self.work.runtime.learn_time()
            own = due_date(claim) if self.date is None else self.date
            delay = retry_delay(error, claim.attempt, own, self.work.runtime.server_clock.now())
            date = retry_date(error, claim.attempt, own)
            if error.schedule is not None:
                claim.retries = len(error.schedule)
            rewrite = self._released_as(error.headers or {})
        except QueueError as refused:  # a bad option: the message is still released
            await self.work.rollback(None, describe(refused))
            raise
        except BaseException as interruption:
            await undo(self.work, interruption, rewrite=self._released_as())
            raise
        cause = error.__cause__ or error
        if not claim.used_up:
            log.info(
                "queue %s: handler asked for a retry of message %s, attempt %d: again %s%s",
                claim.state.name,
                claim.id,
                claim.attempt,
                "after the policy's delay" if delay is None else f"after {round(delay, 3):g} s",
                "" if cause is error else f"; error: {describe(cause)}",
                extra=claim.log_ids(self.work.id),
            )
        await self.work.rollback(delay, describe(cause), cause=cause, rewrite=rewrite, date=date)

    def _released_as(self, headers: Mapping[str, str] = MappingProxyType({})) -> bytes | None:
        """Return the message with the extra headers and these; without the extra ones if they do not fit.

        The dead letter keeps the same headers.

        Raises: as `_rewritten`.
        """
        try:
            return self._rewritten({**self.extra_headers, **headers})
        except QueueError as error:
            if not self.extra_headers:
                raise
            log.warning(
                "queue %s: message %s is released without the headers %s: %s",
                self._claim.state.name,
                self._claim.id,
                ", ".join(self.extra_headers),
                error,
                extra=self._claim.log_ids(self.work.id),
            )
            return self._rewritten(headers)

    def _rewritten(self, headers: Mapping[str, str]) -> bytes | None:
        """Return the message with these headers, which its dead letter keeps; None: unchanged. Raises: QueueError."""
        if not headers:
            return None
        claim, dialect = self._claim, self._claim.state.dialect
        if dialect is not None:
            msg = f"queue {claim.state.name!r}: {dialect.title()} does not store headers; raise Retry without headers="
            raise InvalidOptionError(msg)
        header = replace(claim.header, headers={**claim.header.headers, **headers})
        rewritten = encode(claim.body, header)
        claim.header = header
        return rewritten


def retry_delay(error: Retry, attempt: int, due: int, now: int) -> float | None:
    """Return the seconds until redelivery; None: the policy's delay. Pure; times in ms.

    Raises:
        InvalidOptionError: a delay is not a number of seconds.
    """
    if error.schedule is not None:
        extra = required_seconds(error.schedule[attempt - 1], f"schedule[{attempt - 1}]")
        return max(0.0, (due - now) / 1000 + extra)
    return None if error.delay is None else required_seconds(error.delay, "delay")


def retry_date(error: Retry, attempt: int, due: int) -> int | None:
    """Return the moment of the redelivery by a schedule; None: there is no schedule. Pure; times in ms.

    Raises: as `retry_delay`.
    """
    if error.schedule is None:
        return None
    return due + milliseconds_in(required_seconds(error.schedule[attempt - 1], f"schedule[{attempt - 1}]"))


def due_date(claim: Claim) -> int:
    """Return a message's own date, ms: its due time, or otherwise the time of its put."""
    name = ItemName.parse(claim.name)
    if name is not None and name.due is not None:
        return name.due
    return claim.header.put_at(claim.created)


def used_up(error: Retry, attempts: int, *, once: bool) -> str:
    """Return the reason of a dead letter whose scheduled retries are used up, or not allowed."""
    if once:
        reason = "its handler failed and asked for scheduled retries, which the queue's policy, ConsumeOnce, rules out"
    else:
        reason = f"delivered {attempts} times, including all scheduled retries, without success"
    return reason if error.__cause__ is None else f"{reason}; last error: {describe(error.__cause__)}"


async def _exhausted(error: Retry, delivery: Delivery[Any]) -> None:
    if error.exhausted is not None:
        with foreign_cancellations("the function for used-up retries"):
            await error.exhausted(delivery)


def delivery_of(runtime: SessionCore, queue: Destination[T], claim: Claim) -> Delivery[T]:
    """Return the delivery of a claim."""
    return Delivery(content_of(claim), binding_of(queue).codec, WorkSettling(runtime, claim), claim.value)
