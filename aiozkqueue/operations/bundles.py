"""Operators and bundles: counts and finds the messages of bundles, and dissolves bundles into single items.

Figures read bundles without changing them. An operation that changes one message, or moves messages, first dissolves
the bundles that may hold them, and then works on single items. A bundle that a consumer holds is not dissolved: its
messages count as in flight.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import AccessDeniedError, ConfigConflictError
from aiozkqueue.layout import (
    BUNDLE_BITS,
    BundleName,
    BundleRecord,
    ItemRef,
    LockRecord,
    MalformedError,
    QueueConfig,
    candidate_id,
    decode,
    hour_at,
    is_bundle,
    messages_in,
    name_at,
    parse_bundle_record,
)
from aiozkqueue.layout.replies import asks_for_reply
from aiozkqueue.queue.candidates.collectors import Earliest, Matching
from aiozkqueue.queue.commit.conditional import Change, settle_allowed
from aiozkqueue.queue.redelivery.bundles import ATTEMPTS, Dissolved, dissolve, read_bundle, read_bundles, removal
from aiozkqueue.queue.state.config_rules import excludes_bundles
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.runtime.strings import Names
from aiozkqueue.zookeeper import Create, Delete, NoAuthError, SetData, read_separately

from .listing import SLICE, by_rank, collect_children, seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from aiozkqueue.layout import BundledMessage
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.redelivery.bundles import BundleState
    from aiozkqueue.zookeeper import Operation

#: Seconds to wait until consumers have returned the bundles that a change of the configuration excludes.
RETURN_TIMEOUT: Final = 2.0
TRIES: Final = 10
#: Bundles that one request of a purge removes.
REMOVED_AT_ONCE: Final = 64
#: Bundles that the first request of several reads: up to `READ_BYTES`.
READ_AT_ONCE: Final = 32
#: Maximum number of bundles that one request reads, if they are small.
MOST_AT_ONCE: Final = 128
#: Approximate maximum size of the data that one request reads, bytes.
READ_BYTES: Final = 2 * 1024 * 1024


class Bundled(NamedTuple):
    """The messages of the bundles of a queue, beyond one for each znode."""

    more: Mapping[str, int]
    """By folder: the messages of its listing, beyond the znodes that were counted before."""
    in_flight: int
    """The messages of held bundles, beyond one for each lock."""


class Found(NamedTuple):
    """A message of a bundle."""

    place: str
    """The place of the bundle."""
    state: BundleState
    message: BundledMessage
    attempts: int

    @property
    def error(self) -> str | None:
        """The error of the last attempt."""
        return self.state.errors().get(self.message.position)


async def count_put_more(handle: QueueHandle[Runtime]) -> int:
    """Return how many messages were ever put, beyond the number of znodes created. Raises: AccessDeniedError."""
    zookeeper, paths = handle.zookeeper, handle.paths
    kinds = [(bit, left) for bit in range(BUNDLE_BITS) for left in (False, True)]
    with translate_denials(handle.name):
        if await zookeeper.exists(paths.bundled) is None:
            return 0
        stats = await asyncio.gather(*(zookeeper.exists(paths.bundle_count(bit, left=left)) for bit, left in kinds))
    counts = [0 if stat is None else stat.version % 2**32 << bit for (bit, _), stat in zip(kinds, stats, strict=True)]
    return sum(-count if left else count for (_, left), count in zip(kinds, counts, strict=True))


async def count_bundled(
    handle: QueueHandle[Runtime], znodes: Mapping[str, int], unreadable: list[AccessDeniedError] | None = None
) -> Bundled:
    """Count the messages left in folders with bundles, whose znodes were counted before.

    All messages of a folder are counted in one listing. A bundle that is replaced by single items is so counted once,
    before or after. The records are read before: a bundle that ends in between is then omitted, instead of counted in
    full, and a message that ends in between still counts. See `claimed_bundles` for ``unreadable``.

    Raises: AccessDeniedError.
    """
    claimed = await claimed_bundles(handle, unreadable)
    more = Counter[str]()
    in_flight = 0
    for folder in _unscheduled(handle, znodes):
        listed = await collect_children(handle, folder, lambda: Matching(is_bundle))
        more[folder] = listed.number - znodes[folder]
        for number, text in enumerate(listed.names, 1):
            name = BundleName.parse(text)
            if name is not None:
                done, held = claimed.get(name.id, (0, False))
                more[folder] += name.size - done - 1
                in_flight += name.size - done - 1 if held else 0
            if number % SLICE == 0:
                await asyncio.sleep(0)
    return Bundled(more, in_flight)


def _unscheduled(handle: QueueHandle[Runtime], folders: Iterable[str]) -> list[str]:
    """Return the folders that may hold bundles: a scheduled message is always a single item."""
    return [folder for folder in folders if hour_at(handle.paths.place_of(folder)) is None]


async def claimed_bundles(
    handle: QueueHandle[Runtime], unreadable: list[AccessDeniedError] | None = None
) -> dict[str, tuple[int, bool]]:
    """Return the number of ended messages of each bundle that was claimed, and whether it still is, by its id.

    The record of a bundle outlives its lock if its holder dies or is forced out. With ``unreadable``, leave out the
    bundles whose records or locks this user may not read, and add their errors to it.

    Raises: AccessDeniedError.
    """
    paths = handle.paths
    names = (await collect_children(handle, paths.metas, lambda: Matching(parse_bundle_record))).names
    claimed: dict[str, tuple[int, bool]] = {}
    for start in range(0, len(names), SLICE):
        ids = [own for name in names[start : start + SLICE] if (own := parse_bundle_record(name)) is not None]
        sets = [(paths.bundle_record(own), paths.lock(own)) for own in ids]
        try:
            nodes = iter(await handle.zookeeper.read_versioned([path for pair in sets for path in pair]))
            found = list(zip(nodes, nodes, strict=True))
        except NoAuthError as error:
            if unreadable is None:
                raise access_denied(handle.name, error) from error
            answers = await read_separately(handle.zookeeper, sets)
            unreadable += [access_denied(handle.name, each) for each in answers if isinstance(each, NoAuthError)]
            found = [(None, None) if isinstance(each, NoAuthError) else (each[0], each[1]) for each in answers]
        for own, (record, lock) in zip(ids, found, strict=True):
            if record is not None:
                claimed[own] = _ended(record.data), lock is not None
    return claimed


def _ended(data: bytes) -> int:
    try:
        return BundleRecord.decode(data).done.bit_count()
    except MalformedError:
        return 0


async def bundle_places(
    handle: QueueHandle[Runtime], folders: Sequence[str], passes: Callable[[str], object] = is_bundle
) -> AsyncIterator[str]:
    """Yield the places of the bundles in these folders whose names pass, oldest first.

    Bundles of incomplete batches are left out, as single items are. Raises: AccessDeniedError.
    """
    for group in by_rank(handle.state, _unscheduled(handle, folders)):
        for folder in group:
            names = await collect_children(handle, folder, lambda: Earliest(None, passes))
            lane = handle.paths.place_of(folder)
            for name in await seen(handle, Names(names.in_order())):
                yield ItemRef(lane, name).path


async def bundle_pages(
    handle: QueueHandle[Runtime], places: Sequence[str]
) -> AsyncIterator[list[tuple[str, BundleState]]]:
    """Read the bundles at these places, some at a time, leaving out empty places. Raises: AccessDeniedError."""
    start, together, size = 0, READ_AT_ONCE, 0
    while start < len(places):
        page = places[start : start + together]
        with translate_denials(handle.name):
            states = await read_bundles(handle.zookeeper, handle.paths, page)
        found = [(place, state) for place, state in zip(page, states, strict=True) if state is not None]
        yield found
        start += len(page)
        size += sum(len(state.bundle.data) for _, state in found)
        together = max(1, min(MOST_AT_ONCE, READ_BYTES * start // max(1, size)))


async def find_bundled(handle: QueueHandle[Runtime], folders: Sequence[str], message_id: str) -> Found | None:
    """Return the message with this id if it is in a bundle. Raises: AccessDeniedError."""

    def may_hold(name: str) -> bool:
        bundle = BundleName.parse(name)
        return bundle is not None and bundle.may_hold(message_id)

    async for place in bundle_places(handle, folders, may_hold):
        with translate_denials(handle.name):
            state = await read_bundle(handle.zookeeper, handle.paths, place)
        for message, attempts in _messages_of(state):
            if message.id == message_id:
                assert state is not None  # noqa: S101 - it holds the message
                return Found(place, state, message, attempts)
    return None


async def first_bundled(handle: QueueHandle[Runtime], folders: Sequence[str], limit: int) -> list[Found]:
    """Return up to ``limit`` messages of the oldest bundles. Raises: AccessDeniedError."""
    found: list[Found] = []
    async for place in bundle_places(handle, folders):
        with translate_denials(handle.name):
            state = await read_bundle(handle.zookeeper, handle.paths, place)
        if state is not None:
            found += [Found(place, state, message, attempts) for message, attempts in _messages_of(state)]
        if len(found) >= limit:
            return found[:limit]
    return found


async def dissolve_all(
    handle: QueueHandle[Runtime], folders: Sequence[str], passes: Callable[[str], object] = is_bundle
) -> list[str]:
    """Dissolve the bundles in these folders whose names pass; return the places of those that consumers hold.

    Raises: AccessDeniedError.
    """
    held: list[str] = []
    places = [place async for place in bundle_places(handle, folders, passes)]
    if places:
        now = await handle.runtime.server_clock.learned(handle.paths.due)
        for place in places:
            with translate_denials(handle.name):
                dissolved = await dissolve(handle.zookeeper, handle.paths, place, handle.runtime.ids, now=now)
            if dissolved in (Dissolved.HELD, Dissolved.REFUSED):
                held.append(place)
    return held


async def dissolve_first(handle: QueueHandle[Runtime], folders: Sequence[str], messages: int) -> None:
    """Dissolve the oldest bundles that no consumer holds, until they have held this many messages.

    Raises: AccessDeniedError.
    """
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    async for place in bundle_places(handle, folders):
        if messages <= 0:
            return
        with translate_denials(handle.name):
            dissolved = await dissolve(handle.zookeeper, handle.paths, place, handle.runtime.ids, now=now)
        if dissolved is Dissolved.DONE:
            messages -= messages_in(name_at(place))


async def single_out(handle: QueueHandle[Runtime], folders: Sequence[str], message_id: str) -> bool:
    """Dissolve the bundle that holds a message, if one does; return whether a consumer holds the bundle.

    Raises: AccessDeniedError.
    """
    found = await find_bundled(handle, folders, message_id)
    if found is None:
        return False
    lane, name = ItemRef.parse(found.place)
    return bool(await dissolve_all(handle, [handle.paths.at(lane)], name.__eq__))


async def remove_bundles(
    handle: QueueHandle[Runtime], folders: Sequence[str], configured: Operation
) -> tuple[int, dict[str, AccessDeniedError]]:
    """Remove the bundles that no consumer holds; return the number of messages, and the refused bundles by their ids.

    ``configured`` checks the configuration that says that the ends of messages need no further operations. A bundle
    with a message of a call is dissolved instead.

    Raises: AccessDeniedError: the lanes may not be listed.
    """
    removed, refused = 0, dict[str, AccessDeniedError]()
    places = [place async for place in bundle_places(handle, folders)]
    for start in range(0, len(places), REMOVED_AT_ONCE):
        counts: list[tuple[str, int]] = []
        changes: list[Change] = []
        for place in places[start : start + REMOVED_AT_ONCE]:
            try:
                with translate_denials(handle.name):
                    state = await read_bundle(handle.zookeeper, handle.paths, place)
                    if state is None or state.lock is not None:
                        continue
                    if asks_for_reply(state.bundle.data):  # each caller is answered when its single item is removed
                        now = await handle.runtime.server_clock.learned(handle.paths.due)
                        await dissolve(handle.zookeeper, handle.paths, place, handle.runtime.ids, now=now)
                        continue
            except AccessDeniedError as error:
                refused[candidate_id(name_at(place))] = error
                continue
            counts.append((state.name.id, max(1, len(_messages_of(state)))))
            changes.append(_removal(handle, place, state, configured))
        for (own, count), part in zip(counts, await settle_allowed(handle.runtime, changes), strict=True):
            if isinstance(part.error, AccessDeniedError):
                refused[own] = part.error
            removed += count if part.error is None else 0
    return removed, refused


def _removal(handle: QueueHandle[Runtime], place: str, state: BundleState, configured: Operation) -> Change:
    """Return the change that removes a bundle and its record, unless a consumer claims it."""
    paths, ids = handle.paths, handle.runtime.ids
    lock = paths.lock(state.name.id)
    claim = Create(lock, LockRecord(ids.next(), ids.client).encode(), ephemeral=True)
    removed = removal(paths, place, state, obstructed=False)
    return Change(handle.state, [configured, claim, *removed, Delete(lock)])


async def force_open(handle: QueueHandle[Runtime], folders: Sequence[str]) -> tuple[int, dict[str, AccessDeniedError]]:
    """Force the locks on bundles open; return the number of their messages, and the refused bundles by their ids.

    The record is written, so everything that the holder sends from now on is refused. Consumers dissolve the bundles.

    Raises: AccessDeniedError: the lanes may not be listed.
    """
    released, refused = 0, dict[str, AccessDeniedError]()
    async for place in bundle_places(handle, folders):
        try:
            released += await _open_lock(handle, place)
        except AccessDeniedError as error:
            refused[candidate_id(name_at(place))] = error
    return released, refused


async def _open_lock(handle: QueueHandle[Runtime], place: str) -> int:
    """Force the lock on a bundle open; return the number of its messages. Raises: AccessDeniedError."""
    paths, held = handle.paths, None
    for _ in range(ATTEMPTS):  # the holder writes the record in the meantime
        with translate_denials(handle.name):
            state = await read_bundle(handle.zookeeper, paths, place)
        if state is None or state.lock is None or state.record is None or held not in (None, state.lock.data):
            return 0
        held = state.lock.data
        operations: list[Operation] = [
            SetData(paths.bundle_record(state.name.id), state.record.data, state.record.version),
            Delete(paths.lock(state.name.id)),
            SetData(paths.locks, b""),
            SetData(paths.items, b""),
        ]
        (part,) = await settle_allowed(handle.runtime, [Change(handle.state, operations)])
        if isinstance(part.error, AccessDeniedError):
            raise part.error
        if part.error is None:
            return len(_messages_of(state))
    return 0


def payload_of(data: bytes) -> bytes:
    """Return the payload of a message of a bundle from its bytes, or the bytes if they do not decode."""
    try:
        return decode(data)[1]
    except MalformedError:
        return data


def _messages_of(state: BundleState | None) -> list[tuple[BundledMessage, int]]:
    try:
        return [] if state is None else state.messages()
    except MalformedError:
        return []  # the consumer that takes it makes it a dead letter


async def unbundle_if_excluded(handle: QueueHandle[Runtime], wanted: QueueConfig) -> None:
    """Turn bundles off if the wanted settings exclude them.

    Consumers return messages that they do not process within a tenth of a second, so this waits for up to
    `RETURN_TIMEOUT` seconds.

    Raises: ConfigConflictError: there are bundles that cannot be dissolved now; AccessDeniedError, PayloadError.
    """
    state = handle.state
    if not await state.open_latest() or not excludes_bundles(state.config, wanted):
        return
    remaining = await unbundle(handle)
    for _ in range(TRIES):
        if not remaining:
            return
        await asyncio.sleep(RETURN_TIMEOUT / TRIES)
        remaining = await unbundle(handle)
    raise ConfigConflictError(
        f"queue {handle.name!r}: consumers or incomplete batches hold bundles ({remaining}), which the new settings "
        "exclude; new messages are stored one by one from now on, so configure the queue again in a moment"
    )


async def unbundle(handle: QueueHandle[Runtime]) -> int:
    """Stop making bundles, and dissolve all; return the number of those that consumers hold or pending batches have.

    Raises: AccessDeniedError, PayloadError.
    """
    state = handle.state
    opened = await state.open_latest()
    while opened and state.config.bundle != 1:
        await state.replace_config(state.snapshot, state.config.changed(QueueConfig(bundle=1)))
        opened = await state.open_existing()
    while opened and state.config.bundled:
        # No put that was composed for another configuration can be applied any more, so no bundle can be added. The
        # server of this session has applied all earlier ones, because this configuration was read from it.
        before = state.snapshot
        folders = [handle.paths.at(lane) for lane in before.config.lanes]
        remaining = await _count_pending(handle, folders) + len(await dissolve_all(handle, folders))
        if remaining:
            return remaining
        if (state.config.bundle or 1) > 1:
            break  # another program has turned bundles on again
        await state.replace_config(before, replace(before.config, bundled=False))
        opened = await state.open_existing()
    return 0


async def _count_pending(handle: QueueHandle[Runtime], folders: Sequence[str]) -> int:
    """Return the number of bundles of incomplete batches. Raises: AccessDeniedError.

    They are not dissolved: a writer that discards its batch must find all its items in one listing.
    """
    pending = 0
    for folder in _unscheduled(handle, folders):
        names = (await collect_children(handle, folder, lambda: Matching(is_bundle))).names
        pending += len(names) - len(await seen(handle, names))
    return pending
