"""The creation of a batch: pages lock the free messages of a queue, until the batch is full or none is left."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import name_at
from aiozkqueue.operations.contradictions import MOST_TRIES
from aiozkqueue.operations.ledger_pages import Entry, Manifest, count_messages, write_page
from aiozkqueue.operations.listing import locked_ids
from aiozkqueue.runtime.tasks import run_limited
from aiozkqueue.zookeeper import Check, Create, NoAuthError, ServerError, SetData

from .acknowledge import MAX_CONCURRENT
from .backlog import Backlog
from .bundled import locking
from .epoch import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import Operation

    from .bundled import LedgerBundles
    from .epoch import Epoch
    from .manifests import Manifests
    from .unreadable import Obstacles

log: Final = logging.getLogger(__name__)

#: Items of a page. A server keeps its last 500 requests in its heap, with about 0.75 KiB for each operation of a multi:
#: that is 190 MiB for pages of this size; pages of 1,000 items would exceed the heap of many servers.
PAGE: Final = 250
#: Items of a page while other consumers keep taking messages.
SMALLEST: Final = 50
#: Messages of a page for each of its items: a page of bundles has few of them, because their messages may become items.
MESSAGES: Final = 4
#: Maximum number of messages in a batch.
MOST: Final = 100_000
#: The longest pause between two tries to lock messages that seem free, seconds.
LONGEST_PAUSE: Final = 5.0
#: Names kept for the next batches, if these are smaller: each listing of a deep queue stalls the server.
BACKLOG: Final = 50_000


class UnsealedBatch(NamedTuple):
    """A batch that is not sealed yet."""

    number: int
    messages: int = 0
    page: int = 0
    """The number of its next page."""


class BatchMaker:
    """Fills the batches of a ledger."""

    def __init__(
        self,
        epoch: Epoch,
        manifests: Manifests,
        bundles: LedgerBundles,
        obstacles: Obstacles,
        most_bytes: int | None,
    ) -> None:
        """``most_bytes`` is the size at which a batch ends; None: any size. A batch has at least one item or bundle."""
        self._epoch = epoch
        self._manifests = manifests
        self._bundles = bundles
        self._obstacles = obstacles
        self._state = epoch.state
        self._candidates: list[str] = []  # places, as listed
        self._again: list[Entry] = []  # places that were examined since, and come first
        self._backlog = Backlog(epoch.handle)
        self._begun: UnsealedBatch | None = None  # this process has filled it last
        self._halted = False
        self.unsealed: bool = False
        """Whether this process has begun to fill a batch, and not sealed it."""
        self._most_bytes = most_bytes

    def halt(self) -> None:
        """Add no further pages to a batch that is being filled."""
        self._halted = True

    async def freeze(self) -> None:
        """From now on take only messages that are in the queue now."""
        await self._backlog.freeze()

    def forget(self) -> None:
        """Forget the batch that was begun: it has been released."""
        self._begun, self.unsealed = None, False

    async def complete(self, number: int | None, limit: int | None) -> int | None:
        """Fill and seal an unsealed batch, or a new one; return its number, or None if there is no message for it.

        ``limit`` is the maximum number of its messages; None: `MOST`. The configuration must be current for a batch
        that has been begun.

        Raises: ClaimLostError, AccessDeniedError.
        """
        begun = await self.extend(number, limit)
        if begun is None:
            return None
        sealed = SetData(self._manifests.path_of(begun.number), Manifest(begun.messages).encode())
        await self._epoch.change([sealed])
        self.unsealed = False
        return begun.number

    async def extend(self, number: int | None, limit: int | None) -> UnsealedBatch | None:
        """Fill an unsealed batch, or a new one; remove it and return None if there is no message for it.

        Raises: as `complete`.
        """
        most = limit_of(limit)
        begun = None if number is None else await self._known(number)
        self._begun, self.unsealed = None, True
        if begun is None or begun.messages < most:
            if not self._left:
                await self._list_free(limit)
            if begun is None and not self._left:
                self.unsealed = False
                return None
            begun = begun or UnsealedBatch(await self._manifests.new())
            if self._most_bytes is None:
                begun = await self._fill(begun, most)
            elif not begun.messages:
                begun = await self._fill(begun, await self._fitting(most, self._most_bytes))
        if begun.messages:
            self._begun = begun
            return begun
        await self._manifests.remove(begun.number)
        self.unsealed = False
        return None

    async def _fitting(self, most: int, size: int) -> int:
        """Return how many of the next messages, up to ``most``, have a stored size of up to ``size`` bytes together.

        An item or bundle counts as a whole. Those that other clients take now are replaced by others of any size.
        """
        places = chain((entry.place for entry in self._again), self._candidates)
        messages = total = 0
        while messages < most and (together := list(islice(places, PAGE))):
            paths = [self._state.paths.at(place) for place in together]
            stats = await asyncio.gather(*map(self._epoch.zookeeper.exists, paths))
            for place, stat in zip(together, stats, strict=True):
                total += 0 if stat is None else stat.data_length
                if total > size and messages:
                    return min(most, messages)
                messages += Entry(place).messages
        return min(most, messages)

    async def _known(self, number: int) -> UnsealedBatch:
        """Return the contents of an unsealed batch. While the ledger is ours, only this process changes them."""
        if self._begun is not None and self._begun.number == number:
            return self._begun
        pages = await self._manifests.pages(number, sealed=False)
        # An earlier page than the last may have been refused.
        after = int(name_at(pages[-1].path)) + 1 if pages else 0
        return UnsealedBatch(number, sum(page.messages for page in pages), after)

    async def _list_free(self, limit: int | None) -> None:
        """List free messages."""
        await self._epoch.reopen()
        if not self._state.config.paused:
            self._candidates = await self._backlog.free(_enough(limit), self._obstacles.without_unreadable)

    async def _fill(self, begun: UnsealedBatch, most: int) -> UnsealedBatch:
        """Add pages until no message is left, or the batch is full."""
        (number, count, page), size, fruitless = begun, PAGE, 0
        while count < most and self._left and not self._halted:
            remaining = most - count
            pages: dict[str, list[Entry]] = {}
            while remaining > 0 and len(pages) < MAX_CONCURRENT and self._left:
                chosen = await self._choose(size, remaining)
                if chosen:
                    pages[f"{self._manifests.path_of(number)}/{page:06d}"] = chosen
                    page, remaining = page + 1, remaining - count_messages(chosen)
            adding = [partial(self._add_page, number, path, chosen) for path, chosen in pages.items()]
            made = await run_limited(MAX_CONCURRENT, adding)
            count += sum(added for added in made if added is not None)
            refused = [chosen for chosen, added in zip(pages.values(), made, strict=True) if added is None]
            fruitless = fruitless + 1 if len(refused) == len(pages) > 0 else 0
            if not refused:
                size = min(PAGE, 2 * size)
                continue
            if fruitless > MOST_TRIES:
                await self._pause(fruitless)
            await self._epoch.reopen()
            if self._state.config.paused:
                self._candidates, self._again = [], []
                break
            self._again[:0] = await self._still_free([entry for chosen in refused for entry in chosen])
            size = max(SMALLEST, size // 2)
        return UnsealedBatch(number, count, page)

    async def _pause(self, fruitless: int) -> None:
        """Wait before messages that seem free are locked again: longer with each try in vain, up to `LONGEST_PAUSE`."""
        if fruitless == MOST_TRIES + 1:
            text = (
                "queue %s: stream %r cannot lock messages that seem free, and tries again every few seconds; if no "
                "other consumer takes from the queue, compare its znodes on all servers"
            )
            log.warning(text, self._state.name, self._epoch.group, extra={"queue": self._state.name})
        await asyncio.sleep(min(LONGEST_PAUSE, 0.05 * 2.0 ** min(fruitless - MOST_TRIES, 10)))

    @property
    def _left(self) -> int:
        return len(self._again) + len(self._candidates)

    async def _choose(self, size: int, remaining: int) -> list[Entry]:
        """Choose up to ``size`` items with up to ``remaining`` messages for a page.

        A bundle is chosen as a whole. If it exceeds the remaining size of the batch, it is dissolved, and none may be
        chosen.
        """
        chosen = self._take_candidates(min(size, remaining))
        most, messages = min(MESSAGES * size, remaining), 0
        for index, entry in enumerate(chosen):
            messages += entry.messages
            if messages > most:
                rest = chosen[index:]
                if not index:
                    rest[:1] = await self._bundles.dissolve(entry.place)
                self._again[:0] = rest
                return chosen[:index]
        return chosen

    def _take_candidates(self, most: int) -> list[Entry]:
        """Remove and return up to ``most`` items and bundles from those that may be free, in order."""
        chosen = self._again[:most]
        del self._again[:most]
        more = most - len(chosen)
        chosen += map(Entry, self._candidates[:more])
        del self._candidates[:more]
        return chosen

    async def _add_page(self, number: int, path: str, entries: Sequence[Entry]) -> int | None:
        """Create a page and lock its items; return the number of messages, or None if one item is no longer free.

        Raises: AccessDeniedError: this user may not create locks. An item that it may not read counts as not free.
        NotCommittedError: the server has refused it for a reason other than a change of the data.
        """
        lock = self._manifests.lock_of(number)
        paths = self._state.paths
        # By the write of the ledgers' parent, a cancellation notices that a lock may have been replaced.
        write = SetData(paths.ledgers, b"")
        operations: list[Operation] = [Create(path, write_page(entries)), self._state.snapshot.check, write]
        for entry in entries:
            operations += locking(paths, entry, lock)
        try:
            await self._epoch.change(operations, partial(self._epoch.exists, path))
        except RefusedError as refusal:
            if isinstance(refusal.error, NoAuthError) and not isinstance(operations[refusal.index], Check):
                raise self._epoch.reason(refusal) from refusal
            if refusal.index:
                if isinstance(refusal.error, ServerError):
                    raise
                return None
            return count_messages(await self._manifests.entries(path))  # a page of ours whose reply was lost
        return count_messages(entries)

    async def _still_free(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those of these items that are free; a bundle that was held by a client that has died is dissolved.

        Of several items with one id, only the first is: copies that another program has made share one lock.
        """
        paths = self._state.paths
        stats = await asyncio.gather(
            *(self._obstacles.read(self._epoch.zookeeper, paths.at(entry.place)) for entry in entries)
        )
        locked = await locked_ids(self._epoch.handle)
        chosen, free = set[str](), list[Entry]()
        for entry, stat in zip(entries, stats, strict=True):
            if stat is None or entry.id in locked or entry.id in chosen:
                continue
            chosen.add(entry.id)
            if entry.is_bundle and await self._epoch.zookeeper.exists(paths.bundle_record(entry.id)) is not None:
                free += await self._bundles.dissolve(entry.place)
            else:
                free.append(Entry(entry.place, stat.version))
        return free


def limit_of(limit: int | None) -> int:
    """Return the maximum number of messages of a batch, if ``limit`` was requested; None: none was."""
    return MOST if limit is None else min(MOST, limit)


def _enough(limit: int | None) -> int:
    """Return how many names to keep: those of one batch, or of several small ones, all of them full."""
    if limit is None or limit >= MOST:
        return MOST
    return max(limit, BACKLOG - BACKLOG % limit)
