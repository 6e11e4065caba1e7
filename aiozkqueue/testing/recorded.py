"""Deliveries without a server: call a handler with one, then examine its outcome.

``d = delivery(Order(id=1))``, ``await handler(d)``, then ``d.puts`` and ``d.outcome``. Puts are checked as in a real
delivery, and settling follows the same states and raises the same errors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast

from aiozkqueue.arguments import positive, text
from aiozkqueue.codec import codec_of
from aiozkqueue.errors import InvalidOptionError, Reject, Retry, TransactionClosedError
from aiozkqueue.layout import EMPTY_HEADER, IdSource, check_queue_name
from aiozkqueue.operations.history import milliseconds
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.queue.message import Content
from aiozkqueue.queue.options import PutOptions
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.queue.put.prepare import check_and_encode
from aiozkqueue.runtime.sizes import MESSAGE_MARGIN
from aiozkqueue.session.delivery import SETTLED_HINT, Delivery, retry_delay
from aiozkqueue.session.failures import decision_of
from aiozkqueue.session.internals import was_entered
from aiozkqueue.session.queue import Queue
from aiozkqueue.zookeeper.wire import MAX_REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime
    from typing import Unpack

    from typing_extensions import TypeForm

    from aiozkqueue.codec import Codec
    from aiozkqueue.layout.replies import ReplyAddress
    from aiozkqueue.queue.destination import Destination

T = TypeVar("T")

_ids = IdSource()


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """A message that the handler put."""

    queue: str
    value: T
    """The value, unchanged."""
    options: PutOptions


class _Record:
    """Settles in memory, by the rules of a real delivery."""

    def __init__(self, what: str, attempt: int, date: int) -> None:
        self._what = what
        self._attempt = attempt
        self._date = date
        self.outcome: Outcome = Outcome.OPEN
        self.lost = False
        self.once = False
        self.puts: list[Put[Any]] = []
        self.replies: list[Any] = []
        self.delay: float | None = None
        self.reason: str | None = None

    def put(self, queue: Destination[Any] | str, value: object, options: Mapping[str, Any]) -> str:
        name = check_and_encode(queue, value, options, MAX_REQUEST - MESSAGE_MARGIN).queue
        self._require_open()
        given: PutOptions = {**options}  # type: ignore[typeddict-item]  # `check` has seen to it
        self.puts.append(Put(name, value, given))
        return _ids.next()

    def reply(self, address: ReplyAddress, value: object) -> None:  # noqa: ARG002 - the protocol's
        self._require_open()
        codec_of("reply", type(value), {}).encode(value, "reply")
        self.replies[:] = [value]

    async def commit(self, timeout: float | None) -> None:  # noqa: ARG002 - the protocol's
        self._require_open()
        self.outcome = Outcome.COMMITTED

    async def rollback(self, delay: float | None) -> None:
        if self.outcome is Outcome.ROLLED_BACK:
            return
        self._require_open()
        self._drop()
        self.delay = delay
        self.outcome = Outcome.ROLLED_BACK

    async def reject(self, reason: str) -> None:
        self._require_open()
        self._drop()
        self.reason = reason
        self.outcome = Outcome.COMMITTED

    async def give_up(self, reason: str, exhausted: Callable[[], Awaitable[None]], cause: BaseException) -> None:  # noqa: ARG002 - the protocol's
        self._drop()
        try:
            await exhausted()
        except BaseException as error:
            if self.outcome is Outcome.OPEN:
                await self.rollback(None if isinstance(error, Exception) else 0)
            raise  # a listener would log it
        if self.outcome is Outcome.OPEN:
            self.reason = reason
            self.outcome = Outcome.COMMITTED

    async def settle_failed(self, error: BaseException) -> None:
        if isinstance(error, Retry):
            await self.rollback(retry_delay(error, self._attempt, self._date, time.time_ns() // 1_000_000))
        elif isinstance(error, Reject):
            await self.reject(error.reason)
        else:
            await self.rollback(None if isinstance(error, Exception) else 0)

    def _drop(self) -> None:
        self.puts.clear()
        self.replies.clear()

    def _require_open(self) -> None:
        if self.outcome is not Outcome.OPEN:
            raise TransactionClosedError(f"{self._what} is already {self.outcome.value}; {SETTLED_HINT}")


class RecordedDelivery(Delivery[T]):
    """A delivery that records its puts and its outcome; made by `delivery`."""

    __slots__ = ("_record",)

    def __init__(self, content: Content, codec: Codec[T], record: _Record, value: T) -> None:
        super().__init__(content, codec, record, value)
        self._record = record

    @property
    def outcome(self) -> Outcome:
        """The outcome of the delivery.

        A listener commits a delivery that its handler returns unsettled, so an unsettled delivery reads as committed
        from the start. While `handle`, or an ``async with`` of the handler, manages the delivery, it reads as open.
        """
        recorded = self._record.outcome
        return Outcome.COMMITTED if recorded is Outcome.OPEN and not was_entered(self) else recorded

    @property
    def settled(self) -> bool:
        """Whether it has actually been committed, rolled back or rejected; False if a listener would still do so."""
        return self._record.outcome is not Outcome.OPEN

    @property
    def puts(self) -> list[Put[Any]]:
        """The messages that its commit creates, in order; empty after a rollback or rejection."""
        return self._record.puts

    @property
    def replied(self) -> list[Any]:
        """The value that the handler has replied with, in a list; empty if there is none, or after a rollback."""
        return self._record.replies

    @property
    def retry_delay(self) -> float | None:
        """Seconds until redelivery if it was rolled back with a delay; None: the policy's delay."""
        return self._record.delay

    @property
    def reason(self) -> str | None:
        """The reason why it was dead-lettered; None if it was not."""
        return self._record.reason


class MessageFields(TypedDict, total=False):
    """The properties of a delivery of `delivery` besides its value. Each has a default."""

    id: str
    """The id of the message; by default a new one."""
    attempt: int
    """The number of the attempt, from 1; default: 1."""
    key: str | None
    """As in `PutOptions`, like the next four."""
    group: str | None
    priority: int
    headers: Mapping[str, str] | None
    tags: Mapping[str, str | int] | None
    enqueued_at: datetime
    """When the message was put, with a time zone; by default now."""
    due: datetime | None
    """When the message became available, with a time zone; default: None."""


def delivery(value: T, *, queue: str | Queue[T] = "test", **fields: Unpack[MessageFields]) -> RecordedDelivery[T]:
    """Create a delivery of a value, without a server.

    Args:
        value: the value of the message.
        queue: its queue, from `queue` or an application, whose type the value must have; or only the name.
        fields: see `MessageFields`.

    Raises:
        InvalidNameError: not a valid queue name.
        InvalidOptionError: pydantic does not support the value's type, a field is invalid, or two contradict each
            other as they would in a put.
        PayloadError: the value is not valid, or not of the queue's type.
        MessageTooLargeError: the value exceeds ZooKeeper's limit.
    """
    if not isinstance(cast("object", queue), str | Queue):
        msg = f"queue takes a queue or its name, not {type(queue).__name__}"
        raise InvalidOptionError(msg)
    source: Queue[T] = _of_type(queue, type(value)) if isinstance(queue, str) else queue
    if unknown := fields.keys() - MessageFields.__annotations__.keys():
        msg = f"delivery has no {', '.join(sorted(unknown))}; it has {', '.join(MessageFields.__annotations__)}"
        raise InvalidOptionError(msg)
    options = {name: value for name, value in fields.items() if name in PutOptions.__annotations__}
    limit = MAX_REQUEST - MESSAGE_MARGIN
    put_at, due = fields.get("enqueued_at"), fields.get("due")
    content = Content(
        queue=source.name,
        id=_ids.next() if (given_id := fields.get("id")) is None else text(given_id, "id", "the id of the message"),
        body=check_and_encode(source, value, {}, limit).data,
        header=check_and_encode(source, value, options, limit).header or EMPTY_HEADER,
        attempt=positive(fields.get("attempt", 1), "attempt"),
        created=time.time_ns() // 1_000_000 if put_at is None else milliseconds(put_at, "enqueued_at"),
        due=None if due is None else milliseconds(due, "due"),
    )
    date = content.created if content.due is None else content.due
    record = _Record(f"message {content.id} of queue {source.name!r}", content.attempt, date)
    return RecordedDelivery(content, binding_of(source).codec, record, value)


def _of_type(name: str, of: TypeForm[T]) -> Queue[T]:
    """Return a queue for values of one type."""
    check_queue_name(name)
    return Queue(None, name, codec_of(name, of, {}))


def queue(name: str, type: TypeForm[T]) -> Queue[T]:
    """Create a queue for the puts of a handler under test. It has no session: methods that need one raise.

    Raises:
        InvalidNameError: not a valid queue name.
        InvalidOptionError: pydantic does not support the type.
    """
    return _of_type(name, type)


async def handle(handler: Callable[[Delivery[T]], Awaitable[None]], delivery: RecordedDelivery[T]) -> Outcome:
    """Call a handler and settle as a listener does, and return the outcome.

    The delivery is committed when the handler returns; `Retry` and `Reject` settle it and are not raised. Any other
    exception rolls the delivery back and is raised here; a listener would log it.
    """
    try:
        async with delivery:
            await handler(delivery)
    except Exception as error:
        if decision_of(error) is None:
            raise
    return delivery.outcome
