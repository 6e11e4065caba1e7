"""What a dispenser with nothing to do listens to. No polling: watches and timers only.

Watches cost whoever writes, so they are armed by idle consumers only, and taken off when there is work again.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.layout import is_lane, parse_due
from aiozkqueue.zookeeper import EventKind

if TYPE_CHECKING:
    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper


class WatchListener(Protocol):
    """What an idle watch tells."""

    def heard_item(self, place: str) -> None:
        """An item has appeared, or the lock that someone had on it was taken away."""

    def heard_end(self, place: str) -> None:
        """An item has gone."""

    def heard_lock(self, lock: str, *, gone: bool) -> None:
        """A lock has been made, or has gone."""

    def heard_bell(self) -> None:
        """Locks may have gone: list again."""

    def heard_nothing(self) -> None:
        """Events may have been missed, since the connection was lost: list again."""

    def heard_due(self, due: int, message_id: str) -> None:
        """A lock ends at a time."""

    def heard_later(self, place: str, *, gone: bool) -> None:
        """A scheduled item, or the folder of an hour, has appeared or gone."""


class QueueWatch:
    """The watches on one queue: its lanes, its consumers, its timed locks."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths, ear: WatchListener) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._ear = ear
        self._watches: list[Watch] = []
        self.scheduled: bool = False
        """Whether it tells of scheduled items, too."""

    @property
    def armed(self) -> bool:
        """Whether what happens now is heard."""
        return bool(self._watches)

    async def arm(self, *, scheduled: bool, locks: bool) -> None:
        """Listen, to what becomes of locks too if told so; what happened before must be listed after this."""
        paths, watch = self._paths, self._zookeeper.watch
        watches: list[Watch] = []
        try:
            watches.append(await watch(paths.items, self.pass_on, recursive=True))
            watches.append(await watch(paths.lanes, self.pass_on, recursive=True))
            watches.append(await watch(paths.consumers, self._on_consumers, recursive=True))
            watches.append(await watch(paths.due, self._on_due, recursive=True))
            if scheduled:
                watches.append(await watch(paths.later, self._on_later, recursive=True))
            if locks:
                watches.append(await watch(paths.locks, self._on_locks, recursive=True))
        except BaseException:
            for one in watches:
                one.cancel()
            raise
        self._watches, self.scheduled = watches, scheduled

    def disarm(self) -> None:
        """Stop listening."""
        for watch in self._watches:
            watch.cancel()
        self._watches = []

    def pass_on(self, event: WatchEvent) -> None:
        """Tell what an event at an item, a lane or the parent of lanes means."""
        place = self._paths.place_of(event.path)
        if event.kind is EventKind.MISSED:
            self._ear.heard_nothing()
        elif place == "lanes" or is_lane(place):
            self._ear.heard_bell()
        elif event.kind is EventKind.DELETED:
            self._ear.heard_end(place)
        else:
            self._ear.heard_item(place)

    def _on_consumers(self, event: WatchEvent) -> None:
        # One that dies takes its locks along in the same transaction: whoever lists now sees them gone. One that comes
        # changes the shares.
        if event.path != self._paths.consumers and event.kind in (EventKind.CREATED, EventKind.DELETED):
            self._ear.heard_bell()

    def _on_locks(self, event: WatchEvent) -> None:
        if event.kind is EventKind.MISSED:
            self._ear.heard_bell()
        elif event.kind in (EventKind.CREATED, EventKind.DELETED):
            lock = self._paths.lock_of(event.path.rpartition("/")[2])
            if lock is not None:
                self._ear.heard_lock(lock, gone=event.kind is EventKind.DELETED)

    def _on_due(self, event: WatchEvent) -> None:
        if event.kind is EventKind.CREATED and (timed := parse_due(event.path.rpartition("/")[2])):
            self._ear.heard_due(*timed)

    def _on_later(self, event: WatchEvent) -> None:
        if event.kind is EventKind.MISSED or event.path == self._paths.later:
            self._ear.heard_bell()
        else:
            place = event.path[len(self._paths.base) + 1 :]
            self._ear.heard_later(place, gone=event.kind is EventKind.DELETED)


class Timers:
    """When timed locks end, earliest first. Pure."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._known: set[tuple[int, str]] = set()

    def add(self, due: int, message_id: str) -> None:
        """Remember one; twice is once."""
        entry = (due, message_id)
        if entry not in self._known:
            self._known.add(entry)
            heapq.heappush(self._heap, entry)

    @property
    def next(self) -> int | None:
        """The earliest end, ms in ZooKeeper's time."""
        return self._heap[0][0] if self._heap else None

    def ended(self, now: int, limit: int) -> list[tuple[int, str]]:
        """Take out the earliest of those that have ended."""
        ended: list[tuple[int, str]] = []
        while self._heap and self._heap[0][0] <= now and len(ended) < limit:
            entry = heapq.heappop(self._heap)
            self._known.discard(entry)
            ended.append(entry)
        return ended

    def __len__(self) -> int:
        return len(self._heap)
