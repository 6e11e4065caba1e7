"""The candidates that the watches of a queue report, added to those that listings have found."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemRef, MalformedError, name_at
from aiozkqueue.queue.candidates.batches import batch_lock_of
from aiozkqueue.queue.candidates.groups import Reported, is_group
from aiozkqueue.queue.candidates.watches import QueueWatch

from .candidate_index import CandidateIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.candidates.batches import BatchVisibility
    from aiozkqueue.queue.candidates.groups import GroupIndex

    from .services import ClaimServices


class WatchedIndex(CandidateIndex):
    """A `CandidateIndex` that the watches on its queue report to: it is their `WatchListener`."""

    def __init__(self, services: ClaimServices, condition: Condition | None) -> None:
        super().__init__(services, condition)
        self._server_clock = services.server_clock
        self.watch = QueueWatch(services.zookeeper, services.state.paths, self)

    def on_item(self, place: str) -> None:
        """See `WatchListener`."""
        lane, name = ItemRef.parse(place)
        self.on_items(lane, [name])

    def on_items(self, lane: str, names: list[str]) -> None:
        """See `WatchListener`."""
        if (batches := self.batch_visibility) is not None:
            names = [name for name in names if self._is_visible(ItemRef(lane, name).path, batches)]
        if (groups := self.groups) is not None:
            names = [name for name in names if not self._add_member(ItemRef(lane, name).path, groups)]
        free: dict[str, str] = {}
        for name in names:
            try:
                message_id = self.state.candidate_id(name)
            except MalformedError:
                continue
            if message_id in self.held:
                self._reported[message_id] = ItemRef(lane, name).path
            else:
                free[name] = message_id
        self._add_singles(lane, free)

    def _is_visible(self, place: str, batches: BatchVisibility) -> bool:
        """Whether an item is in no batch, or in one that is open; a listing finds out whether the batch is open."""
        batch_lock = batch_lock_of(place)
        if batch_lock is None or batches.is_open(batch_lock):
            return True
        if not batches.is_closed(batch_lock):
            self.levels.of(place).must_list = True
            self.wakeup.set()
        return False

    def _add_member(self, place: str, groups: GroupIndex) -> bool:
        """Handle an item reported by a watch if it is in a group, or has no valid name; return whether it is."""
        try:
            group = groups.lock_id(name_at(place))
        except MalformedError:
            return True
        if not is_group(group):
            return False
        reported = groups.add_reported(place)
        if reported is Reported.UNTRACKED:
            self.levels.of(place).must_list = True
            self.wakeup.set()
        elif group in self.held:
            if reported is Reported.KNOWN:
                self._reported.setdefault(group)
            self.wakeup.set()  # the holder may want more messages of this group
        else:
            if reported is Reported.KNOWN:
                self.levels.unlock(group)  # the session that removed the lock set this item's data
            if reported is Reported.KNOWN or groups.head(group) == place:
                self._try_group(group)
        return True

    def on_item_deleted(self, place: str) -> None:
        """See `WatchListener`."""
        self.levels.of(place).backlog.forget(place)
        if self.state.dialect is not None:
            self.doubts.gone(name_at(place))
        if self.groups is not None:
            with suppress(MalformedError):
                self.groups.deleted(place)
                self._try_group(self.lock_id(place))

    def on_lock(self, lock: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if lock in self.held:
            if gone:
                self._reported.setdefault(lock)
            return
        if self.state.dialect is not None:
            self._foreign_lock_changed(lock, gone=gone)
        if self.groups is None:
            return
        if gone and self.groups.blocked:
            self.on_relist()
        if not is_group(lock):
            return
        if gone:
            self.levels.unlock(lock)
            self._try_group(lock)
        else:
            self.levels.lock(lock)

    def _foreign_lock_changed(self, item: str, *, gone: bool) -> None:
        """Record that another session locked or unlocked an item; a read shows whether an unlocked item exists."""
        if not gone:
            self.levels.lock(item)
            return
        self.levels.unlock(item)
        if self.doubts.unlocked(item):
            self.wakeup.set()

    def settle_doubts(self, items: Sequence[str], exist: Iterable[bool]) -> None:
        """Add the items that still exist after their locks ended.

        Events since the read are newer. A session that has locked an item again will also end that lock.
        """
        for item, exists in zip(items, exist, strict=True):
            if exists and not self.levels.is_locked(item) and self.doubts.without_gone([item]):
                self.on_item(f"items/{item}")

    def on_delayed(self, place: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if gone:
            self.delayed.forget(place)
            self.levels.of(place).backlog.forget(place)
            return
        before = self.delayed.next
        self.delayed.add_reported(place, self._server_clock.now())
        if self.delayed.next != before:
            self.wakeup.set()

    def on_missed(self) -> None:
        """See `WatchListener`. A listing made now skips items that count as held."""
        for lock in self.held:
            self._reported.setdefault(lock, "")
        self.on_relist()
