"""Compaction (``collapse=``): a take delivers the newest message of a key and removes the older ones.

A take reads the queue after it was requested: the items of the lane, and the locks. Candidates that have a key are
replaced by the newest free message of that key. The older free ones are removed in the multi that locks it: each is
asserted to be free (create lock, delete item, delete lock) and the newest is asserted to exist. So the producer of any
of them sees a message delivered that is at least as new as its own. A message put after the read is not touched; it is
delivered separately.

Messages that are locked, or wait for their next attempt, are left alone, and so are messages of a group. Messages with
other tags, another node or another priority do not belong to the same set.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import End, ItemName, ItemRef, has_field, id_at, lane_at, name_at, parse_lock
from aiozkqueue.layout.compaction import ASKS, compaction_key_at, newest_own, newest_restored, put_at, restored_in
from aiozkqueue.queue.candidates.batches import is_closed
from aiozkqueue.queue.candidates.chains import Chains
from aiozkqueue.queue.candidates.collectors import Earliest, Parsed
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.unclaimed import FIRST_PAGE, ItemSnapshot, bytes_of_items, pages, removal
from aiozkqueue.runtime.strings import Strings, clear_gradually
from aiozkqueue.zookeeper import Check, MultiError, NoAuthError, Node, NotEmptyError, ServerError

from .claimer import MOST_LOGGED, AttachedOpError, ContendedError, ReopenError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Operation, Stat, ZooKeeperError

    from .claimer import Claimer, ClaimResult
    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

#: Duplicates removed in one multi. If there are more, the oldest are removed before the newest message is claimed.
TOGETHER = 100
COLLAPSED = Disposition("remove", outcome=End.COLLAPSED)
#: The chain of the messages that are in no set.
_UNLIKE: Final = ""
#: Names that are examined before the event loop runs other tasks.
_EXAMINED: Final = 512


class Duplicates(NamedTuple):
    """The removals that go with the claim of the newest messages of their keys."""

    collapse: Collapse
    """The compaction that found them."""
    places: Sequence[str]
    """Places of the messages that are removed."""
    operations: Sequence[tuple[Operation, RefusalHandler | None, str | None]]
    """With the handler of a refusal (None: the snapshot is out of date) and the place of the removed message."""

    @property
    def ids(self) -> list[str]:
        """Ids of the messages that are removed."""
        return [id_at(place) for place in self.places]

    async def refused(self, index: int, error: ZooKeeperError) -> Exception:
        """Repair the cause of a refused operation, if possible; return the exception to raise: read again."""
        self.collapse.forget_listings()
        operation, handler, place = self.operations[index]
        if isinstance(error, ServerError) and handler is None:
            return error  # a repetition would be refused too
        if place is not None and isinstance(error, NotEmptyError):
            self.collapse.skip(place, error)
        elif handler is not None:
            if (repair := handler.repair(operation, error)) is not None:
                await repair
        elif isinstance(error, NoAuthError):
            if not isinstance(operation, Check):
                return error
            self.collapse.skip_unreadable(id_at(operation.path), error)
        return ContendedError(-1)


class _Lane:
    """The listing of a lane: the names of its items by key and tags."""

    __slots__ = ("_alike", "gone", "mark")

    def __init__(self, mark: tuple[int, int]) -> None:
        self.mark = mark
        self.gone: set[str] = set()  # names known to have been deleted since
        self._alike = Chains()

    def take(self, names: list[str]) -> None:
        """Add these names."""
        append = self._alike.append
        for text in names:
            append(compaction_key_at(text) or _UNLIKE, text)

    def alike(self, text: str) -> Iterator[str]:
        """Yield the names of the items with the same key and tags, the items deleted since included."""
        like = compaction_key_at(text)
        return iter(()) if like is None else self._alike.names(like)

    def has(self, text: str) -> bool:
        """Whether an item exists."""
        return text not in self.gone and self._alike.has(compaction_key_at(text) or _UNLIKE, text)

    def forget(self, text: str) -> None:
        """Record that an item was deleted."""
        if self.has(text):
            self.gone.add(text)

    @property
    def parts(self) -> Sequence[dict[str, str]]:
        """All that the listing consists of; one that is no longer used may be released in parts."""
        return self._alike.parts


class Collapse:
    """Chooses the messages that one session claims from a queue with compaction."""

    def __init__(self, services: ClaimServices, set_aside: Callable[[Sequence[str]], None]) -> None:
        self._state = services.state
        self._set_aside = set_aside
        self._zookeeper = services.zookeeper
        self.ids: IdSource = services.ids
        self.server_clock: ServerClock = services.server_clock
        self.removed: int = 0
        """Duplicates removed before a claim, because there were too many for one multi."""
        self._lanes: dict[str, _Lane] = {}
        self._old: list[_Lane] = []  # listings that are no longer used, with names that must be released
        self._logged: set[str] = set()  # ids of messages that were skipped
        self._gone: list[str] | None = None  # places deleted while a read is running

    def forget_listings(self) -> None:
        """Forget the listings: part of them is out of date."""
        self._old += self._lanes.values()
        self._lanes = {}

    def skip(self, place: str, error: ZooKeeperError) -> None:
        """Skip a message from now on that was replaced by a newer one of its key and cannot be removed."""
        text = "queue %s: message %s has been replaced by a newer one of its key and cannot be removed: %s; "
        self._set_aside_logged(id_at(place), text + "delete it manually", error)

    def skip_unreadable(self, message_id: str, error: ZooKeeperError) -> None:
        """Skip the newest message of its key from now on, which this user may not read."""
        text = "queue %s: message %s is skipped, and older ones of its key are delivered: %s"
        self._set_aside_logged(message_id, text, error)

    def _set_aside_logged(self, message_id: str, text: str, error: ZooKeeperError) -> None:
        self._set_aside([message_id])
        if message_id not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(message_id)
            log.error(text, self._state.name, message_id, error, extra={"queue": self._state.name})

    def forget(self, places: Sequence[str]) -> None:
        """Record items that this session has deleted."""
        if self._gone is not None:
            self._gone += places
        for place in places:
            lane, text = ItemRef.parse(place)
            if lane in self._lanes:
                self._lanes[lane].forget(text)

    def without_gone(self, places: list[str]) -> list[str]:
        """Leave out candidates that this session has deleted since they were listed."""
        remaining: list[str] = []
        for place in places:
            lane, text = ItemRef.parse(place)
            if lane not in self._lanes or text not in self._lanes[lane].gone:
                remaining.append(place)
        return remaining

    async def choose(
        self, places: Sequence[str], excluded: Callable[[str], bool], generation: int
    ) -> tuple[list[str], Duplicates]:
        """Return what to claim instead of these candidates, and the removals that go with it.

        Raises:
            ContendedError: a duplicate has changed since it was read.
            ReopenError: the queue's configuration has changed.
            NoNodeError, NoAuthError, ConnectionLossError, SessionExpiredError: of the zookeeper package.
        """
        check, lanes = self._state.snapshot.check, dict.fromkeys(map(lane_at, places))
        while self._old:
            await clear_gradually(*self._old.pop().parts)
        self._gone = []
        locks = asyncio.ensure_future(self._locks(Strings(), generation))
        try:
            listed = await asyncio.gather(*(self._list(lane, generation) for lane in lanes))
            locked = await locks
            if self._state.config.staged:  # only locks read after the items show that a batch is open
                await self._locks(locked, generation)
        finally:
            locks.cancel()
            gone, self._gone = self._gone, None
        self._old += [lane for lane in self._lanes.values() if lane not in listed]
        self._lanes = known = dict(zip(lanes, listed, strict=True))
        self.forget(gone)
        free = _Free(locked, excluded, self.server_clock.now())
        chosen: dict[str, list[str]] = {}  # with the names that each replaces, oldest first
        sets: set[tuple[str, str | None]] = set()
        for place in places:
            lane, text = ItemRef.parse(place)
            like = lane, compaction_key_at(text)
            name = ItemName.parse(text) if known[lane].has(text) else None
            if name is None or like in sets:
                continue  # it is gone, or was replaced by one chosen before
            members, restored = await self._deliverable(known[lane], text, free)
            if members:
                sets.add(like)
                if restored:
                    newest = await self._newest(lane, members, restored, generation)
                    members.remove(newest)
                else:  # in constant time: there may be a million
                    newest = members.pop()
                chosen[ItemRef(lane, newest).path] = members
            elif free.to_claim(name):
                chosen.setdefault(place, [])
        await clear_gradually(*locked.parts)
        return list(chosen), await self._duplicates(chosen, check, generation)

    async def _newest(self, lane: str, members: list[str], restored: dict[str, int], generation: int) -> str:
        """Return the item of a set that was put last. Restored ones were put before, at the times in their names."""
        last, own = newest_restored(restored), newest_own(members, restored)
        if own is None:
            return last
        try:
            (node,) = await self._zookeeper.read_many(
                [self._state.paths.at(ItemRef(lane, own).path)], generation=generation
            )
        except NoAuthError:
            return own  # its claim is refused, and it is skipped
        if node is None:
            self.forget_listings()
            raise ContendedError(-1)
        return own if put_at(node.data, node.stat.ctime) >= restored[last] else last

    async def _deliverable(self, listed: _Lane, text: str, free: _Free) -> tuple[list[str], dict[str, int]]:
        """Return the items like this one that would be delivered, in their order, and when restored ones were put.

        Other tasks run while there are many.
        """
        deliverable = Earliest(None)
        names = listed.alike(text)
        while part := list(islice(names, _EXAMINED)):
            items = [item for name in part if name not in listed.gone and (item := ItemName.parse(name)) is not None]
            deliverable.take([item.text for item in items if free.to_deliver(item)])
            if len(part) == _EXAMINED:
                await asyncio.sleep(0)
        in_order, members, restored = deliverable.in_order(), list[str](), dict[str, int]()
        while part := list(islice(in_order, _EXAMINED)):
            members += part
            restored |= restored_in(part)
            if len(part) == _EXAMINED:
                await asyncio.sleep(0)
        return members, restored

    async def _locks(self, locked: Strings, generation: int) -> Strings:
        """Add the ids of all locks; return them with those before."""
        collector = partial(Parsed, parse_lock, locked)
        return (await self._zookeeper.children_into(self._state.paths.locks, collector, generation=generation)).values

    async def _list(self, lane: str, generation: int) -> _Lane:
        """List a lane, unless no item was created since the last listing."""
        path = self._state.paths.at(lane)
        stat, known = await self._zookeeper.exists(path, generation=generation), self._lanes.get(lane)
        # cversion counts creates and deletes: added to the number of children, it is twice the number of creates.
        mark = (0, 0) if stat is None else (stat.czxid, stat.cversion + stat.num_children)
        if known is not None and known.mark == mark:
            return known
        return await self._zookeeper.children_into(path, partial(_Lane, mark), generation=generation)

    async def _duplicates(self, chosen: dict[str, list[str]], check: Operation, generation: int) -> Duplicates:
        pairs = (
            (newest, ItemRef(lane_at(newest), older).path) for newest, replaced in chosen.items() for older in replaced
        )
        page = list(islice(pairs, TOGETHER))
        while True:
            removals, page = await self._removal(page, generation)
            page += islice(pairs, TOGETHER - len(page))
            if not page:
                return removals
            operations = [operation for operation, _, _ in removals.operations]
            try:
                await self._zookeeper.multi([check, *operations], generation=generation)
            except MultiError as refusal:
                if refusal.index == 0:
                    raise refusal.error if isinstance(refusal.error, ServerError) else ReopenError from refusal
                raise await removals.refused(refusal.index - 1, refusal.error) from refusal
            self.removed += len(removals.places)
            self.forget(removals.places)

    async def _removal(self, pairs: list[tuple[str, str]], generation: int) -> tuple[Duplicates, list[tuple[str, str]]]:
        """Return the removal of the older message of each pair, on condition that the newest exists.

        Also return the last pairs, whose records do not fit into the same request.
        """
        operations: list[tuple[Operation, RefusalHandler | None, str | None]] = [
            (Check(self._state.paths.at(place)), None, None) for place in dict.fromkeys(newest for newest, _ in pairs)
        ]
        read, room, places = partial(self._read, generation=generation), self._zookeeper.max_request // 2, list[str]()
        older = [older for _, older in pairs]
        async for _, snapshots in pages(older, read, bytes_of_items, FIRST_PAGE if self._reads(older) else TOGETHER):
            for snapshot in snapshots:
                change = removal(self, self._state, snapshot, COLLAPSED)
                room -= change.weight
                if room < 0 and places:
                    left = next(index for index, (_, older) in enumerate(pairs) if older == snapshot.place)
                    return Duplicates(self, places, operations), pairs[left:]
                places.append(snapshot.place)
                operations += ((operation, None, snapshot.place) for operation in change.operations)
                attached = change.attached_ops(self.server_clock.now)
                operations += ((hook.operation, hook.handler, None) for hook in attached)
        return Duplicates(self, places, operations), []

    async def _read(self, places: Sequence[str], generation: int) -> list[ItemSnapshot]:
        """Read the data for the removal of duplicates; their bytes only if that `_reads` them."""
        paths = [
            path for place in places for path in (self._state.paths.at(place), self._state.paths.meta(id_at(place)))
        ]
        nodes: list[Node | None] = []
        try:
            nodes += await self._read_nodes(paths, generation)
        except NoAuthError:
            for place, pair in zip(places, zip(paths[::2], paths[1::2], strict=True), strict=True):
                try:
                    nodes += await self._read_nodes(pair, generation)
                except NoAuthError as error:
                    self.skip(place, error)
                    nodes.extend((None, None))
        return [
            ItemSnapshot(place, item, None, meta, id_at(place), self._state.snapshot)
            for place, item, meta in zip(places, nodes[::2], nodes[1::2], strict=True)
            if item is not None
        ]

    def _reads(self, paths: Iterable[str]) -> bool:
        """Whether items are read before they are removed: for the history, or for the callers who are answered."""
        return bool(self._state.snapshot.end_hooks) or any(has_field(name_at(path), ASKS) for path in paths)

    async def _read_nodes(self, paths: Sequence[str], generation: int) -> list[Node | None]:
        if self._reads(paths):
            return await self._zookeeper.read_many(paths, generation=generation)
        stats: list[Stat | None] = await asyncio.gather(
            *(self._zookeeper.exists(path, generation=generation) for path in paths)
        )
        return [None if stat is None else Node(b"", stat) for stat in stats]


async def claim_newest(  # noqa: PLR0917 - in the order of `Claimer.claim`
    claimer: Claimer,
    places: Sequence[str],
    ids: Sequence[str],
    generation: int,
    check: Operation,
    duplicates: Duplicates,
) -> ClaimResult:
    """Claim the newest messages of their keys, and remove their duplicates in the same multi.

    Raises: as `Claimer.claim`; ContendedError also when a duplicate has changed since it was read.
    """
    try:
        removals = [operation for operation, _, _ in duplicates.operations]
        batch = await claimer.claim(places, ids, generation, check, removals)
    except ContendedError:
        duplicates.collapse.forget_listings()
        raise
    except AttachedOpError as refused:
        raise await duplicates.refused(refused.index, refused.error) from refused
    claimer.counts.collapsed += len(duplicates.places)
    duplicates.collapse.forget(duplicates.places)
    if batch.gone or batch.lost:
        duplicates.collapse.forget_listings()
    return batch


class _Free(NamedTuple):
    """Decides which items may be taken."""

    locked: Collection[str]
    excluded: Callable[[str], bool]
    now: int

    def to_claim(self, name: ItemName) -> bool:
        """Whether the item is free."""
        return name.id not in self.locked and not self.excluded(name.id) and not is_closed(name.text, self.locked)

    def to_deliver(self, name: ItemName) -> bool:
        """Whether the item would be delivered once claimed."""
        return (
            self.to_claim(name)
            and (name.expires is None or name.expires > self.now)
            and (name.due is None or name.due <= self.now)
        )
