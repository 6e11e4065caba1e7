"""The state of one message, found by its id."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aiozkqueue.layout import CLIENT_DIGITS, ClientPaths, End, LockRecord, MalformedError, StoredConfig, decode
from aiozkqueue.layout.compaction import put_at
from aiozkqueue.layout.processes import ProcessInfo
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.candidates.groups import is_group, lock_ids
from aiozkqueue.queue.commit.unclaimed import attempts_of, lock_of, possible_locks, read_all, record_of_attempts

from .bundles import find_bundled
from .consumers import entry_client
from .history import find_record
from .listing import first_items, list_children
from .shown_time import shown_time
from .stats import configuration, due_of, lanes, lanes_of

if TYPE_CHECKING:
    from datetime import datetime

    from aiozkqueue.layout import HistoryRecord
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime

    from .listing import Placed


class Status(enum.Enum):
    """The states of a message."""

    WAITING = "waiting"
    """It can be taken now."""
    DELAYED = "delayed"
    """It can only be taken later: it is scheduled, or waits for a retry."""
    IN_FLIGHT = "in flight"
    """It is claimed: a transaction, a delivery or a ledger holds it."""
    DEAD = "dead-lettered"
    FINISHED = "finished"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REMOVED = "removed"
    COLLAPSED = "collapsed"
    REAPED = "reaped"
    UNKNOWN = "unknown"
    """It does not exist: it was never put, or it has ended and no history records it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A session of a program, with its host and process id if they are known."""

    client: str
    host: str = ""
    pid: int = 0
    name: str = ""
    """The name of the session (``connect(name=...)``); empty: none, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageState:
    """The state of one message. The parts are read one after the other, not at one moment."""

    id: str
    status: Status
    attempts: int = 0
    """The number of counted deliveries; see `Message.attempt`."""
    put_at: datetime | None = None
    """When it was put, in ZooKeeper's time."""
    put_by: Process | None = None
    """The session that created its id; None if another program put it."""
    claimed_at: datetime | None = None
    claimed_by: Process | None = None
    """The client that holds it, or held it when it ended; None if that is another program."""
    due: datetime | None = None
    """When it can be taken, for a delayed message."""
    error: str | None = None
    """How the last attempt failed."""
    ended_at: datetime | None = None
    reason: str = ""
    """Why it became a dead letter or was dropped."""


async def state_of(handle: QueueHandle[Runtime], message_id: str) -> MessageState:
    """Return the state of a message. Lists the queue, and if the message is not there, the history."""
    for again in (True, False):  # a message that is redriven during the search may be found in neither place
        if not again:
            await handle.zookeeper.sync(handle.paths.base)  # a lagging server may not show a stored message yet
        item = await _item(handle, message_id, await lanes(handle))
        if item is not None and (living := await _living(handle, item)) is not None:
            return living
        bundled = await _bundled(handle, message_id)
        if bundled is not None:
            return bundled
        dead = await _item(handle, message_id, [handle.paths.dlq])
        record = await find_record(handle, message_id)
        if dead is not None and (buried := await _dead(handle, dead, record)) is not None:
            return buried
        if record is not None and (record.outcome is not End.DEAD or not again):
            return await _ended(handle, record)
    return MessageState(id=message_id, status=Status.UNKNOWN)


async def _bundled(handle: QueueHandle[Runtime], message_id: str) -> MessageState | None:
    """Return the state of a message that is in a bundle."""
    config = await configuration(handle)
    if config is None or not config.bundled:
        return None
    found = await find_bundled(handle, await lanes_of(handle, config), message_id)
    if found is None:
        return None
    state = MessageState(
        id=message_id,
        status=Status.WAITING,
        put_at=moment_at(put_at(found.message.data, found.state.bundle.ctime)),
        put_by=await _producer(handle, message_id),
        attempts=found.attempts,
        error=found.error,
    )
    lock = found.state.lock
    if lock is None:
        return state
    owner = LockRecord.decode(lock.data).owner
    consumer = await _consumer(handle, owner) if owner else None
    return replace(state, status=Status.IN_FLIGHT, claimed_at=moment_at(lock.ctime), claimed_by=consumer)


async def _item(handle: QueueHandle[Runtime], message_id: str, folders: list[str]) -> Placed | None:
    def has_id(name: str) -> bool:
        # Parsing every name of a deep queue costs more than listing it. The id of a negative sequence is n and digits.
        if message_id.removeprefix("n") not in name:
            return False
        item = handle.state.parse_item(name)
        return item is not None and item.id == message_id

    found = await first_items(handle, folders, 1, has_id)
    return found[0] if found else None


async def _comes_first(handle: QueueHandle[Runtime], placed: Placed, group: str) -> bool:
    """Whether a message is the one that a group's lock holds."""

    def is_member(name: str) -> bool:
        item = handle.state.parse_item(name)
        return item is not None and group in lock_ids(item)

    first = await first_items(handle, await lanes(handle), 1, is_member)
    return bool(first) and first[0].item.id == placed.item.id


async def _living(handle: QueueHandle[Runtime], placed: Placed) -> MessageState | None:
    paths, message_id, name = handle.paths, placed.item.id, placed.item.text
    config = await configuration(handle) or StoredConfig()  # another program's queue need not have one
    possible = possible_locks(handle.state, name, config)
    node, meta, *locks = await read_all(handle, [placed.path, paths.meta(message_id), *map(paths.lock, possible)])
    if node is None:
        return None
    lock_id, lock = lock_of(name, list(zip(possible, locks, strict=True)))
    if is_group(lock_id) and not await _comes_first(handle, placed, lock_id):
        lock = None  # the lock holds an earlier message
    record = record_of_attempts(meta)
    state = MessageState(
        id=message_id,
        status=Status.WAITING,
        put_at=moment_at(put_at(node.data, node.stat.ctime)),
        put_by=await _producer(handle, message_id),
        attempts=attempts_of(meta),
        error=None if record is None else record.error,
    )
    if lock is not None and (held := LockRecord.decode(lock.data)).end is None:
        consumer = await _consumer(handle, held.owner) if held.owner else None
        return replace(state, status=Status.IN_FLIGHT, claimed_at=moment_at(lock.stat.ctime), claimed_by=consumer)
    due = due_of(placed.item, lock_id, lock)
    if due is not None and due > await shown_time(handle.runtime):
        return replace(state, status=Status.DELAYED, due=moment_at(due))
    return state


async def _dead(handle: QueueHandle[Runtime], placed: Placed, record: HistoryRecord | None) -> MessageState | None:
    (node,) = await read_all(handle, [placed.path])
    if node is None:
        return None
    try:
        dead = decode(node.data)[0].dead
    except MalformedError:
        dead = None
    death = record if record is not None and record.outcome is End.DEAD else None
    return MessageState(
        id=placed.item.id,
        status=Status.DEAD,
        put_at=moment_at(put_at(node.data, node.stat.ctime)),
        put_by=await _producer(handle, placed.item.id),
        attempts=0 if dead is None else dead.attempts,
        claimed_at=None if death is None else death.claimed_at,
        claimed_by=None if death is None else session_of(death),
        ended_at=moment_at(node.stat.ctime),
        reason="" if dead is None else dead.reason,
    )


async def _ended(handle: QueueHandle[Runtime], record: HistoryRecord) -> MessageState:
    return MessageState(
        id=record.id,
        status=Status(record.outcome.value),
        put_at=record.put_at,
        put_by=await _producer(handle, record.id),
        attempts=record.attempts,
        claimed_at=record.claimed_at,
        claimed_by=session_of(record),
        ended_at=record.ended_at,
        reason=record.reason,
    )


def session_of(record: HistoryRecord) -> Process:
    """Return the session that ended a message."""
    return Process(client=record.client, host=record.host, pid=record.pid, name=record.name)


async def _producer(handle: QueueHandle[Runtime], message_id: str) -> Process | None:
    """Return the session that created an id, by its prefix; the session's folder has its host for up to a day.

    Ids in other programs' queues have no such prefix.
    """
    client = message_id[:CLIENT_DIGITS]
    if len(message_id) <= CLIENT_DIGITS or handle.state.dialect is not None:
        return None
    (node,) = await read_all(handle, [ClientPaths(handle.runtime.root, client).base])
    process = ProcessInfo.decode(b"" if node is None else node.data)
    return Process(client=client, host=process.host, pid=process.pid, name=process.name)


async def _consumer(handle: QueueHandle[Runtime], client: str) -> Process:
    entries = [name for name in await list_children(handle, handle.paths.consumers) if entry_client(name) == client]
    for node in await read_all(handle, [handle.paths.consumer(name) for name in entries]):
        if node is not None:
            process = ProcessInfo.decode(node.data)
            return Process(client=client, host=process.host, pid=process.pid, name=process.name)
    return Process(client=client)
