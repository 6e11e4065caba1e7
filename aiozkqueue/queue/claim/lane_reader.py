"""Reads lanes for the search: which lanes hold items, and the items of one lane that this consumer may take.

Each read also checks that the queue still has the configuration for which the lanes are read.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from aiozkqueue.queue.candidates.batches import Locks
from aiozkqueue.queue.candidates.collectors import Earliest, Matching, ShareCollector
from aiozkqueue.zookeeper import Collector, NoNodeError

from .claimer import ReopenError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.queue.candidates.backlog import Backlog
    from aiozkqueue.queue.candidates.batches import BatchVisibility
    from aiozkqueue.queue.candidates.filters import FilterSelector
    from aiozkqueue.queue.candidates.foreign import Doubts
    from aiozkqueue.queue.candidates.priorities import PriorityLevel
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import Revision
    from aiozkqueue.runtime.strings import Strings
    from aiozkqueue.zookeeper import Stat, ZooKeeper

log: Final = logging.getLogger(__name__)

C = TypeVar("C", bound=Collector)

#: Lanes checked in one request.
SKIM = 256
#: Names of a listing that are examined before the event loop runs other tasks: a few milliseconds of work.
EXAMINED = 1024
#: The share of the server's buffer above which a listing causes a warning. A Java client reads no listing beyond it.
LONG_LISTING: Final = 0.8


class LaneReader:
    """Reads the lanes of one queue for one consumer, whose filter is ``selector``."""

    def __init__(
        self, state: QueueState, zookeeper: ZooKeeper, selector: FilterSelector | None, doubts: Doubts
    ) -> None:
        self._state = state
        self._zookeeper = zookeeper
        self._selector = selector
        self._doubts = doubts
        self._warned = False

    async def filled(
        self, levels: Sequence[PriorityLevel], revision: Revision, generation: int
    ) -> dict[PriorityLevel, set[str]]:
        """Return the lanes of each level that hold items. Raises: ReopenError: the queue has changed."""
        paths = self._state.paths
        lanes = [(level, lane, paths.at(lane)) for level in levels for lane in level.lanes]
        filled: dict[PriorityLevel, set[str]] = {level: set() for level in levels}
        for start in range(0, len(lanes), SKIM):
            page = lanes[start : start + SKIM]
            queue, nodes = await asyncio.gather(
                self._zookeeper.exists(paths.base, generation=generation),
                self._zookeeper.read_many([path for _, _, path in page], generation=generation),
            )
            _require_revision(queue, revision)
            for (level, lane, path), node in zip(page, nodes, strict=True):
                if node is None and path == paths.items:
                    raise ReopenError
                if node is not None and node.stat.num_children:
                    filled[level].add(lane)
        return filled

    async def read(
        self,
        backlog: Backlog,
        lane: str,
        batch_visibility: BatchVisibility | None,
        *,
        ordered: bool,
        revision: Revision,
        generation: int,
    ) -> tuple[ShareCollector, Strings]:
        """List a lane and the locks; return the items that this consumer may take, and the locks.

        With ``ordered``, the items of the lane are taken in their order.

        Raises: ReopenError: the queue has changed, so there may be new lanes, or new kinds of items.
        """
        paths = self._state.paths
        items: asyncio.Future[ShareCollector | Earliest | Matching] = asyncio.ensure_future(
            self._list(paths.at(lane), self._collector(backlog, lane, batch_visibility, ordered=ordered), generation)
        )
        if batch_visibility is not None:
            # Sent together, the locks could be older than the items, which are listed again after a lost connection.
            await items
        listed, locks, queue = await asyncio.gather(
            items,
            self._zookeeper.children_into(paths.locks, partial(Locks, paths.lock_of), generation=generation),
            self._zookeeper.exists(paths.base, generation=generation),
        )
        _require_revision(queue, revision)
        if not self._warned:
            self._warned = _warn_of_length(self._state.name, lane, listed.size, self._zookeeper.max_request)
        if isinstance(listed, ShareCollector):
            return listed, locks.values
        if batch_visibility is not None:
            batch_visibility.begin_listing(locks.of_batches)
        return await self._examine(backlog, lane, listed, batch_visibility, generation), locks.values

    async def _list(self, lane: str, collector: Callable[[], C], generation: int) -> C:
        """List a lane. A missing lane is empty: the watches report the put that creates it like any other put."""
        try:
            return await self._zookeeper.children_into(lane, collector, generation=generation)
        except NoNodeError:
            if lane == self._state.paths.items:  # the queue or a part of it was deleted: it is opened again
                raise
            return collector()

    def _collector(
        self, backlog: Backlog, lane: str, batch_visibility: BatchVisibility | None, *, ordered: bool
    ) -> Callable[[], ShareCollector | Earliest | Matching]:
        """Return the collector for the listing of a lane: of candidates, or of names that `_examine` must see first."""
        accepts, dialect = self._state.snapshot.accepts, self._state.dialect
        if ordered:
            passes = accepts if dialect is None else dialect.is_item
            return partial(backlog.ordered_collector, passes, limited=batch_visibility is None)
        if self._selector is not None or batch_visibility is not None:
            return partial(Matching, accepts)
        return partial(backlog.share_collector, lane, accepts)

    async def _examine(
        self,
        backlog: Backlog,
        lane: str,
        listed: Earliest | Matching,
        batch_visibility: BatchVisibility | None,
        generation: int,
    ) -> ShareCollector:
        """Collect the names of a listing that this consumer takes. Other tasks run between two parts of it.

        All that they report until the listing is stored counts as reported while it was running.
        """
        selector = self._selector
        if selector is not None:
            selector.begin_listing()
        shares = backlog.share_collector(lane, ordered=isinstance(listed, Earliest))
        names = listed.in_order() if isinstance(listed, Earliest) else iter(listed.names)
        while part := list(islice(names, EXAMINED)):
            if self._state.dialect is not None:
                part = self._doubts.without_gone(part)
            if selector is not None:
                part = await selector.of_listing(part, generation)
            if batch_visibility is not None:
                part = batch_visibility.of_listing(part)
            shares.take(backlog.candidates_among(part))
            await asyncio.sleep(0)
        return shares


def _require_revision(queue: Stat | None, revision: Revision) -> None:
    if queue is None or (queue.czxid, queue.version) != revision:
        raise ReopenError


def _warn_of_length(queue: str, lane: str, length: int, max_request: int) -> bool:
    """Warn if a listing of ``length`` bytes is too large, or soon will be; return whether it is."""
    if length <= LONG_LISTING * max_request:
        return False
    log.warning(
        "queue %s: a listing of %s takes %d bytes; a Java client cannot read more than %d, and every listing stalls "
        "the server: spread the queue with QueueConfig(shards=...)",
        queue,
        lane,
        length,
        max_request,
        extra={"queue": queue},
    )
    return True
