"""Moves the messages of one move, item by item.

Each item goes by one multi that removes it from the source and creates its messages in the target (see `transfer`). So
each message is always in exactly one of the two, and of several movers only one moves it. A held message, a
consumer of another program included, stays until it is released or consumed: the multi creates the item's lock and
removes it again, which fails while there is a lock.

A Curator item may hold several messages, which become one message each. When they do not all fit into a request,
the multi moves the first of them and leaves the item with the others, at its version.

The server counts another program's items from 0 again after it has removed their empty parent. A name and version may
then belong to a different item from the one that was read. So an item of such a queue is moved only in the ZooKeeper
session in which it was read, and not after a long wait for capacity.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import (
    MessageTooLargeError,
    OutcomeUnknownError,
    QueueError,
    QueueFullError,
    SessionClosedError,
    SessionExpiredError,
)
from aiozkqueue.layout import SEQUENCE_DIGITS, StoredConfig, lane_at
from aiozkqueue.queue.commit.conditional import apply
from aiozkqueue.queue.commit.create_items import weigh_put, weigh_puts
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import as_configured, find, find_pages, item_pages, removal, shortening
from aiozkqueue.queue.put.capacity import credits_of
from aiozkqueue.queue.put.prepare import restored
from aiozkqueue.queue.state.config_rules import with_lane
from aiozkqueue.runtime.deadline import FOREVER, Deadline

from .bundles import dissolve_all
from .converted import convert
from .listing import SLICE, walk
from .stats import configuration, lanes
from .transfer import Transfer, transfer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import ItemName
    from aiozkqueue.layout.moves import MoveRecord
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, Unreadable
    from aiozkqueue.queue.state.queue_state import QueueState

#: Seconds until held messages are read again: the first wait, and the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
#: Seconds for which an item of another program may wait for capacity in the target after it was read.
FOREIGN_TIMEOUT: Final = 1.0
#: Bytes of messages that the multi of one item puts.
MOST_AT_ONCE: Final = 512 * 1024
#: The bytes of the other operations of that multi: the slot, the lock, the attempts.
_OVERHEAD: Final = 8 * 1024
#: After these errors the outcome is unknown, or nothing was applied: the item is read again.
_RETRIED: Final = (SessionExpiredError, OutcomeUnknownError, QueueFullError)


class _Part(NamedTuple):
    """The next messages of an item that move together."""

    transfer: Transfer
    last: bool
    """Whether the item is removed with them."""


class Mover:
    """Moves the messages that were in one queue when a move began."""

    def __init__(
        self, runtime: Runtime, source: QueueState, target: QueueState, record: MoveRecord, began: int
    ) -> None:
        """``began`` is the zxid of the record."""
        self._runtime = runtime
        self._source = source
        self._target = target
        self._from = QueueHandle(runtime, source)
        self._into = QueueHandle(runtime, target)
        self._began = began
        self._counters: Mapping[str, int] = record.counters
        self._disposition = Disposition("remove", reason=f"moved to {target.name}", replaced=True)
        self._between_layouts = source.dialect is not None or target.dialect is not None
        self.moved: int = record.moved
        self.failed: dict[str, QueueError] = {}
        """Why messages could not be moved, by the ids of their items."""

    async def run(self, progress: Callable[[int], Awaitable[None]]) -> None:
        """Move all messages, and report to ``progress`` how many have been moved so far.

        Raises: AccessDeniedError, SessionClosedError, and the errors of the zookeeper package.
        """
        pause = FIRST_PAUSE
        while await self._source.open_latest():  # a configuration from before the move may not mention bundles
            before = self.moved
            if self._between_layouts:
                await self._runtime.learn_time()
            if not await self._pass(progress):
                break
            pause = FIRST_PAUSE if self.moved > before else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _pass(self, progress: Callable[[int], Awaitable[None]]) -> int:
        """Go through the source once; return how many items must be read again."""
        runtime, source, again = self._runtime, self._source, 0
        if source.config.bundled:
            held = await dissolve_all(self._from, await lanes(self._from))
            counters = await self._valid_counters()
            again = sum(int(place[-SEQUENCE_DIGITS:]) < self._counter(counters, place) for place in held)
        async for placed in walk(self._from, await lanes(self._from)):
            items = {
                source.paths.place_of(entry.path): entry.item for entry in placed if entry.item.id not in self.failed
            }
            missing = dict(items)
            unreadable: Unreadable = {}
            generation = runtime.zookeeper.generation
            async for page in find_pages(self._from, list(items), unreadable):
                for snapshot in page:
                    missing.pop(snapshot.place, None)
                counters = await self._valid_counters()
                mine = [snapshot for snapshot in page if self._was_in_source(snapshot, items[snapshot.place], counters)]
                moved = self.moved
                again += await self._move(mine, items, generation)
                if self.moved > moved:
                    await progress(self.moved)
                generation = runtime.zookeeper.generation
            for place, error in unreadable.items():
                self.failed[missing.pop(place).id] = error
            if missing:  # they were consumed since they were listed, or created again under their old numbers
                counters = await self._valid_counters()
                again += sum(item.sequence < self._counter(counters, place) for place, item in missing.items())
        return again

    # -- the messages of the move

    async def _valid_counters(self) -> Mapping[str, int]:
        """Return the counters of the record, unless the numbers have begun again since then.

        They begin again when our own queue is deleted and created again, or another program's is empty for a while. A
        message must be read before this is called.
        """
        if not self._counters:
            return self._counters
        parent = await self._runtime.zookeeper.exists(self._source.paths.items)
        return self._counters if parent is not None and parent.czxid <= self._began else {}

    def _was_in_source(self, found: ItemSnapshot, item: ItemName, counters: Mapping[str, int]) -> bool:
        """Return whether a message was in the source when the move began.

        An item created later can still hold an older message: one reassigned to all nodes, or a part of an item that a
        consumer has split. Both keep the sequence number.
        """
        if found.item.stat.czxid <= self._began:
            return True
        dialect = self._source.dialect
        if dialect is not None and dialect.whole(item.text) == item.text:
            return False
        return item.sequence < self._counter(counters, found.place)

    def _counter(self, counters: Mapping[str, int], place: str) -> int:
        return counters.get(lane_at(place), 0)

    # -- moving

    async def _move(self, mine: Sequence[ItemSnapshot], items: Mapping[str, ItemName], generation: int) -> int:
        """Move the items that no client holds, in order; return how many items must be read again.

        The target is created if it does not exist.
        """
        waiting = [snapshot for snapshot in mine if not self._held(snapshot)]
        again = len(mine) - len(waiting)
        if waiting:  # otherwise a target that was deleted since its last message came would exist again
            await self._target.open_or_create()
        while waiting:
            batch: list[tuple[ItemSnapshot, _Part]] = []
            remaining = iter(waiting)
            for snapshot in remaining:
                part = await self._part_or_failure(snapshot, items[snapshot.place], generation)
                if part is not None and part.transfer.puts:
                    batch.append((snapshot, part))
                elif part is not None:
                    again += not await self._drop(part.transfer)
                if part is not None and not part.last:
                    break  # its other messages precede the following items
            waiting = list(remaining)
            outcomes = await self._send([part.transfer for _, part in batch])
            again += outcomes.count(False)
            if batch and not batch[-1][1].last and outcomes[-1]:
                generation = self._runtime.zookeeper.generation
                for snapshot in await find(self._from, [batch[-1][0].place]):
                    if self._held(snapshot):
                        again += 1
                    else:
                        waiting.insert(0, snapshot)
        return again

    async def _part_or_failure(self, found: ItemSnapshot, item: ItemName, generation: int) -> _Part | None:
        """Return the next messages of an item to move; None, with a record of the reason, if they cannot be moved."""
        try:
            part = await self._part(found, item, generation)
        except SessionClosedError:
            raise
        except QueueError as error:
            self.failed[found.id] = error
            return None
        if len(part.transfer.puts) > 1:
            await asyncio.sleep(0)  # a page may hold many thousand messages
        return part

    async def _drop(self, transfer: Transfer) -> bool:
        """Remove an item without messages; return whether it is gone. Raises: QueueError."""
        try:
            (removed,) = await apply(self._runtime, [transfer.change])
        except _RETRIED:
            return False
        return removed

    async def _send(self, transfers: Sequence[Transfer]) -> list[bool | None]:
        """Send these transfers; return for each whether it was made. None: it is impossible."""
        made: list[bool | None] = []
        for sent, outcome in zip(transfers, await transfer(self._runtime, transfers, self._deadline()), strict=True):
            if isinstance(outcome, SessionClosedError):
                raise outcome
            if isinstance(outcome, QueueError) and not isinstance(outcome, _RETRIED):
                self.failed[sent.id] = outcome
                made.append(None)
            else:
                made.append(outcome is True)
                self.moved += len(sent.puts) if outcome is True else 0
        return made

    def _deadline(self) -> Deadline:
        return FOREVER if self._source.dialect is None else Deadline(FOREIGN_TIMEOUT, self._runtime.clock)

    def _held(self, found: ItemSnapshot) -> bool:
        """Whether a transaction, a delivery or another program's consumer holds it."""
        return found.in_flight if self._source.dialect is None else found.lock is not None

    async def _part(self, found: ItemSnapshot, item: ItemName, generation: int) -> _Part:
        """Return the next messages of an item to move. Raises: QueueError: they cannot be moved."""
        runtime, source, target = self._runtime, self._source, self._target
        change = removal(runtime, source, found, self._disposition)
        puts: Sequence[Put]
        if source.dialect is None:
            last = True
            if target.dialect is None:
                puts = [restored(self._into, item, found.item)]
            else:
                converted = convert(runtime, source, target, item, found.item)
                puts = [converted.put(body) for body in converted.bodies]
        else:
            puts, remaining = self._first_of(source.dialect, found, item)
            last = remaining is None
            if remaining is not None:
                change = shortening(runtime, source, found, remaining)
            change = change._replace(generation=generation)
        change = as_configured(found, change)
        for put in puts:
            if put.plan is not None:
                await put.plan.prepare()
        return _Part(Transfer(found.id, puts, change), last)

    def _first_of(self, dialect: Dialect, found: ItemSnapshot, item: ItemName) -> tuple[list[Put], bytes | None]:
        """Put as many messages of an item as fit together; return the remainder, or None if nothing is left."""
        runtime, target = self._runtime, self._target
        converted = convert(runtime, self._source, target, item, found.item)
        bodies, size = converted.bodies, target.config.max_size
        puts: list[Put] = []
        weight = 0
        for body in islice(bodies, None if size is None else credits_of(size)):
            put = converted.put(body)
            weight += weigh_put(put)
            if puts and weight > MOST_AT_ONCE:
                break
            puts.append(put)
        while len(puts) < len(bodies):
            remaining = dialect.part(bodies[len(puts) :], found.item.data)
            if sum(weigh_puts(puts)) + len(remaining) + _OVERHEAD <= runtime.zookeeper.max_request:
                return puts, remaining
            if len(puts) == 1:
                msg = (
                    f"item {found.name} of queue {self._source.name!r} fills its znode, so a request cannot hold its "
                    "first message and the others; let a consumer take the first one, then move the others"
                )
                raise MessageTooLargeError(msg)
            del puts[len(puts) // 2 :]
        return puts, None


async def survey(runtime: Runtime, source: QueueState, target: QueueState) -> int:
    """Check that the target supports every message in the source; return the number after the last item there.

    For moves in which at least one queue is another program's.

    Raises:
        InvalidOptionError, MessageTooLargeError, PayloadError: a message cannot be moved.
        AccessDeniedError.
    """
    await runtime.learn_time()
    config = await configuration(QueueHandle(runtime, target)) or StoredConfig()
    handle, following = QueueHandle(runtime, source), 0
    async for placed in walk(handle, await lanes(handle), ordered=False):
        items = {source.paths.place_of(entry.path): entry.item for entry in placed}
        following = max(following, 0, *(item.sequence + 1 for item in items.values()))
        async for page in item_pages(handle, list(items)):
            for snapshot in page:
                converted = convert(runtime, source, target, items[snapshot.place], snapshot.item)
                for number, body in enumerate(converted.bodies, 1):
                    converted.put(body)
                    if number % SLICE == 0:
                        await asyncio.sleep(0)
                if target.dialect is None:
                    config = with_lane(target.name, config, converted.priority, scheduled=converted.scheduled)
    return following
