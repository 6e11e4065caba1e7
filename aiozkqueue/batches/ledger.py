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

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import UnreadBatchError
from aiozkqueue.layout import name_at
from aiozkqueue.operations.ledger_pages import Entry, Manifest, count_messages, is_page, write_page
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    SetData,
    below,
)

from .preparing import BatchPreparer
from .read_marks import Evidence, Reading, ReadMark, weigh
from .records import LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .manifests import Page


log: Final = logging.getLogger(__name__)


class HandedOut(NamedTuple):
    """A batch that is passed to a query."""

    pages: list[Page]
    reading: Reading
    """The data with which a task marks all of it as read."""
    attempt: int
    """Identifies the attempt: the version of the batch's znode."""


class Ledger(BatchPreparer):
    """One group's ledger; the first change made here takes it over."""

    async def freeze(self) -> None:
        """From now on take only messages that are in the queue now."""
        await self.open()
        await self._backlog.freeze()

    async def next_batch(self, after: int, limit: int | None) -> int:
        """Return the number of the batch that follows the given one; if no message is left for it, the given number.

        The batch may exist already. Otherwise it is filled and sealed.

        ``limit`` is the maximum number of messages of a new batch; None: all messages.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self.open()
        numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).done:
            await self.finish()
            numbers = [number for number in await self.batches() if number > after]
        for number in numbers:
            if (await self._read(number)).sealed:
                return number
            await self._reopen()
            if self._state.config.paused:
                return after
            if await self._complete(number, limit) is not None:
                return number
        made = await self._complete(None, limit)
        return after if made is None else made

    async def _complete(self, number: int | None, limit: int | None) -> int | None:
        """Fill and seal an unsealed batch, or a new one; return its number, or None if there is no message for it."""
        begun = await self._extend(number, limit)
        if begun is None:
            return None
        sealed = SetData(self._manifest(begun.number), Manifest(begun.messages).encode())
        await self._change([sealed])
        self._unsealed = False
        return begun.number

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
            made=stat.children_created,
            done=record.done,
            used=record.done >= 0 or bool(handed),
            batches=len(numbers),
        )

    async def require_ours(self) -> None:
        """Raise ClaimLostError if another process has taken the ledger over. This writes nothing."""
        await self.open()
        await self._hold()

    async def hand_out(self, number: int, stream: str, most: int | None = None, *, again: bool = False) -> HandedOut:
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
        messages = sum(page.messages for page in pages)
        check = self._check()
        mark = ReadMark(stream, self._record.run, 0, messages)
        stat = await self._zookeeper.exists(self._manifest(number))
        await self._hold()  # otherwise this may be the version of a successor's attempt
        reading = Reading(check.path, check.version, self._manifest(number), mark)
        return HandedOut(pages, reading, -1 if stat is None else stat.version)

    async def _attempt(self, number: int, most: int | None) -> None:
        """Count an attempt at a batch. After too many, divide the batch, or reject its only message."""
        queue = self._state.name
        what, extra = f"queue {queue}: batch {number} of stream {self._group!r}", {"queue": queue}
        heirs = [batch for batch in await self.batches() if (await self._read(batch)).parent == number]
        if heirs:
            await self._divide(number, heirs[0])  # finish an interrupted division
        await self.pages(number)
        before = await self._read(number)
        after = before.next_attempt(most)
        if after.rejected and not before.rejected:
            log.error("%s: its only message is rejected after %d attempts", what, after.rejected, extra=extra)
        if after.messages != before.messages:
            log.warning("%s: %s of its %s messages are tried alone", what, after.messages, before.messages, extra=extra)
            heir = Manifest(0, parent=number, chunk=after.chunk)
            await self._divide(number, await self._new(heir.encode()))
            after = (await self._read(number)).next_attempt(None)
        await self._change([SetData(self._manifest(number), after.encode())])

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
                await self._delete(f"{manifest}/{name}")
        remaining = chunk
        for page in pages:
            first, remainder = await self._cut(page.path, remaining, claims)
            remaining -= count_messages(first)
            if remainder:
                create = Create(f"{target}/{name_at(page.path)}", write_page(remainder))
                marks = [Delete(f"{page.path}/{mark}") for mark in await below(self._zookeeper, page.path)]
                rest = SetData(page.path, write_page(first)) if first else Delete(page.path)
                await self._change([create, *marks, rest], partial(self._exists, create.path))
        kept, moved = [sum(page.messages for page in await self.pages(part, sealed=False)) for part in (number, heir)]
        left, right = state.divided(number, chunk, kept, moved)
        await self._change([SetData(manifest, left.encode()), SetData(target, right.encode())])

    async def _cut(self, page: str, remaining: int, claims: Collection[str]) -> tuple[list[Entry], list[Entry]]:
        """Return the first items of a page, with up to ``remaining`` messages, and the others.

        If the cut is inside a bundle, the messages of the bundle become locked single items.
        """
        entries, index = await self._entries(page), 0
        while remaining and index < len(entries):
            entry = entries[index]
            if entry.messages > remaining:
                entries = await self._single_out(page, entries, entry, claims)
            else:
                remaining, index = remaining - entry.messages, index + 1
        return entries[:index], entries[index:]

    async def acknowledge(self, number: int, stream: str | None = None) -> int:
        """Mark the batches up to this one as done, and remove them; return the number of messages.

        Raises: as `mark_done`.
        """
        batches = await self.mark_done(number, stream)
        if batches:
            await self._refresh()  # the operations of each end depend on it
        return sum([await self._remove(batch) for batch in batches])

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
            batches = await self._removable(batches, stream)
        for batch in batches:
            state = await self._read(batch)
            if not state.done:
                done = SetData(self._manifest(batch), state._replace(done=True).encode())
                await self._note(self._record._replace(done=max(batch, self._record.done)), done)
        return batches

    async def _removable(self, batches: Sequence[int], stream: str) -> list[int]:
        """Return the batches that may be removed. Raises: UnreadBatchError."""
        await self._zookeeper.sync(self._path)
        removable = 0
        for index, batch in enumerate(batches):
            state = await self._read(batch)
            names = await below(self._zookeeper, self._manifest(batch))
            if state.messages is None:
                evidence = Evidence.UNREAD
            else:
                evidence = weigh(names, state.messages, stream, self._record.run)
            if state.done or state.rejected or evidence is Evidence.READ:
                removable = index + 1
            elif evidence is Evidence.UNREAD:
                await self._require_epoch()  # the process that has taken it over may have removed it
                msg = (
                    f"queue {self._state.name!r}: Spark committed batch {batch} of stream {self._group!r}, but no task "
                    "of this query has read all of it. A file sink does so when its folder knows the batch number from "
                    "another checkpoint. Nothing was removed from the queue. Start with a new checkpoint, an empty "
                    "output folder and startingOffsets=earliest; or set failOnDataLoss=false to get these messages "
                    "again in a later batch"
                )
                raise UnreadBatchError(msg)
        return list(batches[:removable])

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
            finished += state.messages or 0
        return finished
