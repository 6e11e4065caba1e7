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

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import UnreadBatchError
from aiozkqueue.zookeeper import SetData, below

from .acknowledge import BatchRemover
from .attempts import BatchAttempts
from .bundled import LedgerBundles
from .epoch import Epoch
from .making import BatchMaker
from .manifests import Manifests
from .preparing import BatchPreparer
from .read_marks import Evidence, Reading, ReadMark, weigh
from .records import LedgerRecord, LedgerState
from .unreadable import Obstacles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Stat

    from .manifests import Page


class HandedOut(NamedTuple):
    """A batch that is passed to a query."""

    pages: list[Page]
    reading: Reading
    """The data with which a task marks all of it as read."""
    attempt: int
    """Identifies the attempt: the version of the batch's znode."""


class Ledger:
    """One group's ledger; the first change made here takes it over."""

    def __init__(self, handle: QueueHandle[Runtime], group: str, *, most_bytes: int | None = None) -> None:
        """``most_bytes`` is the size at which a batch ends, see `BatchMaker`; None: any size."""
        self._epoch = epoch = Epoch(handle, group)
        self._manifests = manifests = Manifests(epoch)
        bundles, obstacles = LedgerBundles(epoch), Obstacles(handle.state, group)
        self._remover = BatchRemover(epoch, manifests, bundles, obstacles)
        self._maker = BatchMaker(epoch, manifests, bundles, obstacles, most_bytes)
        self._preparer = BatchPreparer(epoch, manifests, self._maker)
        self._attempts = BatchAttempts(epoch, manifests, bundles)

    async def open(self) -> None:
        """Take the ledger over, unless that has been done. Raises: as `Epoch.open`."""
        await self._epoch.open()

    async def freeze(self) -> None:
        """From now on take only messages that are in the queue now. This does not take the ledger over.

        Raises: as `Epoch.open`.
        """
        if not self._epoch.began:
            await self._epoch.admit()
        await self._maker.freeze()

    async def batches(self) -> list[int]:
        """Return the numbers of the batches that have not been acknowledged."""
        return await self._manifests.batches()

    async def pages(self, number: int) -> list[Page]:
        """Return the pages of a batch. Raises: as `Manifests.pages`."""
        return await self._manifests.pages(number)

    async def prepare(self, after: int, limit: int | None) -> None:
        """Begin to fill the batch after this one, with up to ``limit`` messages. Raises: as `BatchPreparer.prepare`."""
        await self._preparer.prepare(after, limit)

    def halt(self) -> None:
        """Add no further pages to a batch that is being filled."""
        self._maker.halt()

    async def release_unsealed(self) -> int:
        """Release the batches that are not sealed. Raises: as `BatchPreparer.release_unsealed`."""
        return await self._preparer.release_unsealed()

    async def next_batch(self, after: int, limit: int | None) -> int:
        """Return the number of the batch that follows the given one; if no message is left for it, the given number.

        The batch may exist already. Otherwise it is filled and sealed.

        ``limit`` is the maximum number of messages of a new batch; None: all messages.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self._epoch.open()
        epoch, manifests = self._epoch, self._manifests
        numbers = [number for number in await manifests.batches() if number > after]
        if numbers and (await manifests.read(numbers[0])).done:
            await self.finish()
            numbers = [number for number in await manifests.batches() if number > after]
        for number in numbers:
            if (await manifests.read(number)).sealed:
                return number
            await epoch.reopen()
            if epoch.state.config.paused:
                return after
            if await self._maker.complete(number, limit) is not None:
                return number
        made = await self._maker.complete(None, limit)
        return after if made is None else made

    async def state(self) -> LedgerState:
        """Return the state of the ledger. This writes nothing, once the ledger is open.

        Raises: as `open`; ClaimLostError: another process has taken the ledger over.
        """
        await self._epoch.open()
        stat = await self._epoch.hold()
        return await self._state(self._epoch.record, stat)

    async def peek_state(self) -> LedgerState | None:
        """Return the state of a ledger that this process has not taken over, which writes nothing.

        None: this process has taken it over, or it has no identity yet. Raises: as `Epoch.open`.
        """
        if self._epoch.began:
            return None
        await self._epoch.admit()
        node = await self._epoch.read_node()
        record = LedgerRecord() if node is None else LedgerRecord.decode(node.data)
        return None if node is None or not record.identity else await self._state(record, node.stat)

    async def _state(self, record: LedgerRecord, stat: Stat) -> LedgerState:
        numbers = await self._manifests.batches()
        handed = [number for number in numbers if (await self._manifests.read(number)).attempts]
        return LedgerState(
            identity=record.identity,
            made=stat.children_created,
            done=record.done,
            used=record.done >= 0 or bool(handed),
            batches=len(numbers),
        )

    async def require_ours(self) -> None:
        """Raise ClaimLostError if another process has taken the ledger over. This writes nothing."""
        await self._epoch.open()
        await self._epoch.hold()

    async def hand_out(self, number: int, stream: str, most: int | None = None, *, again: bool = False) -> HandedOut:
        """Return a batch for the tasks of a query, and count the attempt, unless the same attempt asks ``again``.

        ``most`` is the number of attempts that may fail (see `Manifest.next_attempt`); None: any number.

        Raises: ClaimLostError: there is no such batch any more, or another process has taken the ledger over.
        """
        await self._epoch.open()
        if not again:
            await self._attempts.count(number, most)
        epoch, manifests = self._epoch, self._manifests
        state, pages = await manifests.read(number), await manifests.pages(number)
        if state.rejected:
            pages = []
        messages = sum(page.messages for page in pages)
        check, manifest = epoch.check(), manifests.path_of(number)
        mark = ReadMark(stream, epoch.record.run, 0, messages)
        stat = await epoch.zookeeper.exists(manifest)
        await epoch.hold()  # otherwise this may be the version of a successor's attempt
        reading = Reading(check.path, check.version, manifest, mark)
        return HandedOut(pages, reading, -1 if stat is None else stat.version)

    async def acknowledge(self, number: int, stream: str | None = None) -> int:
        """Mark the batches up to this one as done, and remove them; return the number of messages.

        Raises: as `mark_done`.
        """
        batches = await self.mark_done(number, stream)
        if batches:
            await self._epoch.refresh()  # the operations of each end depend on it
        return sum([await self._remover.remove(batch) for batch in batches])

    async def mark_done(self, number: int, stream: str | None = None) -> list[int]:
        """Mark the batches up to this one as done; return those that `finish` has to remove.

        With ``stream``, only messages that tasks of that stream have read are removed. A batch that tasks of an earlier
        run have read, and tasks of this run have not, stays until a batch after it has been read. See
        `docs/design/28-spark-streams.md`.

        Raises:
            ClaimLostError: another has taken the ledger over.
            UnreadBatchError: no task of the stream has read one of them; nothing is removed.
        """
        await self._epoch.open()
        batches = [batch for batch in await self._manifests.batches() if batch <= number]
        if not batches:
            await self.require_ours()
        elif stream is not None:
            batches = await self._removable(batches, stream)
        for batch in batches:
            state = await self._manifests.read(batch)
            if not state.done:
                done = SetData(self._manifests.path_of(batch), state._replace(done=True).encode())
                record = self._epoch.record
                await self._epoch.note(record._replace(done=max(batch, record.done)), done)
        return batches

    async def _removable(self, batches: Sequence[int], stream: str) -> list[int]:
        """Return the batches that may be removed. Raises: UnreadBatchError."""
        epoch, manifests = self._epoch, self._manifests
        await epoch.zookeeper.sync(epoch.path)
        removable = 0
        for index, batch in enumerate(batches):
            state = await manifests.read(batch)
            names = await below(epoch.zookeeper, manifests.path_of(batch))
            if state.messages is None:
                evidence = Evidence.UNREAD
            else:
                evidence = weigh(names, state.messages, stream, epoch.record.run)
            if state.done or state.rejected or evidence is Evidence.READ:
                removable = index + 1
            elif evidence is Evidence.UNREAD:
                await epoch.require()  # the process that has taken it over may have removed it
                msg = (
                    f"queue {epoch.state.name!r}: Spark committed batch {batch} of stream {epoch.group!r}, but no task "
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
        await self._epoch.refresh()
        await self._epoch.take_over()
        finished = 0
        for batch in await self._manifests.batches():
            state = await self._manifests.read(batch)
            if not state.done:
                break  # batches are acknowledged in order
            await self._remover.remove(batch)
            finished += state.messages or 0
        return finished
