"""Transactions: takes and puts on any number of queues, in one atomic commit."""

from __future__ import annotations

import asyncio
import warnings
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar, overload

from aiozkqueue.errors import InvalidOptionError, UncommittedWarning
from aiozkqueue.layout import check_condition

from .admin.alter import Wanted, cancel, update
from .claim.deliver import outlived
from .commit.dispositions import Disposition
from .destination import Destination, not_own
from .message import Message, content_of
from .options import positive, reason_text, required_seconds, seconds
from .put.prepare import prepare
from .take import take
from .unit_of_work import UnitOfWork, current

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Unpack

    from aiozkqueue.layout import Condition

    from .admin.alter import Alteration
    from .options import PutOptions, Seconds
    from .outcome import Outcome
    from .session_core import SessionCore
    from .state.claim import Claim

T = TypeVar("T")


class Transaction:
    """Takes from N queues and puts to K, committed in one atomic ZooKeeper request or undone.

    It belongs to one ZooKeeper session, from its first take on. Not for use by several tasks at once.
    """

    __slots__ = ("__weakref__", "_engine", "_work")

    def __init__(self, engine: SessionCore) -> None:
        self._engine = engine
        self._work = work = UnitOfWork(engine, engine.ids.next())
        engine.undecided(work)

    @property
    def id(self) -> str:
        """The id to ask `QueueSession.outcome` for."""
        return self._work.id

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as is known."""
        return self._work.outcome

    @property
    def work(self) -> UnitOfWork:
        """What is decided by it; for the package's own use."""
        return self._work

    @property
    def claims(self) -> Iterable[Claim]:
        """What it holds; for the package's own use."""
        return self._work.claims

    async def release_unseen(self, claims: Iterable[Claim]) -> None:
        """Give back what it holds as if it had never been taken; for the package's own use."""
        await self._work.release_unseen(list(claims))

    async def take(
        self, queue: Destination[T], *, timeout: Seconds | None = 0, filters: Condition | None = None
    ) -> Message[T] | None:
        """Lock one message, to be removed by the commit; None when there is none within ``timeout`` seconds.

        0 looks once, None waits for ever; while disconnected it waits. ``filters`` is what its tags have to pass.

        Raises:
            TransactionClosedError: this has been settled.
            SessionExpiredError: the ZooKeeper session of the messages taken before is over.
            TransactionTooLargeError: it holds as many locks as a session may.
            AccessDeniedError, SessionClosedError, WrongLoopError, InvalidOptionError.
        """
        wait, tracing = _taking(self._engine, queue, timeout), self._engine.tracing
        begun = 0 if tracing is None else time_ns()
        condition = None if filters is None else check_condition(filters)
        for claim in await take(self._work, queue, 1, wait, condition):
            message = Message(content_of(claim), queue.codec, claim.value)
            if tracing is not None:
                tracing.received(queue.name, [message], begun)
            return message
        return None

    async def take_many(
        self, queue: Destination[T], limit: int, *, timeout: Seconds | None = 0, filters: Condition | None = None
    ) -> list[Message[T]]:
        """Lock up to ``limit`` messages: as many as are there as soon as there is one; none after ``timeout`` seconds.

        Raises: as `take`; TransactionTooLargeError also when ``limit`` locks are more than a session may hold.
        """
        tracing, begun = self._engine.tracing, time_ns()
        wait = _taking(self._engine, queue, timeout)
        wanted, condition = positive(limit, "limit"), check_condition(filters)
        held: list[Claim] = []
        try:
            # Messages may come as fast as they are taken; those that are held are not kept past their lives for that.
            while len(held) < wanted and not outlived(self._engine, held):
                claims = await take(self._work, queue, wanted - len(held), 0 if held else wait, condition)
                if not claims:
                    break
                held += claims
        except BaseException:
            await self._work.release_unseen(held)  # nobody is shown them: a commit must not remove them
            raise
        messages = [Message(content_of(claim), queue.codec, claim.value) for claim in held]
        if tracing is not None and messages:
            tracing.received(queue.name, messages, begun)
        return messages

    @overload
    def put(self, queue: Destination[T], value: T, **options: Unpack[PutOptions]) -> str: ...
    @overload
    def put(self, queue: str, value: bytes, **options: Unpack[PutOptions]) -> str: ...
    def put(self, queue: Destination[Any] | str, value: Any, **options: Unpack[PutOptions]) -> str:
        """Put a message when this commits; returns its id at once, and sends nothing.

        Raises:
            PayloadError: the value is not of the queue's type.
            MessageTooLargeError: the message is larger than ZooKeeper takes.
            TransactionTooLargeError: the transaction would be.
            TransactionClosedError, InvalidNameError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        put = prepare(self._engine, queue, value, options)
        return self._work.add_put(put)

    def reject(self, message: Message[Any], reason: str) -> None:
        """Move a message taken by this into its queue's dead letters when this commits.

        Raises: TransactionClosedError; InvalidOptionError: not taken by this transaction.
        """
        self._work.end(message.queue, message.id, Disposition("dead", reason=reason_text(reason)))

    def release(self, message: Message[Any], *, delay: Seconds | None = None) -> None:
        """Give a message back when this commits, offered again after ``delay`` seconds (None: at once).

        Later messages of its group that this has taken must be released too: the commit refuses to let them overtake.

        Raises: TransactionClosedError; InvalidOptionError: not taken by this transaction, or a bad delay.
        """
        wait = 0.0 if delay is None else required_seconds(delay, "delay")
        self._work.end(message.queue, message.id, Disposition("release", delay=wait))

    async def cancel(self, queue: Destination[Any], *, id: str | None = None, key: str | None = None) -> Alteration:
        """Remove a message that waits when this commits, by its id, or all that wait under a key.

        Nothing is held meanwhile: `Alteration.DONE` says that it waits now, and if somebody takes it before the commit,
        that fails as a whole. Otherwise as `Queue.cancel`.

        Raises:
            InvalidOptionError: not exactly one of ``id`` and ``key`` is given, or ``queue`` is another program's.
            TransactionClosedError, AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        return await cancel(self._engine, Wanted(queue, id, key), self._work)

    async def update(
        self, queue: Destination[T], value: T, *, id: str | None = None, key: str | None = None
    ) -> Alteration:
        """Replace the payload of a message that waits when this commits, by its id, or of all that wait under a key.

        Raises: as `cancel`; PayloadError, MessageTooLargeError.
        """
        self._engine.check()
        return await update(self._engine, Wanted(queue, id, key), value, self._work)

    async def commit(self, *, timeout: Seconds | None = None) -> None:
        """Remove what was taken and create what was put, all or nothing. On return it has been applied.

        ``timeout`` is how many seconds to wait for the answer, and for room in queues that have a size; None: as long
        as it takes. After an error everything taken has been given back. A caller that is cancelled waits for the
        answer for up to the session timeout; then the commit goes on without it.

        Raises:
            NotCommittedError: nothing was applied; doing the work again is safe. Usually it is one of the next seven.
            SessionExpiredError: the ZooKeeper session of the messages taken is over.
            ClaimLostError: a message taken was forced open or taken over.
            ItemNotEmptyError: a message taken cannot be removed, since somebody has created znodes below it.
            TransactionTooLargeError: it is more than one request of ZooKeeper's may hold.
            QueueFullError: a queue that was put to had no room within ``timeout`` seconds.
            ConflictError: what it was to cancel or replace has been taken by others, or a group has joined a bus since
                its post; what was taken is given back at once.
            DuplicateKeyError: a message that was put with ``unique`` waits already.
            OutcomeUnknownError: no answer within ``timeout`` seconds; `QueueSession.outcome` tells later.
            TransactionClosedError, SessionClosedError, AccessDeniedError, InvalidOptionError, WrongLoopError.
        """
        await self._work.commit(seconds(timeout, "timeout"))

    async def rollback(self, *, delay: Seconds | None = None) -> None:
        """Forget the puts and give the messages back after ``delay`` seconds (0: at once; None: the policy's).

        Always succeeds, at the latest when the ZooKeeper session ends. It waits for that, but for no longer than one
        session timeout: while no server answers, the session ends by then. Cancelled, it goes on in the background.

        Raises:
            TransactionClosedError: it has been committed.
            OutcomeUnknownError: a commit of it is under way, and is not answered within one session timeout.
            InvalidOptionError: ``delay`` is no number of seconds.
        """
        await self._work.rollback(None if delay is None else required_seconds(delay, "delay"))

    def __repr__(self) -> str:
        return f"<Transaction {self.id} {self.outcome.value}>"


class TransactionBlock:
    """What ``async with session.begin()`` and ``session.transaction()`` enter and leave."""

    __slots__ = ("_commits", "_engine", "_outer", "_work")

    def __init__(self, engine: SessionCore, *, commits: bool) -> None:
        self._engine = engine
        self._commits = commits
        self._work: UnitOfWork | None = None
        self._outer: UnitOfWork | None = None

    async def __aenter__(self) -> Transaction:
        self._engine.check()
        transaction = Transaction(self._engine)
        self._work = transaction._work  # noqa: SLF001 - two halves of one module
        self._outer = current.get()
        current.set(self._work)
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        work = self._work
        assert work is not None  # noqa: S101 - entered
        if current.get() is work:  # it is not when this is left in another task than entered
            current.set(self._outer)
        if not work.open:
            return
        if kind is not None:
            await leave(work, error)
        elif self._commits:
            try:
                await work.commit()
            except BaseException as failure:
                await leave_unsent(work, failure)
                raise
        else:
            if work.undecided:
                warnings.warn(
                    f"transaction {work.id} was left without a commit: its takes and puts are rolled back; "
                    "commit it, roll it back, or use session.begin(), which commits by itself",
                    UncommittedWarning,
                    stacklevel=2,
                )
            await work.rollback(0)


def _taking(engine: SessionCore, queue: object, timeout: Seconds | None) -> float | None:
    """Check what a take is given; return how long it waits."""
    if not isinstance(queue, Destination):
        msg = f"take takes a queue, made by session.queue(), not {type(queue).__name__}"
        raise InvalidOptionError(msg)
    if queue.owner is not engine:
        raise not_own(queue.name)
    return seconds(timeout, "timeout")


async def commit_or_leave(work: UnitOfWork, timeout: float | None = None) -> None:
    """Commit; what could not even be sent is undone, and costs no delay when it was the caller that gave up."""
    try:
        await work.commit(timeout)
    except BaseException as error:
        await leave_unsent(work, error)
        raise


async def leave_unsent(work: UnitOfWork, error: BaseException) -> None:
    """Undo work whose commit failed before it was sent."""
    if work.open:
        await leave(work, error)


async def leave(work: UnitOfWork, error: BaseException | None, *, rewrite: bytes | None = None) -> None:
    """Undo the work that a block left with an error: after the policy's delay when it is the work that failed."""
    interrupted = not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError)
    await work.rollback(0 if interrupted else None, None if interrupted else describe(error), rewrite=rewrite)


def describe(error: BaseException | None) -> str:
    """Put an error into words for the record of attempts."""
    return "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")[:1000]
