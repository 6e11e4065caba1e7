"""The watches of an idle dispatcher. There is no polling: only watches and timers.

Watches cost the writers, so only idle consumers arm them, and remove them when there is work again.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.layout import is_lane, name_at, parse_due
from aiozkqueue.zookeeper import EventKind, WatchEvent

if TYPE_CHECKING:
    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Watch, ZooKeeper


class WatchListener(Protocol):
    """Receives the reports of the watches."""

    def on_items(self, lane: str, names: list[str]) -> None:
        """Items were created in a lane, in this order."""

    def on_item(self, place: str) -> None:
        """An item was created, or a lock on it was taken away."""

    def on_item_deleted(self, place: str) -> None:
        """An item was deleted."""

    def on_lock(self, lock: str, *, gone: bool) -> None:
        """A lock was created or deleted."""

    def on_relist(self) -> None:
        """Locks may have ended: list again."""

    def on_missed(self) -> None:
        """The connection was lost and events may have been missed: list again."""

    def on_timed_lock(self, due: int, message_id: str) -> None:
        """A timed lock was created that ends at ``due``."""

    def on_delayed(self, place: str, *, gone: bool) -> None:
        """A delayed item, or the folder of an hour, was created or deleted."""


class QueueWatch:
    """The watches on one queue: its lanes, consumers and timed locks."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths, listener: WatchListener) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._listener = listener
        self._watches: list[Watch] = []
        self.armed: bool = False
        """Whether the watches are set."""
        self.scheduled: bool = False
        """Whether delayed items are watched too."""

    async def arm(self, *, scheduled: bool, locks: bool) -> None:
        """Set the watches, on ``locks`` too if asked; earlier changes must be listed after this."""
        paths, watch = self._paths, self._zookeeper.watch
        watches: list[Watch] = []
        try:
            watches.append(await watch(paths.items, self.pass_on, recursive=True, created=self._on_created))
            watches.append(await watch(paths.lanes, self.pass_on, recursive=True, created=self._on_created))
            watches.append(await watch(paths.consumers, self._on_consumers, recursive=True))
            watches.append(await watch(paths.due, self._on_due, recursive=True))
            if scheduled:
                watches.append(await watch(paths.later, self._on_later, recursive=True))
            if locks:
                watches.append(await watch(paths.locks, self._on_locks, recursive=True))
        except BaseException:
            for armed_watch in watches:
                armed_watch.cancel()
            raise
        self._watches, self.armed, self.scheduled = watches, True, scheduled

    def disarm(self) -> None:
        """Stop listening."""
        for watch in self._watches:
            watch.cancel()
        self._watches, self.armed = [], False

    def pass_on(self, event: WatchEvent) -> None:
        """Report an event at an item, a lane or the parent of lanes."""
        place = self._paths.place_of(event.path)
        if event.kind is EventKind.MISSED:
            self._listener.on_missed()
        elif event.kind is EventKind.CREATED and place.startswith("lanes/") and is_lane(place):
            return  # a new lane is empty, and the put that it was created for is reported like any other
        elif place == "lanes" or is_lane(place):
            self._listener.on_relist()
        elif event.kind is EventKind.DELETED:
            self._listener.on_item_deleted(place)
        else:
            self._listener.on_item(place)

    def _on_created(self, folder: str, names: list[str]) -> None:
        lane = self._paths.place_of(folder)
        if is_lane(lane):
            self._listener.on_items(lane, names)
        else:
            for name in names:
                self.pass_on(WatchEvent(EventKind.CREATED, f"{folder}/{name}"))

    def _on_consumers(self, event: WatchEvent) -> None:
        # A consumer that dies takes its locks with it in the same transaction: a listing made now shows them gone. A
        # new consumer changes the shares.
        if event.path != self._paths.consumers and event.kind in (EventKind.CREATED, EventKind.DELETED):
            self._listener.on_relist()

    def _on_locks(self, event: WatchEvent) -> None:
        if event.kind is EventKind.MISSED:
            self._listener.on_relist()
        elif event.kind in (EventKind.CREATED, EventKind.DELETED):
            lock = self._paths.lock_of(name_at(event.path))
            if lock is not None:
                self._listener.on_lock(lock, gone=event.kind is EventKind.DELETED)

    def _on_due(self, event: WatchEvent) -> None:
        if event.kind is EventKind.CREATED and (timed := parse_due(name_at(event.path))):
            self._listener.on_timed_lock(*timed)

    def _on_later(self, event: WatchEvent) -> None:
        if event.kind is EventKind.MISSED or event.path == self._paths.later:
            self._listener.on_relist()
        else:
            place = self._paths.place_of(event.path)
            self._listener.on_delayed(place, gone=event.kind is EventKind.DELETED)


class Timers:
    """The ends of timed locks, earliest first. Pure."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._known: set[tuple[int, str]] = set()
        self.next: int | None = None
        """The earliest end, ms in ZooKeeper's time."""
        self.must_list: bool = True
        """Whether there may be timed locks that are not known."""
        self.listed_at: float = 0.0
        """When the due nodes were listed, on the monotonic clock."""

    def add(self, due: int, message_id: str) -> None:
        """Add the end of a lock; duplicates are ignored."""
        entry = (due, message_id)
        if entry not in self._known:
            self._known.add(entry)
            heapq.heappush(self._heap, entry)
            self.next = self._heap[0][0]

    def take(self, names: list[str]) -> None:
        """Add the due nodes with these names: a listing of all due nodes is passed here as it arrives."""
        for name in names:
            if timed := parse_due(name):
                self.add(*timed)

    def ended(self, now: int, limit: int) -> list[tuple[int, str]]:
        """Remove and return the earliest that have ended."""
        ended: list[tuple[int, str]] = []
        while self._heap and self._heap[0][0] <= now and len(ended) < limit:
            entry = heapq.heappop(self._heap)
            self._known.discard(entry)
            ended.append(entry)
        self.next = self._heap[0][0] if self._heap else None
        return ended

    def __len__(self) -> int:
        return len(self._heap)
