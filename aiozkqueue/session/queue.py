"""Queues: the public objects for puts, consumers and administration."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import aclosing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from aiozkqueue.arguments import collection, flag, is_choice, positive, required_seconds, seconds, text
from aiozkqueue.codec import codec_of
from aiozkqueue.errors import (
    DirectPutWarning,
    InvalidOptionError,
    NotFoundError,
    PayloadError,
    QueueFullError,
    SessionClosedError,
)
from aiozkqueue.layout import QueueConfig, check_condition, positive_seconds
from aiozkqueue.layout.replies import REPLY_TO, ReplyAddress
from aiozkqueue.operations import alter, stats
from aiozkqueue.operations.alter import AlterationTarget
from aiozkqueue.operations.budget import BUDGET
from aiozkqueue.operations.bundles import unbundle_if_excluded
from aiozkqueue.operations.dead_letters import DeadLetters
from aiozkqueue.operations.history import read_history
from aiozkqueue.operations.message_state import MessageState, state_of
from aiozkqueue.operations.peek import peek
from aiozkqueue.operations.purge import purge
from aiozkqueue.operations.similar import absence
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unique_keys import stored_id
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.destination import Binding, Destination
from aiozkqueue.queue.message import Message
from aiozkqueue.queue.options import put_header
from aiozkqueue.queue.put.prepare import prepare
from aiozkqueue.runtime.deadline import FOREVER, Deadline
from aiozkqueue.zookeeper import changes, reads

from .administration import QueueAdmin
from .consumer import Consumer
from .direct_puts import send_bounded, send_many, send_puts
from .leases import Leases
from .unit_of_work import current_work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime
    from typing import Unpack

    from typing_extensions import TypeForm

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.codec import Codec
    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Condition, HistoryRecord, Policy
    from aiozkqueue.operations.alter import Alteration
    from aiozkqueue.queue.destination import Undecodable
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import CallLimit

    from .core import SessionCore

T = TypeVar("T")
R = TypeVar("R")


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
            msg = (
                f"queue {self.name!r} does not belong to a session: it was made for a test, or its application is not "
                "connected; connect it with `async with app.connect()`"
            )
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

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._core.limit(f"queue {self.name!r}")

    async def put(self, value: T, *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]) -> str:
        """Put a message, exactly once, and return its id. On return it is stored.

        ``timeout`` is the time limit of the whole call, in seconds. In a queue with ``max_size``, the put waits for
        capacity during that time. With 0, a full queue refuses the put at once; with None, the put waits for capacity
        without a limit. In both cases the rest of the call takes up to the session's ``operation_timeout``. A put that
        is cancelled before it was sent stores nothing. If it is cancelled later, it waits for the answer for up to the
        session timeout, and then continues in the background.

        Raises:
            PayloadError: the value is not of the queue's type, or the stored configuration does not decode.
            MessageTooLargeError: the message is larger than ZooKeeper accepts.
            NotCommittedError: the message could not be sent in time, and was not stored.
            OutcomeUnknownError: there was no answer in time, or the session was closed: the message may be stored.
            QueueFullError: the queue holds ``max_size`` messages, and no capacity was freed in time.
            DuplicateKeyError: it was put with ``unique``, and the queue already holds a message with its key.
            ConfigConflictError: the queue stores another policy, or it was put with ``group``, and the queue is sticky.
            AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        given: object = timeout
        wait = 0.0 if type(given) is int and not given else seconds(timeout, "timeout")  # 0 is the default
        runtime = self._core
        self._warn_of_transaction(runtime)
        if runtime.tracing is not None:
            with runtime.tracing.sending(self.name, None):
                put = prepare(runtime, self, value, options)
                await send_puts(runtime, [put], Deadline(wait, runtime.clock))
                return stored_id(put)
        put = prepare(runtime, self, value, options)
        if put.plan is not None or not put.state.ready or put.state.snapshot.capacity is not None:
            await send_puts(runtime, [put], Deadline(wait, runtime.clock))
            return stored_id(put)
        # The usual case, as `send_puts` does it if there is nothing to wait for before it is sent.
        deadline = Deadline(wait, runtime.clock) if wait else FOREVER
        try:
            if wait:
                await runtime.settle(AtomicWrite(put.id, CreateItems((put,))), wait, queue=self.name)
            else:
                await runtime.settle_put(put)
        except QueueFullError:  # it had no size limit when this was sent
            if wait == 0:
                raise
        else:
            return put.id
        await send_bounded(QueueHandle(runtime, put.state), [put], deadline)
        return put.id

    @overload
    async def call(self, value: T, *, timeout: Seconds, **options: Unpack[PutOptions]) -> bytes: ...
    @overload
    async def call(self, value: T, reply: TypeForm[R], *, timeout: Seconds, **options: Unpack[PutOptions]) -> R: ...
    async def call(self, value: T, reply: Any = bytes, *, timeout: Seconds, **options: Unpack[PutOptions]) -> Any:
        """Put a message, and wait for the reply of its handler, `Delivery.reply`; return it decoded to ``reply``.

        ``timeout`` is the time limit of the whole call, in seconds. The reply is part of the handler's commit. There is
        no reply if the handler does not reply, if the message is given up, or if this session has been closed. After a
        timeout or a cancellation, the message stays in the queue and may still be handled: `cancel` removes it.

        Raises:
            NoReplyError: there was no reply in time.
            GivenUpError: the message is a dead letter, was dropped, cancelled, purged or replaced, or has expired.
            PayloadError: the value is not of the queue's type, or the reply is not of the type ``reply``.
            MessageTooLargeError, NotCommittedError, OutcomeUnknownError, QueueFullError, DuplicateKeyError,
            ConfigConflictError: as `put`.
            AccessDeniedError, InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        wait, runtime = required_seconds(timeout, "timeout"), self._core
        codec = codec_of(self.name, reply, runtime.calls.codecs)
        due = runtime.clock.monotonic() + wait
        address = ReplyAddress(runtime.ids.client, runtime.ids.next())
        future = runtime.calls.expect(address.call)
        try:
            message_id = await self._put_call(runtime, value, Deadline(wait, runtime.clock), options, address)
            data = await runtime.calls.reply(future, due, message_id)
        finally:
            runtime.calls.forget(address.call)
        try:
            return codec.decode(data, self.name)
        except PayloadError as error:
            msg = f"the reply to message {message_id} is not of the type of the call: {error}"
            raise PayloadError(msg) from None

    async def put_many(
        self, values: Iterable[T], *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]
    ) -> list[str]:
        """Put messages in order, and return their ids.

        All values are checked before any is sent. If one is refused, a note of the error has its position. They are
        sent in as few requests as possible, one after the other. After an error, the messages of earlier requests are
        stored, and a note of the error states their number. To put all or none, use a transaction. ``timeout`` is as
        for `put`.

        Raises: as `put`; InvalidOptionError: ``values`` is one str, bytes or mapping.
        """
        wait = seconds(timeout, "timeout")
        runtime = self._core
        self._warn_of_transaction(runtime)
        if runtime.tracing is None:
            return await send_many(runtime, self, values, options, wait)
        listed = list(collection(values, f"queue {self.name!r}: put_many", "messages"))
        with runtime.tracing.sending(self.name, len(listed)):
            return await send_many(runtime, self, listed, options, wait)

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
                does not settle deliveries; an unsettled message stays locked until the session ends. The session then
                logs the number of unsettled messages.
            until_idle: end the loop when no message has arrived for this many seconds (0: when the queue is empty) and
                its own commits have been answered. Messages that it could not commit, or that it put into this queue
                itself, are delivered before. None: run forever.
            filters: take only messages whose tags match.

        Raises:
            InvalidOptionError: an option is out of range.
            ConfigConflictError: another policy is stored; the loop raises it if this is found only then.
            PayloadError, AccessDeniedError: the loop raises them if the stored configuration does not decode, or an ACL
                refuses the queue.
            SessionClosedError, WrongLoopError.
        """
        runtime = self._core
        if not is_choice(settle, "next", "explicit"):
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

    @reads
    async def peek(self, limit: int = 10) -> list[Message[T]]:
        """Read up to ``limit`` of the oldest messages, including claimed ones, without taking them.

        A message that this user may not read is left out, and named in a warning in the log. If only its attempts may
        not be read, it is shown, and its ``error`` gives the reason.

        Raises: AccessDeniedError, PayloadError, InvalidOptionError, ConnectionLostError, SessionClosedError,
        WrongLoopError.
        """
        contents = await peek(self._handle, positive(limit, "limit"))
        return [Message(content, self._binding.codec) for content in contents]

    @reads
    async def size(self) -> int:
        """Count all messages: waiting, in flight and delayed; 0 if the queue does not exist.

        Messages in folders that this user may not read are left out, and a warning in the log names such a folder.

        Raises: as `stats`.
        """
        return await stats.size(self._handle)

    async def claimed(self) -> int:
        """Count the messages in flight, which a transaction, a delivery or a ledger holds. Raises: as `stats`."""
        return (await self.stats()).in_flight

    @reads
    async def exists(self) -> bool:
        """Return whether the queue exists: its first put or `configure` creates it.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        self._core.check()
        return await self._state.exists()

    @reads
    async def stats(self, *, budget: Seconds = BUDGET) -> stats.QueueStats:
        """Read the queue's figures.

        Some figures need listings, which take seconds for a million messages. ``budget`` is the time for them, in
        seconds or as a timedelta. When it is used up, the call returns the figures that it has read, and names the
        others in `QueueStats.incomplete`. `QueueStats.unreadable` names the figures that leave out something that this
        user may not read.

        Raises: AccessDeniedError, PayloadError, InvalidOptionError, ConnectionLostError, SessionClosedError,
        WrongLoopError.
        """
        return await stats.stats(self._handle, positive_seconds("budget", budget))

    @changes
    async def purge(self) -> int:
        """Permanently remove every message that is not in flight, including leased ones, and return their number.

        Dead letters stay.

        Raises:
            PartlyDeniedError: this user may not read or remove some of them; all others are gone.
            AccessDeniedError, PayloadError, ConfigConflictError, NotCommittedError, OutcomeUnknownError,
            SessionClosedError, WrongLoopError.
        """
        return await purge(self._handle)

    @changes
    async def cancel(self, *, id: str | None = None, key: str | None = None, running: bool = False) -> Alteration:
        """Remove the message with an id, or all messages with a key, unless a consumer holds them.

        This lists the queue. Returns `Alteration.HELD` if one of them is in flight or leased; that one is not removed.
        After this has returned `Alteration.DONE`, the message is never delivered.

        Args:
            id: the id of the message.
            key: a key, instead of an id.
            running: also remove messages in flight. Their holder can no longer commit, and a listener that runs a
                handler for the message, in any process, cancels that handler. `Alteration.NOT_FOUND` can then also
                mean that the holder committed first. Other messages of the same batch, bundle or group that are in
                flight may be redelivered. Messages that a Spark batch holds are not removed.

        Raises:
            InvalidOptionError: not exactly one of ``id`` and ``key`` is given.
            ItemNotEmptyError: a message cannot be removed, because znodes were created below it.
            NotCommittedError: other clients kept changing it.
            OutcomeUnknownError, AccessDeniedError, PayloadError, ConfigConflictError, SessionClosedError,
            WrongLoopError.
        """
        return await alter.cancel(self._core, AlterationTarget(self, id, key), running=flag(running, "running"))

    @changes
    async def update(self, value: T, *, id: str | None = None, key: str | None = None) -> Alteration:
        """Replace the payload of the message with an id, or of all messages with a key, unless a consumer holds them.

        The id, key, headers, place, attempts and due time are unchanged. If the message has its payload as its key, it
        gets the key of the new one. Otherwise as `cancel`: once this has returned `Alteration.DONE`, the new value is
        delivered.

        Raises:
            PayloadError: the value is not of the queue's type.
            DuplicateKeyError: another message has the new payload as its unique key.
            MessageTooLargeError: the message is larger than ZooKeeper accepts.
            InvalidOptionError, NotCommittedError, OutcomeUnknownError: as `cancel`.
            AccessDeniedError, ConfigConflictError, SessionClosedError, WrongLoopError.
        """
        return await alter.update(self._core, AlterationTarget(self, id, key), value)

    @reads
    async def state(self, message_id: str) -> MessageState:
        """Return the state of a message, by the id that `put` returned.

        This lists the queue. An ended message is found in the history, if the queue keeps one, or among the dead
        letters; any other is UNKNOWN.

        Raises: InvalidOptionError, AccessDeniedError, PayloadError, ConnectionLostError, SessionClosedError,
        WrongLoopError.
        """
        return await state_of(self._handle, text(message_id, "message_id", "the id of a message"))

    async def history(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[HistoryRecord]:
        """Iterate over the records of ended messages, in the order in which they ended.

        `QueueConfig.history` decides which records the queue keeps, and for how long.

        Args:
            since: the first end to include, with a time zone; None: the oldest.
            until: the first end to exclude, with a time zone; None: no end.
            limit: the maximum number of records; None: all.
            newest_first: iterate in the reverse order.

        Raises: AccessDeniedError, InvalidOptionError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        most, reverse = None if limit is None else positive(limit, "limit"), flag(newest_first, "newest_first")
        records = read_history(self._handle, since=since, until=until, limit=most, newest_first=reverse)
        async with aclosing(records):
            while True:
                async with self._limit:
                    record = await anext(records, None)
                if record is None:
                    return
                yield record

    @reads
    async def configuration(self) -> QueueConfig:
        """Read the current settings.

        Raises: NotFoundError: the queue does not exist; PayloadError: the stored data is not a configuration;
        AccessDeniedError, ConfigConflictError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        state = self._state
        state.invalidate()
        await self._core.zookeeper.sync(state.paths.base)  # a lagging server may not know a new queue
        try:
            await state.open()
        except NotFoundError as error:
            raise NotFoundError(await absence(self._core, self.name)) from error
        return state.config.settings

    @changes
    async def configure(self, config: QueueConfig) -> None:
        """Store settings; every consumer follows them from its next claim on.

        This creates the queue if it does not exist. `QueueConfig.paused` alone does not: a queue that is paused or
        resumed must exist. A setting that excludes bundles turns them off first, as `QueueAdmin.unbundle` does.

        Raises: NotFoundError: there is no queue to pause or resume; ConfigConflictError: two settings exclude each
        other, or consumers hold bundles; AccessDeniedError, PayloadError, InvalidOptionError, NotCommittedError,
        OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        given: object = config
        if not isinstance(given, QueueConfig):
            msg = f"configure takes a QueueConfig, not {type(config).__name__}"
            raise InvalidOptionError(msg)
        try:
            await self._state.configure(config, partial(unbundle_if_excluded, self._handle, config))
        except NotFoundError as error:
            raise NotFoundError(await absence(self._core, self.name)) from error

    @property
    def dead_letters(self) -> DeadLetters[T]:
        """Messages that were rejected, or used up their attempts. Raises: SessionClosedError, WrongLoopError."""
        return DeadLetters(self._handle, self._binding.codec)

    @property
    def admin(self) -> QueueAdmin:
        """Administration of this queue, for operators. Raises: SessionClosedError, WrongLoopError."""
        return QueueAdmin(self._handle)

    @property
    def leases(self) -> Leases[T]:
        """The leases of the queue: poll messages for a limited time, and acknowledge them by a token from any process.

        Raises: SessionClosedError, WrongLoopError.
        """
        return Leases(self._core, self, self._state)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    async def _put_call(
        self, runtime: SessionCore, value: T, deadline: Deadline, options: PutOptions, address: ReplyAddress
    ) -> str:
        """Put a message that asks for a reply; return its id. Raises: as `put`."""
        with nullcontext() if runtime.tracing is None else runtime.tracing.sending(self.name, None):
            put_header(self.name, options)  # checks the headers
            headers = {**(options.get("headers") or {}), REPLY_TO: str(address)}
            put = prepare(runtime, self, value, {**options, "headers": headers})
            await send_puts(runtime, [put], deadline)
            return stored_id(put)

    def _warn_of_transaction(self, runtime: SessionCore) -> None:
        work = current_work.get()
        if work is not None and work.runtime is runtime and work.open and asyncio.current_task() is not None:
            warnings.warn(
                f"`await queue.put()` on {self.name!r} inside {work.kind} stores its message at once, even if that is "
                "rolled back; use `tx.put(queue, value)`, or in a handler `delivery.put(queue, value)`, to put it with "
                "the commit",
                DirectPutWarning,
                stacklevel=3,
            )
