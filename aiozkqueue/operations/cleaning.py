"""One pass of clean-up over one queue, or over the commit slots of all clients.

Every removal is one multi that is refused if any of the data has changed since it was read, so removals can be
repeated, and made by two sessions at a time. Comments explain why each is safe. The multis are sent separately from the
session's commits, a page at a time with a pause after each, and the number of removals per pass is limited.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, PayloadError
from aiozkqueue.layout import (
    History,
    LockRecord,
    hour_end,
    hour_named,
    parse_due,
    parse_hour,
    parse_lock,
    parse_meta,
    parse_record,
)
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.candidates.collectors import Earliest, Matching
from aiozkqueue.queue.candidates.past_hours import remove_hours
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.redelivery.timed_locks import reap
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.runtime.strings import Strings, clear_gradually
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    SessionExpiredError,
    SetData,
    apply_until_answered,
    below,
)

from .batch_writers import abandon, clear_away, forget
from .deleted import sweep_deleted
from .history_pins import read_pins
from .listing import collect_children
from .orphans import ORPHAN_AGE, bad_locks, old_clients, orphan_metas
from .queue_names import queue_names
from .stats import configuration, lanes, lanes_of
from .tag_sweep import sweep_tags
from .ttl import sweep_expired

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation

    from .history_pins import Pins
    from .orphans import OrphanedZnode


#: Maximum number of znodes that one pass removes; the next pass continues.
BUDGET: Final = 10_000
#: Maximum number of items listed to find their remains; deeper queues are skipped until they are shorter.
MOST_LISTED: Final = 100_000
TOGETHER: Final = 100
#: Seconds between two multis.
PAUSE: Final = 0.01
#: Number of tag combinations that a queue keeps even if no message has them.
MOST_TAGS: Final = 1000
_HOUR_MS: Final = 3_600_000
#: How long a writer's last complete batch is remembered, milliseconds.
WRITERS_KEPT: Final = 90 * 24 * _HOUR_MS
#: How long a write that no other run can continue may be idle before it is discarded, milliseconds.
WRITES_KEPT: Final = 24 * _HOUR_MS
_LONGEST_ID: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The number of znodes and messages that a pass removed."""

    queue: str | None
    """The queue; None: the commit slots of clients that no longer exist, and the remains of deleted queues."""
    claims: int = 0
    """Ended delays and leases removed: their messages can be taken."""
    attempts: int = 0
    """Records of attempts whose message was gone."""
    expired: int = 0
    """Expired messages: dropped, or moved to the dead letters."""
    records: int = 0
    """Records of history past their lifetime, or beyond the maximum number."""
    hours: int = 0
    """Empty hours of the history and of the schedule."""
    tags: int = 0
    """Tag combinations that no message has any more, once there are very many."""
    staged: int = 0
    """Messages of discarded batches, and records of writers that have been inactive for a long time."""
    clients: int = 0
    """Clients whose commit slots had not been used for a day."""
    deleted: int = 0
    """Deleted queues whose last znode was removed, a week after the deletion."""
    reaped: int = 0
    """Messages reassigned to all nodes, because their own node had not taken them."""
    more: bool = False
    """Whether another pass is needed, because this one reached its limit."""

    @property
    def total(self) -> int:
        """The total of all counts."""
        return (
            self.reaped
            + self.claims
            + self.attempts
            + self.expired
            + self.records
            + self.hours
            + self.tags
            + self.staged
            + self.clients
            + self.deleted
        )


async def clean_queue(
    handle: QueueHandle[Runtime], *, late: float, refused: list[AccessDeniedError] | None = None
) -> Cleaned:
    """Clean one queue, if it exists.

    Anything that ended or was written less than ``late`` seconds ago is left to its owner, to spare it the conflict.
    With ``refused``, add the errors of the parts that need a znode that this user may not read to it.

    Raises:
        AccessDeniedError: this user may not read the configuration, or, without ``refused``, another znode; the parts
            of the clean-up that do not need it were done.
        PayloadError; SessionExpiredError, ConnectionLossError, MultiError of zookeeper.
    """
    config = await configuration(handle)
    if config is None or not await handle.state.exists():
        return Cleaned(queue=handle.name)
    cleaning = _Cleaning(handle, late)
    denied: list[AccessDeniedError] = []

    async def allowed(part: Awaitable[int]) -> int:
        """Return the result of a part; 0 if this user may not read a znode that it needs."""
        try:
            with translate_denials(handle.name):
                return await part
        except AccessDeniedError as error:
            denied.append(error)
            return 0

    with translate_denials(handle.name):
        await cleaning.check_clock()
    cleaned = Cleaned(
        queue=handle.name,
        claims=await allowed(cleaning.ended_locks()),
        attempts=await allowed(cleaning.attempts()),
        expired=await allowed(sweep_expired(handle, limit=max(0, cleaning.left))),
        records=await allowed(cleaning.history(config.history or History())),
        hours=await allowed(cleaning.hours()),
        tags=await allowed(cleaning.tags()),
        staged=await allowed(cleaning.writers()),
        more=cleaning.left <= 0,
    )
    if refused is not None:
        refused += denied
    elif denied:
        raise denied[0]
    return cleaned


async def clean_root(runtime: Runtime, moment: int) -> Cleaned:
    """Clean data of no existing queue: commit slots, and deleted queues. ``moment`` is ZooKeeper's time, ms."""
    clients = await _clean_clients(runtime, moment)
    return Cleaned(queue=None, clients=clients, deleted=await sweep_deleted(runtime, moment))


async def _clean_clients(runtime: Runtime, moment: int) -> int:
    """Remove the commit slots of clients that have not used them for a day; return the number of clients.

    Each slot is removed at the version read, so only if its client has not used it since. A client whose slot is gone
    creates another, or can no longer determine the outcome of a commit that it sent a day before. Slots that this user
    may not remove are left to the sessions of their own users.
    """
    removed = 0
    for client in await old_clients(runtime.zookeeper, runtime.root, moment / 1000):
        within = [[Delete(path, version)] for path, version in sorted(client.slots)]  # replies first
        # A caller that has died may have more replies than a request can delete: the last ones go with the folder.
        split = max(0, len(within) - TOGETHER)
        change: list[Operation] = [*chain.from_iterable(within[split:]), Delete(client.folder)]
        with suppress(NoAuthError):
            await _apply(runtime, within[:split])
            removed += await _apply(runtime, [change])
    return removed


async def clean(
    runtime: Runtime, states: Sequence[QueueState] | None
) -> tuple[list[Cleaned], list[AccessDeniedError | PayloadError]]:
    """Clean these queues, or all queues and the commit slots; record the time for operators.

    Return the results, and an error for each queue that is not readable, or not completely.

    Raises: AccessDeniedError: this user may not list the queues; ConnectionLostError.
    """
    cleaned: list[Cleaned] = []
    failures: list[AccessDeniedError | PayloadError] = []
    try:
        for state in map(runtime.queue_state, await queue_names(runtime)) if states is None else states:
            refused: list[AccessDeniedError] = []
            try:
                cleaned.append(await _clean_now(QueueHandle(runtime, state), refused))
            except (PayloadError, AccessDeniedError) as error:
                failures.append(error)
            failures += refused[:1]
        if states is None:
            janitor = f"{runtime.root}/.janitor"
            await runtime.zookeeper.ensure(janitor)
            cleaned.append(await clean_root(runtime, await runtime.server_clock.learned(janitor)))
    except NoAuthError as error:
        msg = f"root {runtime.root}: {error}; {error.advice}"
        raise AccessDeniedError(msg) from error
    except (ConnectionLossError, SessionExpiredError) as error:
        msg = f"the connection was lost while cleaning: {error}; clean again"
        raise ConnectionLostError(msg) from error
    return cleaned, failures


async def _clean_now(handle: QueueHandle[Runtime], refused: list[AccessDeniedError]) -> Cleaned:
    cleaned = await clean_queue(handle, late=ORPHAN_AGE, refused=refused)
    with suppress(MultiError):  # no janitor has cleaned it yet, or it does not exist
        await handle.zookeeper.multi([SetData(handle.paths.janitor, pass_record(cleaned, handle.runtime.ids.client))])
    return cleaned


def pass_record(cleaned: Cleaned, client: str, facts: Mapping[str, object] | None = None) -> bytes:
    """Return the stored record of the last pass: data for operators, and facts for the next pass (`fact_of`)."""
    return json.dumps({"client": client, **asdict(cleaned), **(facts or {})}).encode()


def fact_of(data: bytes, name: str) -> object:
    """Return a fact from the record of the last pass; None if it is not recorded or not readable."""
    try:
        fields: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", fields).get(name) if isinstance(fields, dict) else None


class _Cleaning:
    """One pass over one queue."""

    def __init__(self, handle: QueueHandle[Runtime], late: float) -> None:
        self._handle = handle
        self._runtime = handle.runtime
        self._state = handle.state
        self._late = milliseconds_in(late)
        self._zookeeper = handle.zookeeper
        self._paths = handle.paths
        self.left = BUDGET
        self._now = 0
        self._counts: dict[str, int] = {}

    async def check_clock(self) -> None:
        """Learn ZooKeeper's time.

        The estimate is never ahead of the server's clock, so no deadline is judged over too early.
        """
        self._now = await self._runtime.server_clock.learned(self._paths.due)

    async def ended_locks(self) -> int:
        """Remove the timed locks that ended a while ago; active consumers would have removed them at once.

        If a lock has a due node, this does the same as a consumer (see `timed_locks`), and is as safe. Otherwise the
        lock is removed if it is unchanged (see `_unlock`): no commit depends on a timed lock.
        """
        paths = self._paths
        timed = await collect_children(
            self._handle, paths.due, partial(_TimedLocks, max(0, self.left), self._now - self._late)
        )
        ended = [parsed for name in timed.ended.in_order() if (parsed := parse_due(name)) is not None]
        freed = 0
        generation = await self._zookeeper.wait_connected()
        for start in range(0, len(ended), TOGETHER):
            freed += len(await reap(self._zookeeper, paths, ended[start : start + TOGETHER], generation))
            await asyncio.sleep(PAUSE)
        self.left -= len(ended)
        folder = await self._zookeeper.exists(paths.locks)
        listed = await collect_children(
            self._handle,
            paths.locks,
            lambda: Earliest(BUDGET, lambda name: parse_lock(name) not in timed.announced, str),
        )
        bad = bad_locks(self._zookeeper, paths, listed.names(), self._now / 1000)
        unannounced = [lock async for page in bad for lock in page.unannounced]
        await clear_gradually(*timed.announced.parts)
        over = [lock for lock in unannounced if self._is_over(LockRecord.decode(lock.node.data).end)]
        return freed + (0 if folder is None else await self._unlock(over, folder.version))

    async def attempts(self) -> int:
        """Remove the records of attempts whose message is gone.

        They are listed before the items, twice, in two orders, so that even a message that moves between lanes is
        found. The change locks and unlocks the message's id, so no holder that has read the record can be about to
        write it, and removes the record at the version read. A message that is redriven later begins without a record.
        """
        named = _is_message if self._state.dialect is None else parse_meta
        names = (await collect_children(self._handle, self._paths.metas, partial(Earliest, BUDGET, named, str))).names()
        if not names:
            return 0
        folders = await self._item_folders()
        if await self._count(folders) > MOST_LISTED:
            return 0
        ids = await self._ids(folders, names)
        orphans = orphan_metas(self._zookeeper, self._paths, names, lambda found: found not in ids)
        old = [record async for page in orphans for record in page if record.node.stat.mtime + self._late <= self._now]
        if not old:
            return 0
        ids = await self._ids(folders[::-1], names)
        lock = LockRecord(self._runtime.ids.next(), self._runtime.ids.client).encode()
        return await self._remove([self._forget(record, lock) for record in old if parse_meta(record.name) not in ids])

    async def history(self, history: History) -> int:
        """Remove the records past their lifetime, and the oldest of those beyond the most that are kept.

        Each removal checks the version of the pins' folder, read before the pins were listed (see `history_pins`).
        """
        zookeeper, paths = self._zookeeper, self._paths
        if await zookeeper.exists(paths.history) is None:
            return 0
        pins = await read_pins(self._handle)
        hours = sorted(name for name in await below(zookeeper, paths.history) if parse_hour(name) is not None)
        newer = await self._counted_after(hours)
        cutoff = self._now - milliseconds_in(history.seconds)
        removed = 0
        for hour in hours:
            begin = parse_hour(hour)
            if self.left <= 0 or (pins.first is not None and hour >= pins.first) or begin is None:
                break
            if begin >= cutoff and newer[hour] + self._counts[hour] <= history.most:
                break
            chosen = await self._too_old(hour, history.most - newer[hour], cutoff)
            removed += await self._remove([self._drop_pinned(pins, f"{hour}/{name}") for name in chosen])
        return removed

    async def _too_old(self, hour: str, kept: int, cutoff: int) -> list[str]:
        """Return the records of an hour to remove: those from before ``cutoff``, and the oldest beyond ``kept``."""
        path = self._paths.record(hour)
        listed = await collect_children(self._handle, path, partial(Earliest, None, parse_record, str))
        held, chosen = listed.held, list[str]()
        for index, name in enumerate(listed.in_order()):
            parsed = parse_record(name)
            if len(chosen) >= self.left or not (held - index > kept or (parsed is not None and parsed[0] < cutoff)):
                break
            chosen.append(name)
        return chosen

    async def _counted_after(self, hours: Sequence[str]) -> dict[str, int]:
        """Return the number of records in the hours after each hour.

        A concurrent clean-up only removes records that have too many after them or are too old, and then all older
        records must go as well. So concurrent clean-ups never remove too much.
        """
        self._counts = {hour: await self._count([self._paths.record(hour)]) for hour in hours}
        newer: dict[str, int] = {}
        total = 0
        for hour in reversed(hours):
            newer[hour] = total
            total += self._counts[hour]
        return newer

    async def tags(self) -> int:
        """Remove records of unused tags: no put can depend on a removed record (see `tag_sweep`)."""
        paths = self._paths
        stat = await self._zookeeper.exists(paths.filters)
        if stat is None or stat.num_children <= MOST_TAGS:
            return 0
        generation = await self._zookeeper.wait_connected()
        return await sweep_tags(self._zookeeper, paths, self._tagged, generation)

    async def _tagged(self) -> list[str]:
        """Return the folders of items with tags, with the dead letters first and last."""
        config = await configuration(self._handle)
        folders = [] if config is None else await lanes_of(self._handle, config)
        return [self._paths.dlq, *folders, self._paths.dlq]

    async def writers(self) -> int:
        """Finish the removal of discarded batches, and remove the records of writers that completed long ago.

        A writer without a record that writes the same batch again would duplicate it. A write without a `writeId` that
        has put nothing for a day is discarded; any other pending batch is left.
        """
        removed = 0
        for writer in await below(self._zookeeper, self._paths.sinks):
            removed += await abandon(self._handle, writer, self._now - WRITES_KEPT)
            removed += await clear_away(self._handle, writer)
            removed += await forget(self._handle, writer, self._now - WRITERS_KEPT)
        self.left -= removed
        return removed

    async def hours(self) -> int:
        """Remove empty folders of past hours, of the history and of the schedule.

        The server refuses to remove a folder that is not empty, and a client that finds one missing creates it again.
        """
        changes: list[Sequence[Operation]] = []
        for hour in await below(self._zookeeper, self._paths.history):
            begin = parse_hour(hour)
            if begin is not None and hour_end(begin) + _HOUR_MS <= self._now:
                changes.append([Delete(self._paths.record(hour))])
        empty = [change for change in changes if not await self._count([change[0].path])]
        return await self._remove(empty) + await self._scheduled_hours()

    async def _scheduled_hours(self) -> int:
        names = await below(self._zookeeper, self._paths.later)
        hours = [hour for name in names if (hour := hour_named(name)) is not None]
        past = [hour for hour in hours if (hour + 2) * _HOUR_MS <= self._now][: max(0, self.left)]
        removed = 0
        for start in range(0, len(past), TOGETHER):
            removed += len(await remove_hours(self._zookeeper, self._paths, past[start : start + TOGETHER]))
            await asyncio.sleep(PAUSE)
        self.left -= removed
        return removed

    # -- the changes

    async def _unlock(self, locks: Sequence[OrphanedZnode], version: int) -> int:
        """Remove timed locks, one after the other; ``version`` is that of their folder before they were read.

        A renewed lock has another version. A lock of a consumer may have the same one, if the timed lock was removed by
        force or by another clean-up. So each removal writes the folder, as a forced release does, and asserts that it
        was not written by others.
        """
        paths, removed = self._paths, 0
        for lock in locks:
            change: list[Operation] = [
                SetData(paths.locks, b"", version + removed),
                Delete(f"{paths.locks}/{lock.name}", lock.node.stat.version),
                SetData(paths.items, b""),  # wakes idle consumers
            ]
            removed += await self._remove([change])
        return removed

    def _forget(self, meta: OrphanedZnode, lock: bytes) -> Sequence[Operation]:
        path = self._paths.lock(parse_meta(meta.name) or "-")
        return [
            Create(path, lock),
            Delete(f"{self._paths.metas}/{meta.name}", meta.node.stat.version),
            Delete(path),
        ]

    def _drop_pinned(self, pins: Pins, place: str) -> Sequence[Operation]:
        return [Check(self._paths.pins, pins.version), Delete(self._paths.record(place))]

    async def _remove(self, changes: list[Sequence[Operation]]) -> int:
        removed = await _apply(self._runtime, changes[: max(0, self.left)])
        self.left -= len(changes)
        return removed

    # -- reading

    def _is_over(self, end: int | None) -> bool:
        return end is not None and end + self._late <= self._now

    async def _item_folders(self) -> list[str]:
        """Every folder that may hold items."""
        scheduled = [f"{self._paths.later}/{hour}" for hour in await below(self._zookeeper, self._paths.later)]
        return [*dict.fromkeys([*await lanes(self._handle), *scheduled])]

    async def _ids(self, folders: Sequence[str], metas: Sequence[str]) -> set[str]:
        """Return the ids of those messages with these records that are in the folders."""
        ids = {message_id for meta in metas if (message_id := parse_meta(meta)) is not None}
        found: set[str] = set()

        def is_wanted(name: str) -> bool:
            item = self._state.parse_item(name)
            if item is not None and item.id in ids:
                found.add(item.id)
            return False

        for folder in folders:
            await collect_children(self._handle, folder, partial(Matching, is_wanted))
        return found

    async def _count(self, folders: Sequence[str]) -> int:
        stats = [await self._zookeeper.exists(folder) for folder in folders]
        return sum(stat.num_children for stat in stats if stat is not None)


class _TimedLocks:
    """A collector of due nodes: the first that ended before a time, and the ids of all messages that have one."""

    def __init__(self, most: int, before: int) -> None:
        self._before = before
        self.ended = Earliest(most, self._has_ended, str)
        self.announced = Strings()

    def take(self, names: list[str]) -> None:
        self.ended.take(names)
        self.announced.update(parsed[1] for name in names if (parsed := parse_due(name)) is not None)

    def _has_ended(self, name: str) -> bool:
        parsed = parse_due(name)
        return parsed is not None and parsed[0] <= self._before


def _is_message(meta: str) -> bool:
    message_id = parse_meta(meta)
    return message_id is not None and len(message_id) <= _LONGEST_ID


async def _apply(runtime: Runtime, changes: Sequence[Sequence[Operation]]) -> int:
    """Apply each change or skip it, several in one multi; return how many are known to have been applied.

    Raises: NoAuthError: an ACL refuses one.
    """
    zookeeper, applied = runtime.zookeeper, 0
    for start in range(0, len(changes), TOGETHER):
        page = list(changes[start : start + TOGETHER])
        while page:
            try:
                await apply_until_answered(zookeeper, [operation for change in page for operation in change])
            except MultiError as refusal:
                if isinstance(refusal.error, NoAuthError):
                    raise refusal.error from refusal
                if isinstance(page[0][0], Check) and isinstance(refusal.error, BadVersionError):
                    return applied  # a shared precondition has changed: a history has been pinned
                del page[_member(page, refusal.index)]
            else:
                applied += len(page)
                break
        await asyncio.sleep(PAUSE)
    return applied


def _member(page: Sequence[Sequence[Operation]], index: int) -> int:
    """Return the change of a page that the operation with this index belongs to."""
    for number, change in enumerate(page):
        if index < len(change):
            return number
        index -= len(change)
    return len(page) - 1
