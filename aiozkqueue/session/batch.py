"""Batches: several messages for one call of a handler, with one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import anyio

from aiozkqueue.errors import InvalidOptionError, QueueError, SessionClosedError
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.queue.message import Message, content_of
from aiozkqueue.queue.put.prepare import prepare

from .delivery import delivery_of
from .failures import decision_of, failure_logged, log_unsettled
from .internals import settle_failed, work_of
from .undo import undo
from .unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from typing import Unpack

    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.state.claim import Claim

    from .core import SessionCore
    from .delivery import Delivery

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SETTLED_HINT: Final = "the listener settles a batch when its handler returns; change it before that"


class Batch(Sequence[Message[T_co]]):
    """The messages of one call of a handler: a sequence, in the order in which they were taken.

    When the handler returns, one commit removes all messages that it has not failed, and creates those that it has
    put. If the handler raises, all messages fail, and the puts are dropped.
    """

    def __init__(self, queue: str, messages: Sequence[Message[T_co]], work: UnitOfWork) -> None:
        self.queue: str = queue
        """The name of the queue."""
        self._messages = messages
        self._work = work
        self._failed: dict[str, Exception] = {}

    @overload
    def __getitem__(self, index: int) -> Message[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[T_co]]: ...
    def __getitem__(self, index: int | slice) -> Message[T_co] | Sequence[Message[T_co]]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def lost(self) -> bool:
        """Whether the messages are known to be lost, so the commit must fail: their ZooKeeper session has ended."""
        return self._work.lost

    def fail(self, message: Message[Any], error: Exception) -> None:
        """Fail one message, as if the handler had raised ``error`` for it alone: `Retry`, `Reject`, or any other.

        The message is redelivered or becomes a dead letter by the rules of a handler's exceptions, and the commit does
        not include it. A second call for a message replaces the error. If all messages fail, the puts are dropped.

        Raises:
            InvalidOptionError: the message is not of this batch, or ``error`` is not an exception.
            TransactionClosedError: the handler has returned.
        """
        self._work.require_open()
        given: object = error
        if not isinstance(given, Exception):
            msg = f"fail takes an exception, such as zq.Retry(delay=60) or the one that you caught, not {error!r}"
            raise InvalidOptionError(msg)
        if not any(message.id == member.id for member in self._messages):
            msg = f"message {message.id} of queue {message.queue!r} is not in this batch; give one of its messages"
            raise InvalidOptionError(msg)
        self._failed[message.id] = error

    @overload
    def put(self, queue: Destination[T], value: T, **options: Unpack[PutOptions]) -> str: ...
    @overload
    def put(self, queue: str, value: bytes, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: Destination[Any] | str, value: Any, **options: Unpack[PutOptions]) -> str:
        """Put a message when this batch commits; return its id at once, without sending anything.

        Raises: as `Transaction.put`.
        """
        runtime = self._work.runtime
        runtime.check()
        return self._work.add_put(prepare(runtime, queue, value, options))

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages of {self.queue!r}>"


class BatchWork:
    """The claims of a batch, and their settlement."""

    def __init__(self, runtime: SessionCore, queue: Destination[T], claims: list[Claim]) -> None:
        self._runtime = runtime
        self._queue = queue
        self.claims: list[Claim] = claims
        self.work: UnitOfWork = UnitOfWork(runtime, runtime.ids.next(), None, SETTLED_HINT)
        self.work.hold(claims)
        runtime.remember_undecided(self.work)

    def batch(self) -> Batch[Any]:
        """Return the batch for the handler."""
        codec = binding_of(self._queue).codec
        messages = [Message(content_of(claim), codec, claim.value) for claim in self.claims]
        return Batch(self._queue.name, messages, self.work)

    async def finish(self, batch: Batch[Any]) -> int:
        """Settle after the handler has returned; return the number of messages that were committed.

        Raises: the error of the commit. The failed messages are settled nevertheless.
        """
        errors = failures_of(batch)
        failed = [(claim, errors[claim.id]) for claim in self.claims if claim.id in errors]
        await self._settle(failed)
        return len(self.claims) - len(failed)

    async def fail(self, error: BaseException) -> None:
        """Settle all messages by the error that ended the handler."""
        if (decision := decision_of(error)) is not None:
            await self._settle([(claim, decision) for claim in self.claims])
        else:
            await undo(self.work, error)

    async def _settle(self, failed: list[tuple[Claim, Exception]]) -> None:
        """Settle each failed message by its own error, and commit the others."""
        self.work.detach(claim for claim, _ in failed)
        if len(failed) == len(self.claims):
            self.work.drop_puts()
        deliveries = [(delivery_of(self._runtime, self._queue, claim), error) for claim, error in failed]
        refused: QueueError | None = None
        try:
            async with anyio.create_task_group() as settling:
                for delivery, error in deliveries:
                    settling.start_soon(_settle_failed, delivery, error)
                refused = await _try_commit(self.work)
        finally:
            for work in (self.work, *(work_of(delivery) for delivery, _ in deliveries)):
                work.rollback_nowait()  # those that were interrupted before they could begin
        if refused is not None:
            raise refused


def failures_of(batch: Batch[Any]) -> dict[str, Exception]:
    """Return the errors of the messages that a handler has failed, by message id."""
    return batch._failed  # noqa: SLF001 - two halves of one module


async def _try_commit(work: UnitOfWork) -> QueueError | None:
    """Commit; return the error of a commit that was refused, so that it does not cancel the other settlements."""
    try:
        await work.commit()
    except QueueError as error:
        if work.open:
            await undo(work, error)
        return error
    return None


async def _settle_failed(delivery: Delivery[Any], error: Exception) -> None:
    """Settle a message by its own error."""
    work = work_of(delivery)
    try:
        with failure_logged(work, error):
            await settle_failed(delivery, error)
    except SessionClosedError:
        raise
    except QueueError as refusal:
        log_unsettled(work, refusal)
