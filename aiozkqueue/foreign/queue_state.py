"""The state of another program's queue: its layout where items and locks are concerned, ours otherwise.

Items and locks are stored where the other program has them. All our locks there are ephemeral, so that its consumers
and ours exclude each other. Data that the program has no place for (configuration, attempts, dead letters, history,
consumers) is stored below ``<root>/.foreign``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from typing import TYPE_CHECKING

from aiozkqueue.dialects import ForeignPaths
from aiozkqueue.errors import InvalidOptionError, NotCommittedError
from aiozkqueue.layout import SEQUENCE_DIGITS, ItemName, QueueConfig, item_prefix, name_at
from aiozkqueue.layout.fields import LARGEST_NUMBER
from aiozkqueue.queue.candidates.backlog import Backlog
from aiozkqueue.queue.state.queue_state import QueueState
from aiozkqueue.runtime.acl_errors import access_denied, required_right, right_denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RequestTooLargeError,
    SetData,
    apply_until_answered,
    parent_of,
)

from .visibility import warn_if_hidden

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.candidates.collectors import Earliest, FirstNames, ShareCollector
    from aiozkqueue.queue.state.queue_state import SessionLinks
    from aiozkqueue.runtime.strings import Strings
    from aiozkqueue.zookeeper import Operation, Versioned, ZooKeeper, ZooKeeperError

_ID_DIGITS = 20
#: Names that are checked together when one of them is taken.
NAMES_CHECKED = 64
#: The settings of a queue that need no layout of our own.
SETTINGS = frozenset({"policy", "max_size", "history", "clean_every", "paused"})


class ForeignQueueState(QueueState):
    """The state of another program's queue that a session knows."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        root: str,
        dialect: Dialect,
        links: SessionLinks,
    ) -> None:
        super().__init__(zookeeper, root, dialect.path, links, paths=ForeignPaths(root, dialect))
        self.dialect: Dialect | None = dialect
        self._layout = dialect
        self._visibility_checked = False
        self.longest_id: int = dialect.longest_name

    def lock_id_of(self, name: str, config: StoredConfig | None = None) -> str:
        """See `QueueState`: an item's lock has the item's name."""
        del config
        return self._layout.id_of(name)

    def item_id(self, name: str) -> str:
        """See `QueueState`."""
        return self._layout.id_of(name)

    def candidate_id(self, name: str) -> str:
        """See `QueueState`."""
        return self._layout.id_of(name)

    def parse_item(self, name: str) -> ItemName | None:
        """See `QueueState`. Dead letters have names in our layout."""
        if not self._layout.is_item(name):
            return ItemName.parse(name)
        digits = self._layout.whole(name)[-SEQUENCE_DIGITS:]
        sequence = int(digits) if digits.isascii() and digits.isdigit() else 0
        return ItemName(name, name, sequence, due=self._layout.due(name) or None)

    def dead_letter_path(self, name: str, version: int, created: int) -> str:
        """See `QueueState`: one item may become several dead letters, each with its own version.

        Names begin again when the parent of the items is created again.
        """
        digest = sha256(f"{name} {version} {created}".encode()).hexdigest()[:_ID_DIGITS]
        item = self.parse_item(name)
        return self.paths.dead(f"{item_prefix(digest)}{0 if item is None else item.sequence:010d}")

    def wakeup_operations(self, path: str, transaction_id: str) -> Sequence[Operation]:
        """See `QueueState`: a child that is created and deleted at once wakes clients that watch children."""
        wake = f"{path}/wake-{transaction_id}"
        return Create(wake), Delete(wake)

    async def distinguish(self, paths: Sequence[str], items: list[Versioned | None], generation: int) -> None:
        """See `QueueState`: if the server removes the empty parent, the names and versions of items begin again.

        Without the other program's locks, its consumers may take an item that we hold, and put another one under its
        name. That one is at version 0. So an item is written before it is delivered, and our commit asserts a version
        that the other one does not have.
        """
        if self._layout.locks is None and self._layout.containers:
            new = [index for index, item in enumerate(items) if item is not None and not item.version]
            written = await asyncio.gather(*(self._written(paths[index], items[index], generation) for index in new))
            for index, item in zip(new, written, strict=True):
                items[index] = item

    async def _written(self, path: str, item: Versioned | None, generation: int) -> Versioned | None:
        """Write an item at version 0; return it as it is then, or None if it is gone."""
        if item is None:
            return None
        try:
            await apply_until_answered(self._zookeeper, [SetData(path, item.data, 0)], generation=generation)
        except RequestTooLargeError:
            return item  # it fills a request alone
        except MultiError as refusal:
            return None if isinstance(refusal.error, BadVersionError | NoNodeError) else item
        return item._replace(version=1)

    def new_backlog(self, random: Random) -> Backlog:
        """See `QueueState`."""
        return ForeignBacklog(random, self._layout, self._now)

    def note_lane_end(self, path: str) -> None:
        """See `QueueState`: another program's queue has no other lane to continue in when the counter nears its end."""

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None]:
        """See `QueueState`: the parents may be containers, which ZooKeeper deletes when they are empty."""
        if isinstance(error, NoAuthError):
            raise access_denied(self.name, error)
        if isinstance(error, BadVersionError | NoNodeError):
            self.invalidate()
            return self.open()
        if isinstance(error, NodeExistsError) and isinstance(operation, Create) and operation.sequential:
            return self._skip_taken_names(operation.path)
        msg = f"queue {self.name!r}: ZooKeeper refused the commit: {error}; nothing was applied"
        raise NotCommittedError(msg) from error

    async def _skip_taken_names(self, path: str) -> None:
        """Advance the counter past taken names: a copied queue has its items, but a counter below them.

        A refused create does not advance the counter, so every further create would be refused. Creating and deleting a
        child uses up one number. After a lost reply, more numbers may be used up than are taken.

        Raises:
            NotCommittedError: the counter has reached its last number, or ZooKeeper refuses to advance it.
            AccessDeniedError: an ACL or a quota forbids to create and delete a child.
        """
        parent, taken = parent_of(path), NAMES_CHECKED
        while taken == NAMES_CHECKED:
            stat = await self._zookeeper.exists(parent)
            if stat is None:
                return  # the next try creates it again, with a new counter
            number = stat.children_created
            if number >= LARGEST_NUMBER:
                msg = (
                    f"queue {self.name!r}: ZooKeeper's sequence counter of {parent} has reached its last number, "
                    f"{number}, so puts are no longer possible; nothing of the commit was applied. Consume the "
                    f"remaining messages, delete {parent}, and put again: the queue is created again and counts from 0"
                )
                raise NotCommittedError(msg)
            names = [f"{path}{number + offset:0{SEQUENCE_DIGITS}d}" for offset in range(NAMES_CHECKED)]
            stats = await asyncio.gather(*(self._zookeeper.exists(name) for name in names))
            taken = next((at for at, stat in enumerate(stats) if stat is None), NAMES_CHECKED)
            passing = [f"{parent}/wake-passing-{at}" for at in range(taken)]
            steps = [operation for path in passing for operation in (Create(path), Delete(path))]
            try:
                await apply_until_answered(self._zookeeper, steps)
            except MultiError as refusal:
                why = f"queue {self.name!r}: the next item names in {parent} are taken"
                if isinstance(refusal.error, NoNodeError):
                    return  # as above
                if isinstance(refusal.error, NoAuthError):
                    raise right_denied(why, required_right(steps[refusal.index]), refusal.error) from refusal
                msg = f"{why}, and ZooKeeper refuses to skip them: {refusal.error}; nothing of the commit was applied"
                raise NotCommittedError(msg) from refusal

    async def configure(self, config: QueueConfig, prepare: Callable[[], Awaitable[None]]) -> None:
        """See `QueueState`. Raises: InvalidOptionError: a setting has no place in this layout."""
        neutral = QueueConfig()
        for setting in (field.name for field in fields(QueueConfig)):
            if setting not in SETTINGS and getattr(config, setting) != getattr(neutral, setting):
                msg = (
                    f"queue {self.name!r}: {setting}={getattr(config, setting)!r}: {self._layout.title()} does not "
                    f"support it; it supports {', '.join(sorted(SETTINGS))}"
                )
                raise InvalidOptionError(msg)
        await super().configure(config, prepare)

    async def _try_open(self, *, creates: bool) -> None:
        del creates
        await self._ensure(self._layout.items)
        if self._layout.locks is not None:
            await self._ensure(self._layout.locks)
        await super()._try_open(creates=True)  # as the other program does
        if not self._visibility_checked:
            await warn_if_hidden(self._zookeeper, self.name, self._layout.items, self.paths.base)
            self._visibility_checked = True

    def _required_znodes(self) -> list[str]:
        paths = self.paths
        own = [paths.lanes, paths.metas, paths.dlq, paths.consumers, paths.due, paths.keys]
        return own if self._layout.locks is not None else [*own, paths.locks]

    async def _ensure(self, path: str) -> None:
        """Create a znode of the other program, and its parents as that program does."""
        if await self._zookeeper.exists(path) is not None:
            return
        if not self._layout.containers:
            await self._zookeeper.ensure(path)
            return
        above = parent_of(path)
        if above != "/":
            await self._ensure_container(above)
        await self._create(Create(path))

    async def _ensure_container(self, path: str) -> None:
        if await self._zookeeper.exists(path) is not None:
            return
        above = parent_of(path)
        if above != "/":
            await self._ensure_container(above)
        await self._create(Create(path, container=True))

    async def _create(self, create: Create) -> None:
        try:
            await self._zookeeper.multi([create])
        except MultiError as error:
            if not isinstance(error.error, NodeExistsError):
                raise

    def _now(self) -> int:
        return self._clock.now()


class ForeignBacklog(Backlog):
    """Candidates in the order of the dialect, however they were found, and none before it is due."""

    def __init__(self, random: Random, dialect: Dialect, now: Callable[[], int]) -> None:
        super().__init__(random)
        self._dialect = dialect
        self._order = dialect.order
        self._server_now = now
        self._lane = "items"
        self._arrived: list[str] = []  # names that arrived or returned while the listing is running
        self._departed: set[str] = set()  # names of items that were deleted in the meantime

    def begin_listing(self, lane: str) -> None:
        """See `Backlog`."""
        super().begin_listing(lane)
        self._arrived.clear()
        self._departed.clear()

    def fill(self, lane: str, shares: ShareCollector, locked: Strings, now: float) -> None:
        """See `Backlog`: the listing lacks items that arrived after the server had read the names."""
        super().fill(lane, shares, locked, now)
        for name in self._arrived:
            self._insert(name)

    def _keep(self, own: Earliest | FirstNames) -> None:
        """See `Backlog`."""
        departed, names = self._departed, own.names()
        names.reverse()
        self._listed, self._more = [name for name in names if name not in departed] if departed else names, iter(())

    def forget(self, place: str) -> None:
        """See `Backlog`: other clients consume listed items too, and locking a deleted item is useless."""
        super().forget(place)
        name = name_at(place)
        if self._freed is not None:
            self._departed.add(name)
        at = self._position(name)
        if at < len(self._listed) and self._listed[at] == name:
            del self._listed[at]
        for entries, entry in ((self._arrived, name), (self._front, place)):
            with suppress(ValueError):
                entries.remove(entry)

    def _add_own(self, lane: str, names: list[str], now: float) -> None:  # noqa: ARG002 - `Backlog` needs them
        for name in names:
            self._insert(name)

    def put_back(self, places: Sequence[str]) -> None:
        """See `Backlog`: they are inserted in order."""
        for place in places:
            self._unlock(place)
            self._insert(name_at(place))

    def put_last(self, places: Iterable[str]) -> None:
        """See `Backlog`: they are inserted in order, because other consumers' items are known by their locks."""
        for place in places:
            self._insert(name_at(place))

    def take_of_peers(self, limit: int, excluded: Callable[[str], bool]) -> list[str]:
        """See `Backlog`: the earliest of them."""
        free = [
            (lane, name) for lane, items in self._peer_items.items() for name in items if self._free(name, excluded)
        ]
        return self._remove(sorted(free, key=lambda item: self._order(item[1]))[:limit])

    @property
    def next_due(self) -> int | None:
        """See `Backlog`."""
        if not self._dialect.scheduled:
            return None
        ahead = [self._dialect.due(name) for items in self._peer_items.values() for name in items]
        if self._listed:
            ahead.append(self._dialect.due(self._listed[-1]))
        now = self._server_now()
        return min((due for due in ahead if due > now), default=None)

    def _pop_listed(self, places: list[str], limit: int, excluded: Callable[[str], bool], now: float) -> int:
        ahead = self._split_ahead()
        limit = super()._pop_listed(places, limit, excluded, now)
        self._listed = ahead + self._listed
        return limit

    def _split_ahead(self) -> list[str]:
        """Remove and return the names that are not due yet: they are the last by time, so the first of the list."""
        if not self._dialect.scheduled:
            return []
        cut = bisect_left(self._listed, -self._server_now(), key=lambda name: -self._dialect.due(name))
        ahead, self._listed = self._listed[:cut], self._listed[cut:]
        return ahead

    def _insert(self, name: str) -> None:
        """Insert a name in order; the list is newest first."""
        if self._freed is not None:
            self._arrived.append(name)
            self._departed.discard(name)
        at = self._position(name)
        if at == len(self._listed) or self._listed[at] != name:
            self._listed.insert(at, name)

    def _position(self, name: str) -> int:
        """Return the position of a name in the list, or where it belongs."""
        low, high, order = 0, len(self._listed), self._order(name)
        while low < high:
            middle = (low + high) // 2
            if self._order(self._listed[middle]) > order:
                low = middle + 1
            else:
                high = middle
        return low

    def _free(self, name: str, excluded: Callable[[str], bool]) -> bool:
        return self._dialect.due(name) <= self._server_now() and super()._free(name, excluded)

    def _lock_id(self, name: str) -> str:
        return self._dialect.id_of(name)
