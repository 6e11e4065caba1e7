"""Collapsing: of the messages of one key that lie in a queue at a take, the newest is delivered and the others go.

A take looks at the queue after it was asked for: what the lane holds, and what is locked. Candidates that have a key
are replaced by the newest free message of that key, and the older free ones are removed in the multi that locks it,
each asserted to be free (create lock, delete item, delete lock) and the newest one asserted to be there. So whoever put
any of them sees a message delivered that was put no earlier than his own; and what is put after the look is not
touched, and is delivered in its own right.

What is held, or waits for its next attempt, is left alone, and so is what belongs to a group. Messages with other
filters, of another node or priority, are not of the same set.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import End, ItemName, item_id, parse_lock
from aiozkqueue.queue.candidates.batches import is_closed
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, removal
from aiozkqueue.zookeeper import Check, MultiError, NoAuthError, Node, NotEmptyError

from .claimer import BesideError, ContendedError, ReopenError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.attached import RefusalHandler
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Stat, ZooKeeper, ZooKeeperError

    from .claimer import Batch, Claimer

log: Final = logging.getLogger(__name__)

#: Duplicates removed in one multi. When there are more, the oldest go before the newest one is claimed.
TOGETHER = 100
COLLAPSED = Disposition("remove", outcome=End.COLLAPSED)


Like = tuple[str, str | None, tuple[str, ...]]
"""Key, filters, and whatever else the name says that is not known here: who may take it, say."""


class Duplicates(NamedTuple):
    """What goes with the claim of the newest messages of their keys."""

    collapse: Collapse
    """Who has looked."""
    places: Sequence[str]
    """Of the messages that are removed."""
    operations: Sequence[tuple[Operation, RefusalHandler | None, str | None]]
    """With who answers for a refusal (None: the look is out of date), and the place of the message it removes."""

    @property
    def ids(self) -> list[str]:
        """Of the messages that are removed."""
        return [_id(place) for place in self.places]

    async def refused(self, index: int, error: ZooKeeperError) -> Exception:
        """Mend what refused an operation, if that can be mended; return what is to be raised: look again."""
        self.collapse.look_again()
        operation, owner, place = self.operations[index]
        if place is not None and isinstance(error, NotEmptyError):
            self.collapse.shun(place, error)
            return ContendedError(-1)
        if isinstance(error, NoAuthError):
            return error
        if owner is not None and (mending := owner.repair(operation, error)) is not None:
            await mending
        return ContendedError(-1)


class _Lane:
    """A lane as it was listed: its items by key and filters, oldest first."""

    __slots__ = ("gone", "keys", "mark", "names")

    def __init__(self, mark: tuple[int, int], names: list[str]) -> None:
        self.mark = mark
        self.gone: set[str] = set()  # what is known to have been deleted since
        self.names: dict[str, ItemName] = {}
        self.keys: dict[Like, list[ItemName]] = {}
        for text in names:
            name = ItemName.parse(text)
            if name is not None:
                self.names[text] = name
                if (like := like_of(name)) is not None:
                    self.keys.setdefault(like, []).append(name)
        for several in self.keys.values():
            several.sort(key=lambda name: name.sequence)

    def forget(self, text: str) -> None:
        """An item has been deleted."""
        name = self.names.pop(text, None)
        if name is not None:
            self.gone.add(text)
            if (like := like_of(name)) is not None:
                self.keys[like].remove(name)


class Collapse:
    """Chooses what one session claims of a queue that collapses."""

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        ids: IdSource,
        server_clock: ServerClock,
        set_aside: Callable[[Sequence[str]], None],
    ) -> None:
        self._store = store
        self._set_aside = set_aside
        self._zookeeper = zookeeper
        self.ids = ids
        self.server_clock = server_clock
        self.removed: int = 0
        """Duplicates removed before a claim, since there were too many to go with it."""
        self._lanes: dict[str, _Lane] = {}
        self._told: set[str] = set()  # ids of messages that cannot be removed
        self._gone: list[str] | None = None  # what has been deleted while a look is under way

    def look_again(self) -> None:
        """Forget what was listed: something of it has turned out to be otherwise."""
        self._lanes.clear()

    def shun(self, place: str, error: ZooKeeperError) -> None:
        """Mind a message no more that has been replaced by a newer one of its key and cannot be removed."""
        message_id = _id(place)
        self._set_aside([message_id])
        if message_id not in self._told:
            self._told.add(message_id)
            log.error(
                "queue %s: message %s has been replaced by a newer one of its key and cannot be removed: %s; delete "
                "it by hand",
                self._store.name,
                message_id,
                error,
                extra={"queue": self._store.name},
            )

    def forget(self, places: Sequence[str]) -> None:
        """Items have been deleted by this session: no listing is needed to know it."""
        if self._gone is not None:
            self._gone += places
        for place in places:
            lane, _, text = place.rpartition("/")
            if lane in self._lanes:
                self._lanes[lane].forget(text)

    def without_gone(self, places: list[str]) -> list[str]:
        """Leave out of candidates what this session is known to have deleted since they were listed."""
        there: list[str] = []
        for place in places:
            lane, _, text = place.rpartition("/")
            if lane not in self._lanes or text not in self._lanes[lane].gone:
                there.append(place)
        return there

    async def request_policy(
        self, places: Sequence[str], excluded: Callable[[str], bool], generation: int
    ) -> tuple[list[str], Duplicates]:
        """Return what to claim in the place of these candidates, and what goes with it.

        Raises:
            ContendedError: what was seen of a duplicate has changed.
            ReopenError: the queue's configuration has changed.
            NoNodeError, NoAuthError, ConnectionLossError, SessionExpiredError: of the zookeeper package.
        """
        lanes = dict.fromkeys(place.rpartition("/")[0] for place in places)
        self._gone = []
        locks = asyncio.ensure_future(self._zookeeper.children(self._store.paths.locks, generation=generation))
        try:
            listed = await asyncio.gather(*(self._list(lane, generation) for lane in lanes))
            locked = {parse_lock(lock) for lock in await locks}
            if self._store.config.staged:  # a batch is known to be open only by a look after its items were seen
                after = await self._zookeeper.children(self._store.paths.locks, generation=generation)
                locked |= {parse_lock(lock) for lock in after}
        finally:
            locks.cancel()
            gone, self._gone = self._gone, None
        self._lanes = dict(zip(lanes, listed, strict=True))
        self.forget(gone)
        free = _Free(locked, excluded, self.server_clock.now())
        chosen: dict[str, list[str]] = {}  # with what each takes the place of, oldest first
        for place in places:
            lane, _, text = place.rpartition("/")
            name = self._lanes[lane].names.get(text)
            if name is None:
                continue  # it has gone, maybe into one that was chosen before
            like = like_of(name)
            several = [] if like is None else self._lanes[lane].keys.get(like, [])
            members = [f"{lane}/{one.text}" for one in several if free.to_deliver(one)]
            if members:
                chosen[members[-1]] = members[:-1]
            elif free.to_claim(name):
                chosen.setdefault(place, [])
        return list(chosen), await self._duplicates(chosen, generation)

    async def _list(self, lane: str, generation: int) -> _Lane:
        """List a lane, unless nothing has been put to it since it was listed last."""
        path = self._store.paths.at(lane)
        stat, known = await self._zookeeper.exists(path, generation=generation), self._lanes.get(lane)
        # Its children's version counts creates and deletes: with those that are left, it is twice the creates.
        mark = (0, 0) if stat is None else (stat.czxid, stat.cversion + stat.num_children)
        if known is not None and known.mark == mark:
            return known
        return _Lane(mark, await self._zookeeper.children(path, generation=generation))

    async def _duplicates(self, chosen: dict[str, list[str]], generation: int) -> Duplicates:
        pairs = [(newest, older) for newest, several in chosen.items() for older in several]
        while len(pairs) > TOGETHER:
            together = await self._removal(pairs[:TOGETHER], generation)
            operations = [operation for operation, _, _ in together.operations]
            try:
                await self._zookeeper.multi([self._store.check(), *operations], generation=generation)
            except MultiError as refusal:
                if refusal.index == 0:
                    raise ReopenError from refusal
                raise await together.refused(refusal.index - 1, refusal.error) from refusal
            self.removed += len(together.places)
            self.forget(together.places)
            del pairs[:TOGETHER]
        return await self._removal(pairs, generation)

    async def _removal(self, pairs: Sequence[tuple[str, str]], generation: int) -> Duplicates:
        """Remove the older one of each pair, while the newest is there."""
        operations: list[tuple[Operation, RefusalHandler | None, str | None]] = [
            (Check(self._store.paths.at(place)), None, None) for place in dict.fromkeys(newest for newest, _ in pairs)
        ]
        found = await self._read([older for _, older in pairs], generation)
        for one in found:
            change = removal(self, self._store, one, COLLAPSED)
            operations += ((operation, None, one.place) for operation in change.operations)
            operations += ((also.operation, also.owner, None) for also in change.attached_ops(self.server_clock))
        return Duplicates(self, [one.place for one in found], operations)

    async def _read(self, places: Sequence[str], generation: int) -> list[ItemSnapshot]:
        """Learn of duplicates what their removal depends on; their payloads only where a history keeps them."""
        wanted = [
            path for place in places for path in (self._store.paths.at(place), self._store.paths.meta(_id(place)))
        ]
        nodes: list[Node | None] = []
        try:
            nodes += await self._read_nodes(wanted, generation)
        except NoAuthError:
            for place, pair in zip(places, zip(wanted[::2], wanted[1::2], strict=True), strict=True):
                try:
                    nodes += await self._read_nodes(pair, generation)
                except NoAuthError as error:
                    self.shun(place, error)
                    nodes.extend((None, None))
        return [
            ItemSnapshot(place, item, None, meta, item_id(place.rpartition("/")[2]))
            for place, item, meta in zip(places, nodes[::2], nodes[1::2], strict=True)
            if item is not None
        ]

    async def _read_nodes(self, wanted: Sequence[str], generation: int) -> list[Node | None]:
        zookeeper = self._zookeeper
        if self._store.end_hooks:
            return await zookeeper.read_many(wanted, generation=generation)
        stats: list[Stat | None] = await asyncio.gather(
            *(zookeeper.exists(path, generation=generation) for path in wanted)
        )
        return [None if stat is None else Node(b"", stat) for stat in stats]


async def claim_newest(
    claimer: Claimer, places: Sequence[str], ids: Sequence[str], generation: int, duplicates: Duplicates
) -> Batch:
    """Claim the newest messages of their keys, and remove their duplicates with that.

    Raises: as `Claimer.claim`; ContendedError also when what was seen of a duplicate has changed.
    """
    try:
        batch = await claimer.claim(places, ids, generation, [one for one, _, _ in duplicates.operations])
    except ContendedError:
        duplicates.collapse.look_again()
        raise
    except BesideError as refused:
        raise await duplicates.refused(refused.index, refused.error) from refused
    claimer.counts.collapsed += len(duplicates.places)
    duplicates.collapse.forget(duplicates.places)
    if batch.ghosts or batch.lost:
        duplicates.collapse.look_again()
    return batch


class _Free(NamedTuple):
    """Tells of items whether they may be taken."""

    locked: Collection[str | None]
    excluded: Callable[[str], bool]
    now: int

    def to_claim(self, name: ItemName) -> bool:
        """Whether nobody holds it."""
        return name.id not in self.locked and not self.excluded(name.id) and not is_closed(name.text, self.locked)

    def to_deliver(self, name: ItemName) -> bool:
        """Whether it is delivered when it is claimed."""
        return (
            self.to_claim(name)
            and (name.expires is None or name.expires > self.now)
            and (name.due is None or name.due <= self.now)
        )


def like_of(name: ItemName) -> Like | None:
    """Return what messages of one set have in common; None when this one is by itself."""
    return None if name.key is None or name.group is not None else (name.key, name.filters, name.unknown)


def _id(place: str) -> str:
    return item_id(place.rpartition("/")[2])
