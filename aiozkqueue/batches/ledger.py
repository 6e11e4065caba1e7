"""A ledger: messages held for a stream, which may request the same batch again, from any process.

A process that takes the ledger over writes ``ledger/<group>``: its version is the *epoch*, and every change below
asserts it, so a process that was presumed dead and returns can change nothing. Below it, ``batch-<n>`` is a manifest:
an immutable batch, with pages that name its items. A page is created in one multi with the locks of its items, which
are persistent and have no end. A manifest with empty data is not sealed yet, and is continued. Acknowledging first
marks the manifest as done. It then removes items, locks and pages, a few pages at a time. No batch is returned once it
is marked, because part of it may be gone: the next process finishes the removal instead.

The group's znode also holds the ledger's identity, which is created once, and the highest number acknowledged. Tasks
create marks below a manifest for the messages that they have read (`read_marks`). A batch that keeps failing is
divided: its heir is a manifest that names it, and gets all messages but the first few (`ledger_pages.Manifest`).

The group's znode is never removed: its version, and the numbers of manifests that it counts, must never start again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, InvalidOptionError, NotFoundError, UnreadBatchError
from aiozkqueue.layout import name_at
from aiozkqueue.operations.ledger_pages import Entry, Manifest, count_messages, is_page, read_page, write_page
from aiozkqueue.operations.listing import locked_ids
from aiozkqueue.operations.similar import absence
from aiozkqueue.operations.stats import put_into
from aiozkqueue.queue.runtime.tasks import run_limited
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    NoNodeError,
    NotEmptyError,
    SetData,
    below,
)

from .acknowledge import Held, Removing, rejection_of
from .backlog import Backlog
from .bundled import locking
from .epoch import BATCH, RefusedError
from .read_marks import Evidence, Reading, ReadMark, weigh
from .records import LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation

log: Final = logging.getLogger(__name__)

#: Items of a page. A server keeps its last 500 requests in its heap, with about 0.75 KiB for each operation of a multi:
#: that is 190 MiB for pages of this size; pages of 1,000 items would exceed the heap of many servers.
PAGE: Final = 250
#: Pages that are created or acknowledged at a time: the server works on one while others are in transit.
UNDER_WAY: Final = 4
#: Items of a page while other consumers keep taking messages.
SMALLEST: Final = 50
#: Messages of a page for each of its items: a page of bundles has few of them, because their messages may become items.
MESSAGES: Final = 4
#: Maximum number of messages in a batch.
MOST: Final = 100_000
#: Names kept for the next batches, if these are smaller: each listing of a deep queue stalls the server.
BACKLOG: Final = 50_000


class Page(NamedTuple):
    """A page of a manifest, and the number of messages of the items and bundles that it names."""

    path: str
    items: int


class Handed(NamedTuple):
    """A batch that is passed to a query."""

    pages: list[Page]
    reading: Reading
    """The data with which a task marks all of it as read."""
    attempt: int
    """Identifies the attempt: the version of the batch's znode."""


class Ledger(Removing):
    """One group's ledger; the first change made here takes it over."""

    def __init__(self, handle: QueueHandle[Runtime], group: str) -> None:
        super().__init__(handle, group)
        self._handle = handle
        self._candidates: list[str] = []  # places, as listed
        self._again: list[Entry] = []  # places that were examined since, and come first
        self._backlog = Backlog(handle)

    async def open(self) -> None:
        """Take the ledger over, unless that has been done: earlier processes can then change nothing.

        Raises: NotFoundError; InvalidOptionError: the queue has an order, which batches do not keep.
        """
        if self._epoch is not None:
            return
        state = self._state
        if not await state.exists():
            raise NotFoundError(await absence(self._handle.runtime, state.name))
        await self._reopen()
        await self._take_over()

    async def freeze(self) -> None:
        """From now on take only messages that are in the queue now."""
        await self.open()
        await self._backlog.freeze()

    async def next_batch(self, after: int, limit: int | None) -> int:
        """Return the number of the batch that follows the given one, which may exist already.

        The given number if there is none.

        ``limit`` is the maximum number of messages of a new batch; None: all messages.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self.open()
        numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).done:
            await self.finish()
            numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).sealed:
            return numbers[0]
        if not self._left:
            await self._reopen()
            if not self._state.config.paused:
                self._candidates = await self._backlog.free(_enough(limit), self._obstacles.without_sealed)
        if not numbers and not self._left:
            return after
        number = numbers[0] if numbers else await self._new()
        pages = await self.pages(number, sealed=False)
        count = sum(page.items for page in pages)
        first = int(name_at(pages[-1].path)) + 1 if pages else 0  # an earlier page than the last may have been refused
        count += await self._fill(number, first, (MOST if limit is None else min(MOST, limit)) - count)
        if not count:
            await self._delete(self._manifest(number))
            return after
        await self._change([SetData(self._manifest(number), Manifest(count).encode())], self._never)
        return number

    async def batches(self) -> list[int]:
        """Return the numbers of the batches that have not been acknowledged."""
        names = [one.removeprefix(BATCH) for one in await below(self._zookeeper, self._path) if one.startswith(BATCH)]
        return sorted(int(name) for name in names if name.isdecimal())

    async def state(self) -> LedgerState:
        """Return the state of the ledger. This writes nothing, once the ledger is open.

        Raises: as `open`; ClaimLostError: another process has taken the ledger over.
        """
        await self.open()
        stat = await self._hold()
        numbers = await self.batches()
        handed = [number for number in numbers if (await self._read(number)).attempts]
        record = self._record
        return LedgerState(
            identity=record.identity,
            made=put_into(stat),
            done=record.done,
            used=record.done >= 0 or bool(handed),
            batches=len(numbers),
        )

    async def require_ours(self) -> None:
        """Raise ClaimLostError if another process has taken the ledger over. This writes nothing."""
        await self.open()
        await self._hold()

    async def hand_out(self, number: int, stream: str, most: int | None = None, *, again: bool = False) -> Handed:
        """Return a batch for the tasks of a query, and count the attempt, unless the same attempt asks ``again``.

        ``most`` is the number of attempts that may fail (see `Manifest.next_attempt`); None: any number.

        Raises: ClaimLostError: there is no such batch any more, or another process has taken the ledger over.
        """
        await self.open()
        if not again:
            await self._attempt(number, most)
        state, pages = await self._read(number), await self.pages(number)
        if state.rejected:
            pages = []
        items = sum(page.items for page in pages)
        check = self._check()
        mark = ReadMark(stream, self._record.run, 0, items)
        stat = await self._zookeeper.exists(self._manifest(number))
        reading = Reading(check.path, check.version, self._manifest(number), mark)
        return Handed(pages, reading, -1 if stat is None else stat.version)

    async def _attempt(self, number: int, most: int | None) -> None:
        """Count an attempt at a batch. After too many, divide the batch, or reject its only message."""
        queue = self._state.name
        what, extra = f"queue {queue}: batch {number} of stream {self._group!r}", {"queue": queue}
        heirs = [one for one in await self.batches() if (await self._read(one)).parent == number]
        if heirs:
            await self._divide(number, heirs[0])  # finish an interrupted division
        await self.pages(number)
        before = await self._read(number)
        after = before.next_attempt(most)
        if after.rejected and not before.rejected:
            log.error("%s: its only message is rejected after %d attempts", what, after.rejected, extra=extra)
        if after.items != before.items:
            log.warning("%s: %s of its %s messages are tried alone", what, after.items, before.items, extra=extra)
            heir = Manifest(0, parent=number, chunk=after.chunk)
            await self._divide(number, await self._new(heir.encode()))
            after = (await self._read(number)).next_attempt(None)
        await self._change([SetData(self._manifest(number), after.encode())], self._never)

    async def _divide(self, number: int, heir: int) -> None:
        """Keep the first messages in a batch, as recorded in its heir, and move the others to that heir.

        Each change can be repeated, so any process that finds an heir can finish. The locks are unchanged.
        """
        manifest, target = self._manifest(number), self._manifest(heir)
        state, pages = await self._read(number), await self.pages(number, sealed=False)
        chunk = (await self._read(heir)).chunk
        claims = self._claims(number, state)
        for name in await below(self._zookeeper, manifest):
            if not is_page(name):  # a mark for the undivided batch
                await self._change([Delete(f"{manifest}/{name}")], partial(self._gone, f"{manifest}/{name}"))
        room = chunk
        for page in pages:
            first, others = await self._cut(page.path, room, claims)
            room -= count_messages(first)
            if others:
                create = Create(f"{target}/{name_at(page.path)}", write_page(others))
                marks = [Delete(f"{page.path}/{mark}") for mark in await below(self._zookeeper, page.path)]
                rest = SetData(page.path, write_page(first)) if first else Delete(page.path)
                await self._change([create, *marks, rest], partial(self._there, create.path))
        kept, moved = [sum(one.items for one in await self.pages(part, sealed=False)) for part in (number, heir)]
        left, right = state.divided(number, chunk, kept, moved)
        await self._change([SetData(manifest, left.encode()), SetData(target, right.encode())], self._never)

    async def _cut(self, page: str, room: int, claims: Collection[str]) -> tuple[list[Entry], list[Entry]]:
        """Return the first items of a page, with up to ``room`` messages, and the others.

        If the cut is inside a bundle, the messages of the bundle become locked single items.
        """
        entries, index = await self._entries(page), 0
        while room and index < len(entries):
            entry = entries[index]
            if entry.messages > room:
                entries = await self._single_out(page, entries, entry, claims)
            else:
                room, index = room - entry.messages, index + 1
        return entries[:index], entries[index:]

    async def pages(self, number: int, *, sealed: bool = True) -> list[Page]:
        """Return the pages of a batch.

        Raises: ClaimLostError: there is no such batch any more.
        """
        manifest = self._manifest(number)
        await self._zookeeper.sync(manifest)
        state = await self._read(number)
        if not state.done and (state.sealed or not sealed):
            paths = await self._pages_of(number)
            with suppress(NoNodeError):  # it is being acknowledged
                contents = await asyncio.gather(*(read_page(self._zookeeper.read, path) for path in paths))
                pages = [Page(path, count_messages(one)) for path, one in zip(paths, contents, strict=True)]
                if not sealed or sum(page.items for page in pages) == state.items:
                    return pages
        msg = (
            f"queue {self._state.name!r}: batch {number} of stream {self._group!r} does not exist: it was "
            "acknowledged, or its ledger was released. Set failOnDataLoss=false to continue without this batch: "
            "messages that were "
            "released are still in the queue and come in a later batch"
        )
        raise ClaimLostError(msg)

    async def _read(self, number: int) -> Manifest:
        try:
            return Manifest.decode((await self._zookeeper.read(self._manifest(number))).data)
        except NoNodeError:
            return Manifest()

    async def acknowledge(self, number: int, stream: str | None = None) -> int:
        """Mark the batches up to this one as done, and remove them; return the number of messages.

        Raises: as `mark_done`.
        """
        marked = await self.mark_done(number, stream)
        if marked:
            await self._refresh()  # the operations of each end depend on it
        return sum([await self._remove(batch) for batch in marked])

    async def mark_done(self, number: int, stream: str | None = None) -> list[int]:
        """Mark the batches up to this one as done; return those that `finish` has to remove.

        With ``stream``, only messages that tasks of that stream have read are removed. A batch that tasks of an earlier
        run have read, and tasks of this run have not, stays until a batch after it has been read. See
        `docs/design/28-spark-streams.md`.

        Raises:
            ClaimLostError: another has taken the ledger over.
            UnreadBatchError: no task of the stream has read one of them; nothing is removed.
        """
        await self.open()
        batches = [batch for batch in await self.batches() if batch <= number]
        if not batches:
            await self.require_ours()
        elif stream is not None:
            batches = await self._certain(batches, stream)
        for batch in batches:
            state = await self._read(batch)
            if not state.done:
                done = SetData(self._manifest(batch), state._replace(done=True).encode())
                await self._note(self._record._replace(done=max(batch, self._record.done)), done)
        return batches

    async def _certain(self, batches: Sequence[int], stream: str) -> list[int]:
        """Return the batches that may be removed. Raises: UnreadBatchError."""
        await self._zookeeper.sync(self._path)
        certain = 0
        for index, batch in enumerate(batches):
            state = await self._read(batch)
            names = await below(self._zookeeper, self._manifest(batch))
            evidence = Evidence.UNREAD if state.items is None else weigh(names, state.items, stream, self._record.run)
            if state.done or state.rejected or evidence is Evidence.READ:
                certain = index + 1
            elif evidence is Evidence.UNREAD:
                await self._change([], self._never)  # the process that has taken it over may have removed it
                msg = (
                    f"queue {self._state.name!r}: Spark committed batch {batch} of stream {self._group!r}, but no task "
                    "of this query has read all of it. A file sink does so when its folder knows the batch number from "
                    "another checkpoint. Nothing was removed from the queue. Start with a new checkpoint, an empty "
                    "output folder and startingOffsets=earliest; or set failOnDataLoss=false to get these messages "
                    "again in a later batch"
                )
                raise UnreadBatchError(msg)
        return list(batches[:certain])

    async def finish(self) -> int:
        """Remove the remains of batches that are done; return the total number of messages in these batches.

        A process that is killed during an acknowledgement leaves such batches.

        Raises: ClaimLostError: another process has taken the ledger over; AccessDeniedError.
        """
        await self._refresh()
        await self._take_over()
        finished = 0
        for batch in await self.batches():
            state = await self._read(batch)
            if not state.done:
                break  # batches are acknowledged in order
            await self._remove(batch)
            finished += state.items or 0
        return finished

    async def _remove(self, batch: int) -> int:
        manifest = self._manifest(batch)
        pages = await self._pages_of(batch)
        state = await self._read(batch)
        held = Held(self._claims(batch, state), rejection_of(state))
        ended = await run_limited(UNDER_WAY, [partial(self._end_page, page, held) for page in pages])
        await self._delete(manifest)
        return sum(ended)

    def _claims(self, number: int, state: Manifest) -> frozenset[str]:
        """Return the names in the locks of a batch: of the batch, and of the batches that it was divided from."""
        return frozenset(self._lock_of(one).claim for one in (number, *state.parents))

    async def _pages_of(self, number: int) -> list[str]:
        manifest = self._manifest(number)
        return [f"{manifest}/{name}" for name in sorted(filter(is_page, await below(self._zookeeper, manifest)))]

    async def _delete(self, manifest: str) -> None:
        """Remove a manifest without pages, with the marks below it."""
        while True:
            marks = [Delete(f"{manifest}/{name}") for name in await below(self._zookeeper, manifest)]
            try:
                for start in range(0, len(marks), PAGE):
                    await self._change(marks[start : start + PAGE], partial(self._gone, marks[start].path))
                await self._change([Delete(manifest)], partial(self._gone, manifest))
            except RefusedError as refusal:
                if isinstance(refusal.error, NotEmptyError):
                    continue  # an abandoned task has created a mark
                raise
            return

    # -- making

    async def _reopen(self) -> None:
        """Read the configuration. Raises: InvalidOptionError: the queue has an order, which batches do not keep."""
        state = self._state
        await self._refresh()
        if state.config.grouped or state.config.collapse:
            what = "keeps an order or collapses messages, which a stream would not"
            msg = f"queue {state.name!r} {what}: take from it by consumers"
            raise InvalidOptionError(msg)

    async def _refresh(self) -> None:
        self._state.invalidate()
        await self._state.open()

    async def _new(self, data: bytes = b"") -> int:
        """Begin a manifest. A lost reply may leave an extra empty one, which is used next.

        Raises: ClaimLostError: another has taken the ledger over, and may have removed it.
        """
        before = await self.batches()

        async def made() -> list[int]:
            return [number for number in await self.batches() if number not in before]

        async def is_made() -> bool:
            return bool(await made())

        while True:
            await self._change([Create(f"{self._path}/{BATCH}", data, sequential=True)], is_made)
            if numbers := await made():
                return numbers[0]

    async def _fill(self, number: int, page: int, wanted: int) -> int:
        """Add pages until no message is left, or the batch is full; return the number of their messages."""
        count, size = 0, PAGE
        while count < wanted and self._left:
            room = wanted - count
            pages: dict[str, list[Entry]] = {}
            while room > 0 and len(pages) < UNDER_WAY and self._left:
                chosen = await self._choose(size, room)
                if chosen:
                    pages[f"{self._manifest(number)}/{page:06d}"] = chosen
                    page, room = page + 1, room - count_messages(chosen)
            adding = [partial(self._add_page, number, path, chosen) for path, chosen in pages.items()]
            made = await run_limited(UNDER_WAY, adding)
            count += sum(one for one in made if one is not None)
            refused = [chosen for chosen, one in zip(pages.values(), made, strict=True) if one is None]
            if not refused:
                size = min(PAGE, 2 * size)
                continue
            await self._reopen()
            if self._state.config.paused:
                self._candidates, self._again = [], []
                break
            self._again[:0] = await self._still_free([entry for chosen in refused for entry in chosen])
            size = max(SMALLEST, size // 2)
        return count

    @property
    def _left(self) -> int:
        return len(self._again) + len(self._candidates)

    async def _choose(self, size: int, room: int) -> list[Entry]:
        """Choose up to ``size`` items with up to ``room`` messages for a page.

        A bundle is chosen as a whole. If it exceeds the room of the batch, it is dissolved, and none may be chosen.
        """
        chosen = self._request_policy(min(size, room))
        most, messages = min(MESSAGES * size, room), 0
        for index, entry in enumerate(chosen):
            messages += entry.messages
            if messages > most:
                rest = chosen[index:]
                if not index:
                    rest[:1] = await self._dissolve(entry.place)
                self._again[:0] = rest
                return chosen[:index]
        return chosen

    def _request_policy(self, most: int) -> list[Entry]:
        chosen = self._again[:most]
        del self._again[:most]
        more = most - len(chosen)
        chosen += map(Entry, self._candidates[:more])
        del self._candidates[:more]
        return chosen

    async def _add_page(self, number: int, path: str, entries: Sequence[Entry]) -> int | None:
        """Create a page and lock its items; return the number of messages, or None if one item is no longer free."""
        lock = self._lock_of(number)
        operations: list[Operation] = [Create(path, write_page(entries)), self._state.check()]
        for entry in entries:
            operations += locking(self._state.paths, entry, lock)
        try:
            await self._change(operations, lambda: self._there(path))
        except RefusedError as refusal:
            if refusal.index:
                return None
            return count_messages(await self._entries(path))  # a page of ours whose reply was lost
        return count_messages(entries)

    async def _still_free(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those of these items that are free; a bundle that was held by a client that has died is dissolved."""
        paths = self._state.paths
        stats = await asyncio.gather(*(self._obstacles.look(self._zookeeper, paths.at(one.place)) for one in entries))
        locked = await locked_ids(self._handle)
        free: list[Entry] = []
        for one, stat in zip(entries, stats, strict=True):
            if stat is None or one.id in locked:
                continue
            if one.is_bundle and await self._zookeeper.exists(paths.bundle_record(one.id)) is not None:
                free += await self._dissolve(one.place)
            else:
                free.append(Entry(one.place, stat.version))
        return free


def _enough(limit: int | None) -> int:
    """Return how many names to keep: those of one batch, or of several small ones, all of them full."""
    if limit is None or limit >= MOST:
        return MOST
    return max(limit, BACKLOG - BACKLOG % limit)
