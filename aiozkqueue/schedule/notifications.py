"""Notification queues: events for a date, found by search keys, replaced and removed while they wait.

They are ordinary queues, named ``<service>:<name>``; keys, token and date are headers. A search costs one listing for
each lane, and one for each hour up to its bound (`search`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args

from aiozkqueue.arguments import flag, is_choice, text
from aiozkqueue.errors import AlreadyExistsError, ConflictError, InvalidOptionError, NotFoundError
from aiozkqueue.layout import (
    HOUR,
    ConsumeTimes,
    End,
    Fixed,
    History,
    QueueConfig,
    check_queue_name,
    decode,
    hour_named,
    is_deleted,
    with_field,
)
from aiozkqueue.layout.paths import notifications_base
from aiozkqueue.moments import milliseconds_at, moment_at
from aiozkqueue.operations.alter import TRIES, alter_with, always_changed, replacement, settled
from aiozkqueue.operations.ended_locks import ended_locks
from aiozkqueue.operations.listing import list_items, locked_ids, walk
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.operations.stats import configuration, lanes, lanes_of
from aiozkqueue.queue.commit.capacity import enter
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, attempts_of, find, find_pages, removal
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.queue.state.config_rules import check_change
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.runtime.deadline import AT_ONCE
from aiozkqueue.session.internals import core_of, date_retries_from, handle_of, state_of, work_given
from aiozkqueue.session.middleware import check_awaited
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    ServerError,
    SetData,
    changes,
    reads,
    until_answered,
)

from .jobs import apply, ensure_folder, readable
from .search import DATE, KEY1, KEY2, TOKEN, Criteria, aware_ms, check_texts, date_in, search_field

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from typing_extensions import TypeForm

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.errors import QueueError
    from aiozkqueue.layout import Policy, StoredConfig
    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.message import DeadLetter
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.delivery import Delivery
    from aiozkqueue.session.listener import Listener
    from aiozkqueue.session.listener_options import ListenerOptions
    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.session.transaction import Transaction
    from aiozkqueue.zookeeper import CallLimit, Operation, ZooKeeperError

T = TypeVar("T")

Status = Literal["future", "in processing"]

#: Three retries after the first call, at once; then the notification has failed, and is a dead letter.
DEFAULT_POLICY = ConsumeTimes(4, backoff=Fixed(0))


@dataclass(frozen=True, slots=True)
class Notification(Generic[T]):
    """One event for a date."""

    id: str
    event: T
    effective_date: datetime
    """The date for which it was scheduled."""
    search_key1: str | None
    search_key2: str | None
    user_token: str | None
    created_at: datetime
    """The time when it was scheduled, in ZooKeeper's time."""
    status: Status
    attempt: int
    """The number of counted deliveries; in a handler, this one included. See `Message.attempt`."""
    delivery: Delivery[T] | None = None
    """In a handler: its delivery, whose puts and schedules with ``tx=`` are committed with this notification's end."""


_Search: TypeAlias = "Callable[[], Awaitable[list[ItemSnapshot]]]"


class Notifications:
    """The notification queues below a session's root: ``Notifications(session)``."""

    def __init__(self, session: QueueSession) -> None:
        self._session = session
        self._base = notifications_base(core_of(session).root)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return core_of(self._session).limit("notification queues")

    @changes
    async def create(
        self, service: str, name: str, type: TypeForm[T], *, policy: Policy = DEFAULT_POLICY, history: bool = True
    ) -> NotificationQueue[T]:
        """Create a notification queue; its events are values of ``type``, as of `QueueSession.queue`.

        With ``history``, each processed, removed or failed notification is recorded: see `Queue.history`. The record
        has its payload, and its keys, token and date as headers. For a failed one, the dead letter has them instead.

        The queue and its settings are created together; an existing queue is left unchanged.

        Raises: AlreadyExistsError; InvalidNameError, InvalidOptionError, ConfigConflictError, AccessDeniedError,
        NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        runtime, path = core_of(self._session), self._path(service, name)
        recorded = flag(history, "history")
        queue = NotificationQueue(self._session, service, name, type)
        state = state_of(queue.queue)
        config = _settings(policy, recorded=recorded)
        subject = _subject(service, name)
        await ensure_folder(runtime, subject, self._base)

        def explain(error: ZooKeeperError) -> QueueError | None:
            if isinstance(error, NodeExistsError | BadVersionError | NoNodeError):
                return ConflictError(f"{state.paths.base}: {error}")
            return None

        while True:
            with readable(subject, path):
                if await runtime.zookeeper.exists(path) is not None:
                    raise _exists_already(service, name)
            operations: list[Operation] = await _creation(runtime, state, config, path)
            if not operations:
                if not await state.open_existing():
                    continue
                check_change(state.name, state.config, config)
                settings = SetData(state.paths.base, state.config.changed(config).encode(), state.version)
                operations = [Create(path), settings]
            try:
                await apply(runtime, subject, operations, explain)
            except ConflictError:  # another session has just created, changed or deleted it
                await runtime.zookeeper.sync(state.paths.base)
                state.invalidate()
                continue
            state.invalidate()
            state.create_with(config, path)  # after a deletion
            return queue

    @reads
    async def get(self, service: str, name: str, type: TypeForm[T]) -> NotificationQueue[T]:
        """Return an existing notification queue.

        If another program deletes it, the next `NotificationQueue.schedule` creates it again with its present policy
        and history.

        Raises: NotFoundError: there is no such queue; PayloadError: its configuration does not decode;
        InvalidNameError, InvalidOptionError, ConfigConflictError, AccessDeniedError, ConnectionLostError,
        SessionClosedError, WrongLoopError.
        """
        path = self._path(service, name)
        with readable(_subject(service, name), path):
            zookeeper = core_of(self._session).zookeeper
            if await zookeeper.exists(path) is None:
                await zookeeper.sync(path)  # a lagging server may not know a new one
                if await zookeeper.exists(path) is None:
                    msg = f"service {service!r} has no notification queue {name!r}; create it"
                    raise NotFoundError(msg)
        queue = NotificationQueue(self._session, service, name, type)
        settings = _settings(DEFAULT_POLICY, recorded=True)
        with suppress(NotFoundError):  # it has just been deleted
            stored = await queue.queue.configuration()
            settings = QueueConfig(policy=stored.policy, history=stored.history)
        state_of(queue.queue).create_with(settings, path)
        return queue

    @reads
    async def list(self) -> list[tuple[str, str]]:
        """List services and names of all queues.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        runtime = core_of(self._session)
        with readable("notification queues", self._base):
            stat = await runtime.zookeeper.exists(self._base)
            names = [] if stat is None else await runtime.zookeeper.children(self._base)
        return sorted((service, name) for service, _, name in (full_name.partition(":") for full_name in names))

    def _path(self, service: str, name: str) -> str:
        return f"{self._base}/{queue_name(service, name)}"


async def _creation(runtime: SessionCore, state: QueueState, config: QueueConfig, entry: str) -> list[Operation]:
    """Return the operations that create a queue with its entry in the list of queues; none if the queue exists.

    Raises: AccessDeniedError.
    """

    async def operations() -> list[Operation]:
        try:
            data, stat = await runtime.zookeeper.read(state.paths.base)
        except NoNodeError:
            return await state.creation(None, config, entry)
        return await state.creation(stat.version, config, entry) if is_deleted(data) else []

    while True:
        try:
            with translate_denials(state.name):
                return await until_answered(runtime.zookeeper, operations)
        except MultiError as error:  # while the remains of an earlier queue were cleared
            if isinstance(error.error, NoAuthError):
                raise access_denied(state.name, error.error) from error
            if isinstance(error.error, ServerError):
                raise  # a repetition would be refused too


class NotificationQueue(Generic[T]):
    """One notification queue; made by `Notifications`. Without a running listener it keeps its notifications."""

    def __init__(self, session: QueueSession, service: str, name: str, type: TypeForm[T]) -> None:
        self._session = session
        self._queue: Queue[T] = session.queue(queue_name(service, name), type)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return core_of(self._session).limit(f"queue {self._queue.name!r}")

    @property
    def queue(self) -> Queue[T]:
        """The underlying queue: its figures, its dead letters, its history."""
        return self._queue

    @changes
    async def schedule(
        self,
        event: T,
        at: datetime,
        *,
        search_key1: str | None = None,
        search_key2: str | None = None,
        user_token: str | None = None,
        tx: Transaction | Delivery[Any] | None = None,
    ) -> str:
        """Schedule an event for a date, and return its id. A past date is due at once.

        Args:
            event: the event.
            at: the date, with a time zone.
            search_key1: the first search key; it needs the second.
            search_key2: the second search key.
            user_token: a text that is stored with the event.
            tx: schedule the event with the commit of this transaction or delivery; None: at once.

        Raises:
            InvalidOptionError: the date has no time zone, a key is not a str, or only the first key is given.
            QueueFullError: the queue has a maximum size, and no capacity.
            PayloadError, MessageTooLargeError, TransactionTooLargeError, TransactionClosedError, OutcomeUnknownError,
            AccessDeniedError, NotCommittedError, SessionClosedError, WrongLoopError.
        """
        runtime = core_of(self._session)
        if tx is not None:
            work_given(tx).require_of(runtime)
        aware_ms(at)
        check_texts(user_token=user_token)
        headers = {KEY1: search_key1, KEY2: search_key2, TOKEN: user_token, DATE: at.isoformat()}
        present = {name: text for name, text in headers.items() if text is not None}
        field = search_field(search_key1, search_key2)
        put = prepare(runtime, self._queue, event, {"at": at, "headers": present})
        if field is not None:
            put = put._replace(prefix=with_field(put.prefix, field))
        if tx is not None:
            work_given(tx).add_put(put)
            return put.id
        await make_ready([put])
        atomic_write = AtomicWrite(runtime.ids.next(), CreateItems([put]))
        await enter(atomic_write, [put], AT_ONCE)
        await runtime.settle(atomic_write)
        return put.id

    @reads
    async def find(
        self,
        search_key2: str | None = None,
        *,
        search_key1: str | None = None,
        until: datetime | None = None,
        status: Status | None = None,
    ) -> list[Notification[T]]:
        """Find waiting notifications and those being handled, by the second key, by both keys, or all; earliest first.

        Args:
            search_key2: the second search key; None: all notifications.
            search_key1: the first search key.
            until: the latest effective date, with a time zone.
            status: only notifications in this state; None: both states.

        Raises: InvalidOptionError; PayloadError: a match does not decode; AccessDeniedError,
        ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        if status is not None and not is_choice(status, *get_args(Status)):
            msg = f"status={status!r}: give {' or '.join(map(repr, get_args(Status)))}, or leave it out"
            raise InvalidOptionError(msg)
        found = await self._find(Criteria(search_key1, search_key2, until))
        now = await shown_time(core_of(self._session)) if found else 0
        shown = [self._shown(item, now) for item in found]
        shown.sort(key=lambda notification: notification.effective_date)
        return [notification for notification in shown if status in (None, notification.status)]

    @changes
    async def update(
        self,
        notification_id: str,
        event: T,
        *,
        search_key1: str | None = None,
        search_key2: str | None = None,
        tx: Transaction | Delivery[Any] | None = None,
    ) -> bool:
        """Replace the event of a waiting notification; return False if it is being handled, or does not exist.

        Its keys, token and date do not change.

        Args:
            notification_id: the id of the notification.
            event: the new event.
            search_key1: if given, it must be the notification's; otherwise nothing changes, and the result is False.
            search_key2: likewise.
            tx: make the change a part of this commit, which raises ConflictError if the entry is taken before.

        Raises: InvalidOptionError: a key is not a str, or only the first key is given; PayloadError,
        MessageTooLargeError, TransactionClosedError, OutcomeUnknownError, AccessDeniedError, NotCommittedError,
        SessionClosedError, WrongLoopError.
        """
        handle = handle_of(self._queue)
        keyed = search_field(search_key1, search_key2) is not None
        criteria = Criteria(search_key1, search_key2)
        body = decode(prepare(handle.runtime, self._queue, event, {}).data)[1]

        async def matches() -> list[ItemSnapshot]:
            found = await self._by_id(notification_id)
            return [item for item in found if criteria.match(item)] if keyed else found

        def make(found: ItemSnapshot) -> Change:
            return replacement(handle, found, body)

        return await self._alter(matches, make, tx, removes=False) > 0

    @changes
    async def remove(self, notification_id: str, *, tx: Transaction | Delivery[Any] | None = None) -> bool:
        """Remove a waiting notification; return False if it is being handled, or does not exist.

        With ``tx`` as `update`.

        Raises: ItemNotEmptyError: it cannot be removed, because znodes were created below it; InvalidOptionError,
        TransactionClosedError, OutcomeUnknownError, AccessDeniedError, PayloadError, NotCommittedError,
        SessionClosedError, WrongLoopError.
        """
        return await self._remove(partial(self._by_id, notification_id), tx) > 0

    @changes
    async def remove_all(
        self, search_key2: str, *, search_key1: str | None = None, tx: Transaction | Delivery[Any] | None = None
    ) -> int:
        """Remove all waiting notifications with the second key, or with both; return their number.

        Notifications being handled are not affected, even if they are retried later. With ``tx`` as `update`.

        Raises: InvalidOptionError; as `remove`.
        """
        if cast("str | None", search_key2) is None:  # it would stand for all notifications
            msg = "search_key2=None: give the second search key"
            raise InvalidOptionError(msg)
        return await self._remove(partial(self._find, Criteria(search_key1, search_key2)), tx)

    @reads
    async def ready(self, at: datetime | None = None) -> int:
        """Count the notifications of this queue that can be handled at a date (None: now).

        These are due by that date, no handler holds them now, and leases and delays of retries have ended by that date.

        Raises: InvalidOptionError: the date has no time zone; AccessDeniedError, PayloadError, ConnectionLostError,
        SessionClosedError, WrongLoopError.
        """
        handle = handle_of(self._queue)
        now = await server_time(handle.runtime, f"queue {handle.name!r}")
        moment = now if at is None else aware_ms(at)
        config = await configuration(handle)
        if config is None:
            return 0
        locked = await locked_ids(handle)
        async for ended in ended_locks(handle, moment=max(now, moment)):
            locked.discard(ended)
        ready = 0
        async for page in walk(handle, await self._folders(config, moment), ordered=False):
            due = [entry for entry in page if (entry.item.due or 0) <= moment]
            free = [entry for entry in due if handle.state.lock_id_of(entry.item.text, config) not in locked]
            if moment < now:  # a name without a date only says that the date had passed when it was scheduled
                unsure = [handle.paths.place_of(entry.path) for entry in free if entry.item.due is None]
                found = await find(handle, unsure) if unsure else []
                ready += sum(Criteria(until=at).match(item) for item in found) - len(unsure)
            ready += len(free)
        return ready

    def listener(
        self,
        handler: Callable[[Notification[T]], Awaitable[None]],
        *,
        concurrency: int = 10,
        timeout: Seconds | None = None,
        drain_timeout: Seconds = 15,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = None,
    ) -> Listener[T]:
        """Return a listener that calls ``handler`` for each notification when its date has come.

        The handler may raise `Retry` and `Reject`; a schedule that it raises is followed to its end. After any other
        failure it is called three times more, at once (`DEFAULT_POLICY`). Then the notification becomes a dead letter,
        with the number of its attempts.

        Args:
            handler: an ``async def`` with one parameter, the notification.
            concurrency: the maximum number of notifications handled at a time.
            timeout: as in `ListenerOptions`.
            drain_timeout: as in `ListenerOptions`.
            on_dead: as for `QueueSession.listener`.

        Raises: InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        check_awaited(handler, "a handler")

        async def handle(delivery: Delivery[T]) -> None:
            headers = delivery.headers
            date = date_in(headers.get(DATE), delivery.enqueued_at)
            date_retries_from(delivery, milliseconds_at(date))  # the queue does not store a date that had passed
            await handler(
                Notification(
                    delivery.id,
                    delivery.value,
                    date,
                    headers.get(KEY1),
                    headers.get(KEY2),
                    headers.get(TOKEN),
                    delivery.enqueued_at,
                    "in processing",
                    delivery.attempt,
                    delivery,
                )
            )

        options: ListenerOptions = {"concurrency": concurrency, "timeout": timeout, "drain_timeout": drain_timeout}
        return self._session.listener(self._queue, handle, on_dead=on_dead, **options)

    # -- searching

    async def _folders(self, config: StoredConfig | None, until: int | None) -> list[str]:
        handle = handle_of(self._queue)
        later = f"{handle.paths.later}/"
        folders = await lanes_of(handle, config)
        if until is None:
            return folders
        hours = [(folder, hour_named(folder.removeprefix(later))) for folder in folders]
        return [folder for folder, hour in hours if hour is None or hour <= until // HOUR]

    async def _find(self, criteria: Criteria) -> list[ItemSnapshot]:
        handle = handle_of(self._queue)
        prefix = criteria.prefix()
        until = None if criteria.until is None else aware_ms(criteria.until)
        await handle.zookeeper.sync(handle.paths.base)

        def may_match(name: str) -> bool:
            item = handle.state.parse_item(name)
            if item is None or (until is not None and (item.due or 0) > until):
                return False
            return prefix is None or any(field.startswith(prefix) for field in item.unknown)

        config = await configuration(handle)  # it says which lock is a message's, and may have just changed
        items = await list_items(handle, await self._folders(config, until), may_match)
        places = [handle.paths.place_of(entry.path) for entry in items]
        found = find_pages(handle, places, config=config)
        return [item async for page in found for item in page if criteria.match(item)]

    async def _by_id(self, notification_id: str) -> list[ItemSnapshot]:
        text(notification_id, "notification_id", "the id of a notification, as `schedule` returned it")
        handle = handle_of(self._queue)
        await handle.zookeeper.sync(handle.paths.base)
        items = await list_items(handle, await lanes(handle), lambda name: notification_id in name)
        places = [handle.paths.place_of(entry.path) for entry in items if entry.item.id == notification_id]
        return await find(handle, places)

    async def _remove(self, matches: _Search, tx: Transaction | Delivery[Any] | None) -> int:
        handle = handle_of(self._queue)
        disposition = Disposition("remove", outcome=End.REMOVED)

        def make(found: ItemSnapshot) -> Change:
            return removal(handle.runtime, handle.state, found, disposition)

        return await self._alter(matches, make, tx, removes=True)

    async def _alter(
        self,
        matches: _Search,
        make: Callable[[ItemSnapshot], Change],
        tx: Transaction | Delivery[Any] | None,
        *,
        removes: bool,
    ) -> int:
        """Change the waiting ones of the matches, or add the changes to a transaction; return their number."""
        handle = handle_of(self._queue)
        if tx is not None:
            work_given(tx).require_of(handle.runtime)
        altered: set[str] = set()
        for _ in range(TRIES):
            # A commit asserts the configuration that was known when the entries were read.
            if not await handle.state.open_existing():
                return len(altered)
            found = [item for item in await matches() if item.id not in altered]
            now = await handle.runtime.server_clock.learned(handle.paths.due)
            waiting = [item for item in found if not item.held(now)]
            if tx is not None:
                return alter_with(work_given(tx), [(item, make(item)) for item in waiting], removes=removes)
            made = await settled(handle, waiting, make)
            altered |= {item.id for item in waiting if item.place in made}
            if len(made) == len(waiting):
                return len(altered)
            # The others were taken or updated in the meantime, or the configuration has changed: they are read again.
        raise always_changed(handle)

    def _shown(self, found: ItemSnapshot, now: int) -> Notification[T]:
        header, body = decode(found.item.data)
        created = moment_at(header.put_at(found.item.stat.ctime))
        return Notification(
            found.id,
            binding_of(self._queue).codec.decode(body, self._queue.name),
            date_in(header.headers.get(DATE), created),
            header.headers.get(KEY1),
            header.headers.get(KEY2),
            header.headers.get(TOKEN),
            created,
            "in processing" if found.held(now) else "future",
            attempts_of(found.meta),
        )


def _subject(service: str, name: str) -> str:
    return f"notification queue {name!r} of service {service!r}"


def _exists_already(service: str, name: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"service {service!r} already has a notification queue {name!r}; open it with `get`")


def _settings(policy: Policy, *, recorded: bool) -> QueueConfig:
    return QueueConfig(policy=policy, history=History(payload=True) if recorded else None)


def queue_name(service: str, name: str) -> str:
    """Return the queue of a notification queue. Raises: InvalidNameError."""
    service = check_queue_name(service, "service")
    queue = check_queue_name(f"{service}:{check_queue_name(name, 'notification queue')}", "notification queue")
    if ":" in service:
        msg = f"service={service!r}: a colon separates the service from the queue's name; use a name without colons"
        raise InvalidOptionError(msg)
    return queue
