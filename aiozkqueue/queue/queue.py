"""Queues: the public objects for puts, consumers and administration."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from aiozkqueue.errors import (
    DirectPutWarning,
    InvalidOptionError,
    QueueError,
    QueueFullError,
    SessionClosedError,
)
from aiozkqueue.layout import QueueConfig, check_condition, positive_seconds
from aiozkqueue.queue.commit.handle import QueueHandle

from .admin import alter, stats
from .admin.alter import Wanted
from .admin.budget import BUDGET
from .admin.dead_letters import DeadLetters
from .admin.history import read_history
from .admin.message_state import MessageState, state_of
from .admin.peek import peek
from .admin.purge import purge
from .administration import QueueAdmin
from .commit.puts import Puts, weigh_puts
from .commit.unique_keys import earlier_holder, stored_as
from .commit.write import AtomicWrite
from .consumer import Consumer
from .destination import Binding, Destination
from .leases import Leases
from .message import Message
from .options import collection, positive, seconds
from .put.capacity import credits_of
from .put.prepare import prepare
from .runtime.deadline import Deadline
from .unit_of_work import current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime
    from typing import Unpack

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Condition, HistoryRecord, Policy

    from .admin.alter import Alteration
    from .codec import Codec
    from .commit.puts import Put
    from .destination import Undecodable
    from .options import PutOptions, Seconds
    from .session_core import SessionCore
    from .state.queue_state import QueueState

T = TypeVar("T")

#: The largest size of one multi of `Queue.put_many`, bytes, and its largest number of messages.
MANY_BYTES = 256 * 1024
MANY = 1000


class Queue(Destination[T]):
    """A named queue of values of one type, made by `QueueSession.queue`. Creating the object has no cost."""

    def __init__(
        self,
        owner: object | None,
        name: str,
        codec: Codec[T],
        undecodable: Undecodable = "dead-letter",
        dialect: Dialect | None = None,
    ) -> None:
        super().__init__(name, Binding(owner, codec, undecodable, dialect))

    @property
    def _core(self) -> SessionCore:
        """The session's core. Raises: SessionClosedError, WrongLoopError."""
        owner = cast("SessionCore | None", self._binding.owner)
        if owner is None:
            msg = f"queue {self.name!r} was made for a test and belongs to no session"
            raise SessionClosedError(msg)
        owner.check()
        return owner

    @property
    def _state(self) -> QueueState:
        """The session's state of the queue."""
        return self._core.queue_state(self.name)

    @property
    def _handle(self) -> QueueHandle[SessionCore]:
        """The queue's handle."""
        return QueueHandle(self._core, self._state)

    async def put(self, value: T, *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]) -> str:
        """Put a message, exactly once, and return its id. On return it is stored.

        While disconnected, the put waits. ``timeout`` is how many seconds to wait for capacity in a queue with
        ``max_size`` (0: fail at once; None: no limit). A put that is cancelled while it waits for capacity stores
        nothing. If cancelled later, it waits for the answer for up to the session timeout, then continues in the
        background.

        Raises:
            PayloadError: the value is not of the queue's type.
            MessageTooLargeError: the message is larger than ZooKeeper accepts.
            OutcomeUnknownError: the session was closed during the put.
            QueueFullError: the queue holds ``max_size`` messages, and no capacity was freed in time.
            DuplicateKeyError: it was put with ``unique``, and the queue already holds a message with its key.
            AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        patience = seconds(timeout, "timeout")
        runtime = self._core
        self._warn_of_transaction(runtime)
        if runtime.tracing is not None:
            with runtime.tracing.sending(self.name, None):
                put = prepare(runtime, self, value, options)
                await self._put(runtime, [put], patience)
                return put.id if put.plan is None else stored_as(put)
        put = prepare(runtime, self, value, options)
        if (
            put.plan is None and put.state.ready and put.state.snapshot.capacity is None
        ):  # the usual case: nothing to wait for first
            atomic_write = AtomicWrite(put.id, Puts((put,)))
            runtime.committer.submit(atomic_write)
            await atomic_write.wait()
            atomic_write.outcome()
            return put.id
        await self._put(runtime, [put], patience)
        return put.id if put.plan is None else stored_as(put)

    async def put_many(
        self, values: Iterable[T], *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]
    ) -> list[str]:
        """Put messages in order, and return their ids. All values are checked before any is sent.

        They are sent in as few requests as possible, one after the other. After an error, the messages of earlier
        requests are stored, and a note of the error says how many. For all or nothing, use a transaction. ``timeout``
        is as for `put`.

        Raises: as `put`; InvalidOptionError: ``values`` is one str, bytes or mapping.
        """
        patience = seconds(timeout, "timeout")
        runtime = self._core
        self._warn_of_transaction(runtime)
        if runtime.tracing is None:
            return await self._put_many(runtime, values, options, patience)
        listed = list(collection(values, f"queue {self.name!r}: put_many", "messages"))
        with runtime.tracing.sending(self.name, len(listed)):
            return await self._put_many(runtime, listed, options, patience)

    def consume(
        self,
        *,
        policy: Policy | None = None,
        prefetch: int = 32,
        settle: Literal["next", "explicit"] = "next",
        until_idle: Seconds | None = None,
        filters: Condition | None = None,
    ) -> Consumer[T]:
        """Iterate over the messages: ``async with queue.consume() as deliveries: async for delivery in deliveries``.

        Args:
            policy: the redelivery policy, stored with the queue if it has none yet.
            prefetch: the maximum number of messages claimed ahead of the loop.
            settle: ``"next"``: the loop commits a delivery when it asks for the next one. ``"explicit"``: the loop
                settles no delivery itself; an unsettled message stays locked, without a warning, as long as the session
                lives.
            until_idle: end the loop when no message has arrived for this many seconds (0: when the queue is empty) and
                its own commits have been answered: messages that it could not commit, or put there itself, are
                delivered first. None: run forever.
            filters: take only messages whose tags match.

        Raises:
            InvalidOptionError: an option is out of range.
            ConfigConflictError: another policy is stored; the loop raises it if this is found only then.
            SessionClosedError, WrongLoopError.
        """
        runtime = self._core
        if settle not in ("next", "explicit"):
            msg = f"settle={settle!r}: give 'next' or 'explicit'"
            raise InvalidOptionError(msg)
        if policy is not None:
            self._state.request_policy(policy)
        return Consumer(
            runtime,
            self,
            prefetch=positive(prefetch, "prefetch"),
            settle=settle,
            until_idle=seconds(until_idle, "until_idle"),
            condition=check_condition(filters),
        )

    async def peek(self, limit: int = 10) -> list[Message[T]]:
        """Read up to ``limit`` of the oldest messages, including claimed ones, without taking them.

        A message that this user may not read is left out, and named in a warning in the log. If only its attempts may
        not be read, it is shown, and its ``error`` says so.

        Raises: AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        contents = await peek(self._handle, positive(limit, "limit"))
        return [Message(content, self._binding.codec) for content in contents]

    async def size(self) -> int:
        """Count all messages: waiting, in flight and delayed; 0 if the queue does not exist.

        Raises: as `stats`.
        """
        return await stats.size(self._handle)

    async def claimed(self) -> int:
        """Count the messages in flight, which a transaction, a delivery or a ledger holds. Raises: as `stats`."""
        return (await self.stats()).in_flight

    async def exists(self) -> bool:
        """Return whether the queue exists: its first put or take creates it.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        self._core.check()
        return await self._state.exists()

    async def stats(self, *, budget: Seconds = BUDGET) -> stats.QueueStats:
        """Read the queue's figures.

        Some figures need listings, which take seconds for a million messages. After about ``budget`` seconds (or a
        timedelta) it returns what it has read, and names the other figures in `QueueStats.incomplete`.

        Raises: AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        return await stats.stats(self._handle, positive_seconds("budget", budget))

    async def purge(self) -> int:
        """Permanently remove every message that no consumer holds, and return their number. Dead letters stay.

        Raises:
            PartlyDeniedError: this user may not read or remove some of them; all others are gone.
            AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        return await purge(self._handle)

    async def cancel(self, *, id: str | None = None, key: str | None = None) -> Alteration:
        """Remove the message with an id, or all messages with a key, unless a consumer holds them.

        This lists the queue. Returns `Alteration.HELD` if one of them is in flight or leased: that one is left alone.
        Once this has returned `Alteration.DONE`, the message is never delivered.

        Raises:
            InvalidOptionError: not exactly one of ``id`` and ``key`` is given.
            ItemNotEmptyError: a message cannot be removed, because znodes were created below it.
            NotCommittedError: other clients kept changing it.
            OutcomeUnknownError, AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        return await alter.cancel(self._core, Wanted(self, id, key))

    async def update(self, value: T, *, id: str | None = None, key: str | None = None) -> Alteration:
        """Replace the payload of the message with an id, or of all messages with a key, unless a consumer holds them.

        The id, key, headers, place, attempts and due time are unchanged. Otherwise as `cancel`: once this has returned
        `Alteration.DONE`, the new value is delivered.

        Raises:
            PayloadError: the value is not of the queue's type.
            MessageTooLargeError: the message is larger than ZooKeeper accepts.
            InvalidOptionError, NotCommittedError, OutcomeUnknownError: as `cancel`.
            AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        return await alter.update(self._core, Wanted(self, id, key), value)

    async def state(self, message_id: str) -> MessageState:
        """Return the state of a message, by the id that `put` returned.

        This lists the queue. An ended message is found in the history, if the queue keeps one, or among the dead
        letters; any other is UNKNOWN.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        return await state_of(self._handle, message_id)

    async def history(
        self, *, since: datetime | None = None, until: datetime | None = None, limit: int | None = None
    ) -> AsyncIterator[HistoryRecord]:
        """Iterate over the records of ended messages, in the order in which they ended.

        `QueueConfig.history` decides which records the queue keeps, and for how long.

        Args:
            since: the first end to include, with a time zone; None: the oldest.
            until: the first end to exclude, with a time zone; None: no end.
            limit: the maximum number of records; None: all.

        Raises: AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        most = None if limit is None else positive(limit, "limit")
        async for record in read_history(self._handle, since=since, until=until, limit=most):
            yield record

    async def configuration(self) -> QueueConfig:
        """Read the current settings. Like a put, this creates the queue if needed, with the policy given.

        Raises: PayloadError: the stored data is not a configuration; AccessDeniedError, SessionClosedError,
        WrongLoopError.
        """
        state = self._state
        state.invalidate()
        await state.open()
        return state.config.settings

    async def configure(self, config: QueueConfig) -> None:
        """Store settings; every consumer follows it from its next claim on.

        Raises: AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        given: object = config
        if not isinstance(given, QueueConfig):
            msg = f"configure takes a QueueConfig, not {type(config).__name__}"
            raise InvalidOptionError(msg)
        await self._state.configure(config)

    @property
    def dead_letters(self) -> DeadLetters[T]:
        """Messages that were rejected, or used up their attempts. Raises: SessionClosedError, WrongLoopError."""
        return DeadLetters(self._handle, self._binding.codec)

    @property
    def admin(self) -> QueueAdmin:
        """The tools of operators for this queue. Raises: SessionClosedError, WrongLoopError."""
        return QueueAdmin(self._handle)

    @property
    def leases(self) -> Leases[T]:
        """The leases of the queue: poll messages for a limited time, and acknowledge them by a token from any process.

        Raises: SessionClosedError, WrongLoopError.
        """
        return Leases(self._core, self, self._state, self._binding.codec)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    async def _prepare_many(
        self, runtime: SessionCore, values: Iterable[T], options: PutOptions
    ) -> tuple[list[Put], list[str]]:
        """Return the puts, and the message id of each value: values with the same unique key share a message."""
        puts: list[Put] = []
        ids: list[str] = []
        keys: dict[tuple[str, str], str] = {}
        for value in collection(values, f"queue {self.name!r}: put_many", "messages"):
            put = prepare(runtime, self, value, options)
            earlier = None if put.plan is None else earlier_holder(keys, put)
            if earlier is None:
                puts.append(put)
            ids.append(earlier or put.id)
            if not len(ids) % MANY:
                await asyncio.sleep(0)  # a hundred thousand at once would block the event loop
        return puts, ids

    async def _put_many(
        self, runtime: SessionCore, values: Iterable[T], options: PutOptions, timeout: float | None
    ) -> list[str]:
        patience = Deadline(timeout, runtime.clock)
        puts, ids = await self._prepare_many(runtime, values, options)
        start = 0
        while start < len(puts):
            end, weight = start + 1, weigh_puts(puts[start : start + 1])
            while end < len(puts) and end - start < MANY:
                weight += weigh_puts(puts[end : end + 1])
                if weight > MANY_BYTES:
                    break
                end += 1
            part = puts[start:end]
            try:
                await self._put(runtime, part, patience)
            except QueueError as error:
                if stored := end - len(part):  # stored messages have been removed from `part`
                    error.add_note(f"the first {stored} of {len(puts)} messages had been put before")
                raise
            start = end
        left_out = {put.id: stored_as(put) for put in puts if put.plan is not None}
        return [left_out.get(message_id, message_id) for message_id in ids] if left_out else ids

    async def _put(self, runtime: SessionCore, puts: list[Put], patience: Deadline | float | None) -> None:
        state = puts[0].state
        if not state.ready:
            await state.open()
        for put in puts:
            if put.plan is not None:
                await put.plan.prepare()
        if state.snapshot.capacity is None:
            await runtime.settle(AtomicWrite(runtime.ids.next(), Puts(puts)))
        else:
            begun = patience if isinstance(patience, Deadline) else Deadline(patience, runtime.clock)
            await put_bounded(QueueHandle(runtime, state), puts, begun)

    def _warn_of_transaction(self, runtime: SessionCore) -> None:
        work = current.get()
        if work is not None and work.runtime is runtime and work.open and asyncio.current_task() is not None:
            warnings.warn(
                f"`await queue.put()` on {self.name!r} inside transaction {work.id} is immediate and not part of the "
                "transaction; use `tx.put(queue, value)` to make it part of it",
                DirectPutWarning,
                stacklevel=3,
            )


async def put_bounded(handle: QueueHandle[SessionCore], puts: list[Put], patience: Deadline) -> None:
    """Put to a queue with ``max_size``, as many as it accepts at a time; stored messages are removed from ``puts``.

    Raises: as `Queue.put`.
    """
    while puts:
        room = handle.state.snapshot.capacity
        part = puts[: len(puts) if room is None else credits_of(handle.config.max_size or 1)]
        atomic_write = AtomicWrite(handle.runtime.ids.next(), Puts(part))
        if room is not None:
            await room.acquire(len(part), patience)
            room.bind(atomic_write, len(part))
        try:
            await handle.runtime.settle(atomic_write)
        except QueueFullError:  # it had no size limit when this was sent
            if patience.left == 0:
                raise
        else:
            del puts[: len(part)]
