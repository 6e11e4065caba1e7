"""Transactions: takes and puts on any number of queues, in one atomic commit."""

from __future__ import annotations

import asyncio
import warnings
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar, overload

from aiozkqueue.arguments import positive, required_seconds, seconds
from aiozkqueue.errors import (
    ConnectionLostError,
    InvalidOptionError,
    SessionExpiredError,
    TransactionTooLargeError,
    UncommittedWarning,
)
from aiozkqueue.layout import check_condition
from aiozkqueue.operations.alter import AlterationTarget, cancel, update
from aiozkqueue.queue.claim.deliver import deliver_claims, deliver_claims_now, has_expired
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.destination import Destination, binding_of, not_own
from aiozkqueue.queue.message import Message, content_of
from aiozkqueue.queue.options import reason_text
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.queue.state.claim import EPHEMERAL_CAP
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.zookeeper import State, reads

from .block import Block
from .undo import undo, undo_unsent
from .unit_of_work import UnitOfWork, current_work

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType
    from typing import Unpack

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.layout import Condition
    from aiozkqueue.operations.alter import Alteration
    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.outcome import Outcome
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import CallLimit

    from .core import SessionCore

T = TypeVar("T")


class Transaction:
    """Takes from and puts to any number of queues; commits in one atomic ZooKeeper request, or rolls back.

    From its first take on, it belongs to one ZooKeeper session. It must not be used by several tasks at once.
    """

    __slots__ = ("__weakref__", "_runtime", "_work")

    def __init__(self, runtime: SessionCore) -> None:
        self._runtime = runtime
        self._work = work = UnitOfWork(runtime, runtime.ids.next())
        runtime.remember_undecided(work)

    @property
    def id(self) -> str:
        """The id for `QueueSession.outcome`."""
        return self._work.id

    @property
    def outcome(self) -> Outcome:
        """The outcome that is known so far."""
        return self._work.outcome

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit(self._work.what)

    async def take(
        self, queue: Destination[T], *, timeout: Seconds | None = 0, filters: Condition | None = None
    ) -> Message[T] | None:
        """Lock one message, which the commit removes; return None if there is none within ``timeout`` seconds.

        A timeout of 0 searches once; None has no limit. ``filters`` is a condition that the tags of the message must
        match.

        Raises:
            ConnectionLostError: there was no connection at the end of ``timeout``; with 0, no server answered within
                the session's ``operation_timeout``.
            TransactionClosedError: the transaction has been settled.
            SessionExpiredError: the ZooKeeper session of the messages taken before has ended.
            TransactionTooLargeError: it holds as many locks as a session may.
            AccessDeniedError, PayloadError, ConfigConflictError, SessionClosedError, WrongLoopError,
            InvalidOptionError.
        """
        wait, tracing = _take_timeout(self._runtime, queue, timeout), self._runtime.tracing
        begun = 0 if tracing is None else time_ns()
        condition = None if filters is None else check_condition(filters)
        claims = _claim_at_hand(self._work, queue, 1, condition)
        claims = claims or await _claim(self._work, queue, 1, wait, condition)
        if not claims:
            return None
        message = Message(content_of(claims[0]), binding_of(queue).codec, claims[0].value)
        if tracing is not None:
            tracing.received(queue.name, [message], begun)
        return message

    async def take_many(
        self, queue: Destination[T], limit: int, *, timeout: Seconds | None = 0, filters: Condition | None = None
    ) -> list[Message[T]]:
        """Lock up to ``limit`` messages, which the commit removes; return [] if none comes within ``timeout`` seconds.

        It waits for the first message only, and then returns all that are available. If the servers stop answering
        after it has locked some messages, it returns those by the end of ``timeout``.

        Raises: as `take`; TransactionTooLargeError also when ``limit`` locks are more than a session may hold.
        """
        self._runtime.check()
        tracing, begun, began = self._runtime.tracing, time_ns(), self._runtime.committer.loop.time()
        wait = _take_timeout(self._runtime, queue, timeout)
        wanted, condition = positive(limit, "limit"), check_condition(filters)
        claimed: list[Claim] = []
        try:
            # Messages may arrive as fast as they are taken: claimed ones must not expire in the meantime.
            while len(claimed) < wanted and not has_expired(self._runtime, claimed):
                if not claimed:
                    claims = await _claim(self._work, queue, wanted, wait, condition)
                else:
                    left = _time_for_more(self._runtime, wait, began)
                    claims = await _claim_more(self._work, queue, wanted - len(claimed), left, condition)
                if not claims:
                    break
                claimed += claims
        except BaseException:
            await self._work.release_unseen(claimed)  # no caller has received them, so a commit must not remove them
            raise
        codec = binding_of(queue).codec
        messages = [Message(content_of(claim), codec, claim.value) for claim in claimed]
        if tracing is not None and messages:
            tracing.received(queue.name, messages, begun)
        return messages

    @overload
    def put(self, queue: Destination[T], value: T, **options: Unpack[PutOptions]) -> str: ...
    @overload
    def put(self, queue: str, value: bytes, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: Destination[Any] | str, value: Any, **options: Unpack[PutOptions]) -> str:
        """Put a message when this commits; return its id at once, without sending anything.

        Raises:
            PayloadError: the value is not of the queue's type.
            MessageTooLargeError: the message is larger than ZooKeeper accepts.
            TransactionTooLargeError: the transaction would be larger.
            TransactionClosedError, InvalidNameError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        put = prepare(self._runtime, queue, value, options)
        return self._work.add_put(put)

    def reject(self, message: Message[Any], reason: str) -> None:
        """Move a message of this transaction to its queue's dead letters when this commits.

        Raises: TransactionClosedError; InvalidOptionError: this transaction has not taken the message.
        """
        self._end(message, Disposition("dead", reason=reason_text(reason)))

    def release(self, message: Message[Any], *, delay: Seconds | None = None) -> None:
        """Release a message when this commits, to be redelivered after ``delay`` seconds (None: at once).

        If this transaction has taken later messages of its group, it must release them too. Otherwise they would
        overtake the message, and the commit raises. The group waits for the delay of the first message that is
        released; the delays of the others are ignored.

        Raises: TransactionClosedError; InvalidOptionError: this transaction has not taken the message, or the delay is
        out of range.
        """
        wait = 0.0 if delay is None else required_seconds(delay, "delay")
        self._end(message, Disposition("release", delay=wait))

    def _end(self, message: object, disposition: Disposition) -> None:
        if not isinstance(message, Message):
            msg = f"message takes a message that this transaction has taken, not {type(message).__name__}"
            raise InvalidOptionError(msg)
        self._work.end(message.queue, message.id, disposition)

    @reads
    async def cancel(self, queue: Destination[Any], *, id: str | None = None, key: str | None = None) -> Alteration:
        """When this commits, remove the message with an id, or all messages with a key, unless a consumer holds them.

        The message is not locked until then: `Alteration.DONE` means that no consumer holds it now. If it is taken
        before the commit, the commit fails as a whole. Otherwise as `Queue.cancel`.

        Raises:
            InvalidOptionError: not exactly one of ``id`` and ``key`` is given, or ``queue`` is another program's.
            TransactionClosedError, AccessDeniedError, PayloadError, ConfigConflictError, ConnectionLostError,
            SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        return await cancel(self._runtime, AlterationTarget(queue, id, key), self._work)

    @reads
    async def update(
        self, queue: Destination[T], value: T, *, id: str | None = None, key: str | None = None
    ) -> Alteration:
        """When this commits, replace the payload of the message with an id, or of all messages with a key.

        Messages that a consumer holds are not changed. For keys, see `Queue.update`.

        Raises: as `cancel`; PayloadError, MessageTooLargeError.
        """
        self._runtime.check()
        return await update(self._runtime, AlterationTarget(queue, id, key), value, self._work)

    async def commit(self, *, timeout: Seconds | None = None) -> None:
        """Remove the messages taken and create the messages put, all or nothing. On return it has been applied.

        ``timeout`` is how many seconds to wait for the answer, and for capacity in queues with ``max_size``; None: no
        limit. After an error, all messages taken have been released. If the caller is cancelled, a commit that was not
        sent is withdrawn. Otherwise the caller waits for the answer for up to the session timeout; then the commit
        continues without it.

        Raises:
            NotCommittedError: nothing was applied, so the work can safely be repeated. Usually it is one of the next
                seven errors.
            SessionExpiredError: the ZooKeeper session of the messages taken has ended.
            ClaimLostError: the lock of a message taken was removed or taken over, or its queue was deleted.
            ItemNotEmptyError: a message taken cannot be removed, because znodes were created below it.
            TransactionTooLargeError: it is larger than one ZooKeeper request may be.
            QueueFullError: a queue that was put to had no capacity within ``timeout`` seconds.
            ConflictError: a message to cancel or update has been taken, or a group has joined a bus since its post; the
                messages taken are released at once.
            DuplicateKeyError: the queue already holds a message with the key of a put with ``unique``, or of an update.
            OutcomeUnknownError: it was sent, and there was no answer within ``timeout`` seconds; `QueueSession.outcome`
                returns it later.
            AccessDeniedError, PayloadError: nothing was applied; the error names the cause, which repeating the work
                does not remove.
            ConfigConflictError: nothing was applied: a queue that was put to stores a policy other than the one its
                program names. Later calls follow the stored policy.
            TransactionClosedError, SessionClosedError, InvalidOptionError, WrongLoopError.
        """
        await self._work.commit(seconds(timeout, "timeout"))

    async def rollback(self, *, delay: Seconds | None = None) -> None:
        """Drop the puts and release the messages after ``delay`` seconds (0: at once; None: the policy's delay).

        It always succeeds, at the latest when the ZooKeeper session ends. It waits for up to one session timeout: if no
        server answers, the session has ended by then. If cancelled, it continues in the background. A `commit` of
        another task that still waits for capacity ends with NotCommittedError.

        Raises:
            TransactionClosedError: it has been committed.
            OutcomeUnknownError: its commit is in flight, and is not answered within one session timeout.
            InvalidOptionError: ``delay`` is not a number of seconds.
        """
        await self._work.rollback(None if delay is None else required_seconds(delay, "delay"))

    def __repr__(self) -> str:
        return f"<Transaction {self.id} {self.outcome.value}>"


class TransactionBlock(Block):
    """The context manager of `QueueSession.transaction`."""

    __slots__ = ("_autocommit", "_commit_timeout", "_outer", "_runtime", "_work")

    _usage = "async with session.transaction() as tx:"

    def __init__(self, runtime: SessionCore, *, autocommit: bool, commit_timeout: float | None = None) -> None:
        self._runtime = runtime
        self._autocommit = autocommit
        self._commit_timeout = commit_timeout
        self._work: UnitOfWork | None = None
        self._outer: UnitOfWork | None = None

    async def __aenter__(self) -> Transaction:
        self._runtime.check()
        if self._work is not None and self._work.open:
            msg = "the block of this transaction has already begun; call session.transaction() for each block"
            raise InvalidOptionError(msg)
        transaction = Transaction(self._runtime)
        self._work = transaction._work  # noqa: SLF001 - two halves of one module
        self._outer = current_work.get()
        current_work.set(self._work)
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        work = self._work
        assert work is not None  # noqa: S101 - entered
        if current_work.get() is work:  # it differs if the block is left in another task
            current_work.set(self._outer)
        if not work.open:
            return
        if kind is not None:
            await undo(work, error)
        elif self._autocommit:
            try:  # as `commit_or_undo`, with one coroutine less for every transaction
                await work.commit(self._commit_timeout)
            except BaseException as failure:
                await undo_unsent(work, failure)
                raise
        else:
            if work.undecided:
                warnings.warn(
                    # Without its id: Python keeps every text that it has shown.
                    "a transaction was left without a commit, so its takes and puts are rolled back; commit it, roll "
                    "it back, or leave out autocommit=False: then the end of the block commits",
                    UncommittedWarning,
                    stacklevel=2,
                )
            await work.rollback(0)


def _take_timeout(runtime: SessionCore, queue: Destination[Any], timeout: Seconds | None) -> float | None:
    """Check the arguments of a take; return its timeout."""
    given: object = queue
    wait: object = timeout
    if not isinstance(given, Destination):
        msg = f"take takes a queue, made by session.queue(), not {type(queue).__name__}"
        raise InvalidOptionError(msg)
    if binding_of(queue).owner is not runtime:
        raise not_own(queue.name)
    if type(wait) is int and not wait:  # the default of every take
        return 0.0
    return seconds(timeout, "timeout")


def _claim_at_hand(
    work: UnitOfWork, queue: Destination[Any], limit: int, condition: Condition | None
) -> list[Claim] | None:
    """Claim and deliver as `_claim`, without a wait; return none if fewer messages are at hand than ``limit``.

    Raises: as `_dispatcher`.
    """
    dispatcher = _dispatcher(work, queue, limit, condition)
    if dispatcher.state.snapshot.policy.counts_before_delivery:  # a request must record the attempt first
        return None
    claims = dispatcher.take_at_hand(limit, work.generation)
    return _deliver_now(work, queue, claims) if claims else None


def _claim(
    work: UnitOfWork, queue: Destination[Any], limit: int, timeout: float | None, condition: Condition | None = None
) -> Awaitable[list[Claim]]:
    """Claim up to ``limit`` messages for an open unit of work; return none after ``timeout`` seconds (None: no limit).

    Raises: as `Transaction.take`.
    """
    if timeout == 0:
        return _claim_available(work, queue, limit, work.runtime.operation_timeout, condition)
    return _claim_within(work, queue, limit, timeout, condition)


async def _claim_within(
    work: UnitOfWork, queue: Destination[Any], limit: int, timeout: float | None, condition: Condition | None
) -> list[Claim]:
    """Claim as `_claim`, for a take that waits."""
    runtime, dispatcher = work.runtime, _dispatcher(work, queue, limit, condition)
    deadline, left = Deadline(timeout, runtime.clock), timeout
    while left != 0:
        claims = dispatcher.take_at_hand(limit, work.generation)
        if not claims and not (claims := await _wait_for_claims(dispatcher, work, limit, left)):
            break
        delivered = _deliver_now(work, queue, claims)
        if delivered is None:
            delivered = await _deliver(work, queue, claims, deadline.left)
        if delivered:
            return delivered
        left = deadline.left
        dispatcher = runtime.dispatcher(dispatcher.state, condition)  # it may have ended in the meantime
    if runtime.zookeeper.state is not State.CONNECTED:
        raise _no_connection(queue)
    return []


async def _claim_available(
    work: UnitOfWork, queue: Destination[Any], limit: int, longest: float, condition: Condition | None
) -> list[Claim]:
    """Claim up to ``limit`` of the messages that can be claimed now.

    ``longest`` is the time for it, seconds. If it is the session's ``operation_timeout``, which limits the silence of
    the servers and not the call, the time begins again after each answer.

    Raises: as `Transaction.take`; ConnectionLostError: no server has answered within ``longest`` seconds.
    """
    dispatcher, time = _dispatcher(work, queue, limit, condition), work.runtime.committer.loop.time
    silence = work.runtime.operation_timeout
    renewed = longest >= silence
    begun, left = 0.0 if renewed else time(), longest
    while left > 0:
        claims = dispatcher.take_at_hand(limit, work.generation)
        if not claims:
            if left >= silence:  # `SessionCore.searches` limits it, at a fraction of the cost
                claims = await _wait_for_claims(dispatcher, work, limit, 0)
            else:
                claims = await _search_once(dispatcher, work, limit, left)
        if not claims:
            if work.runtime.zookeeper.state is not State.CONNECTED:
                raise _no_connection(queue)
            return []
        delivered = _deliver_now(work, queue, claims)
        if delivered:
            return delivered
        if renewed:
            begun = time()  # a server has answered just now
        if delivered is None and (delivered := await _deliver(work, queue, claims, max(0.0, longest - time() + begun))):
            return delivered
        left = longest - time() + begun
        dispatcher = work.runtime.dispatcher(dispatcher.state, condition)  # it may have ended in the meantime
    raise _no_answer(dispatcher, longest)


async def _claim_more(
    work: UnitOfWork, queue: Destination[Any], limit: int, longest: float, condition: Condition | None
) -> list[Claim]:
    """Claim as `_claim_available`, for a take that has some messages; return none if no server answers."""
    try:
        return await _claim_available(work, queue, limit, longest, condition) if longest > 0 else []
    except ConnectionLostError:
        return []


def _deliver_now(work: UnitOfWork, queue: Destination[Any], claims: list[Claim]) -> list[Claim] | None:
    """Deliver claims to a unit of work, which then holds them, as `_deliver`; None: that must be awaited."""
    if not work.open:
        return None
    delivered = deliver_claims_now(work.runtime, queue, claims)
    if delivered:
        work.hold(delivered)
    return delivered


async def _deliver(work: UnitOfWork, queue: Destination[Any], claims: list[Claim], limit: float | None) -> list[Claim]:
    """Deliver claims to a unit of work, which then holds them; return those that can be delivered within ``limit`` s.

    Raises:
        SessionExpiredError: the session of its claims has ended. If it has none yet, this returns none instead.
        TransactionClosedError: it has been settled in the meantime.
    """
    try:
        delivered = await deliver_claims(work.runtime, queue, claims, limit)
    except SessionExpiredError:
        if work.generation is not None:
            raise
        return []
    if not work.open:
        await work.release_unseen(delivered)
        work.require_open()
    if delivered:
        work.hold(delivered)
    return delivered


def _time_for_more(runtime: SessionCore, timeout: float | None, began: float) -> float:
    """Return how long a take that has some messages may search for more, seconds."""
    longest = runtime.operation_timeout
    waited = runtime.committer.loop.time() - began
    return longest if timeout is None else min(longest, (timeout or longest) - waited)


async def _search_once(dispatcher: ClaimDispatcher, work: UnitOfWork, limit: int, longest: float) -> list[Claim]:
    """Search once for claims. Raises: ConnectionLostError: no server has answered within ``longest`` seconds."""
    limited = asyncio.timeout(longest)
    try:
        async with limited:
            return await _wait_for_claims(dispatcher, work, limit, 0)
    except TimeoutError:
        if not limited.expired():
            raise
        raise _no_answer(dispatcher, longest) from None


async def _wait_for_claims(
    dispatcher: ClaimDispatcher, work: UnitOfWork, limit: int, timeout: float | None
) -> list[Claim]:
    """Wait in line for claims; return none after ``timeout`` seconds (None: no limit; 0: after one search).

    Raises: ConnectionLostError: no server has answered the search within ``operation_timeout``.
    """
    waiter = dispatcher.request(limit, timeout, generation=work.generation, transaction=work)
    searches = work.runtime.searches if timeout == 0 else None
    if searches is not None:
        searches.add(waiter)
    try:
        return await waiter.future
    except asyncio.CancelledError:
        dispatcher.cancel_request(waiter)
        task = asyncio.current_task()
        if waiter.late and task is not None and not task.cancelling():
            raise _no_answer(dispatcher, work.runtime.operation_timeout) from None
        raise
    finally:
        if searches is not None:
            searches.remove(waiter)


def _no_answer(dispatcher: ClaimDispatcher, longest: float) -> ConnectionLostError:
    """Return the error of a nonblocking take that no server has answered."""
    return ConnectionLostError(
        f"queue {dispatcher.state.name!r}: no answer from ZooKeeper within {longest:g} s; "
        "try again when a server is available"
    )


def _no_connection(queue: Destination[Any]) -> ConnectionLostError:
    """Return the error of a take that has found nothing, because it could not search."""
    return ConnectionLostError(
        f"queue {queue.name!r}: there is no connection to ZooKeeper, so whether it holds messages is not known; "
        "try again when a server is available"
    )


def _dispatcher(work: UnitOfWork, queue: Destination[Any], limit: int, condition: Condition | None) -> ClaimDispatcher:
    """Return the dispatcher of a queue, if the session may hold ``limit`` more locks."""
    runtime = work.runtime
    runtime.check()
    work.require_open()
    dispatcher = runtime.dispatcher(runtime.queue_state(queue.name), condition)
    if limit > 1 or work.holds:  # a single message always fits
        used = sum(claim.size for claim in work.claims)
        if used + limit * dispatcher.lock_size > EPHEMERAL_CAP:
            msg = (
                f"{work.what}: taking {limit} from queue {queue.name!r} would exceed the lock limit of one session "
                f"({(EPHEMERAL_CAP - used) // dispatcher.lock_size} more fit); take and commit in parts"
            )
            raise TransactionTooLargeError(msg)
    return dispatcher
