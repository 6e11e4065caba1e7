"""The registered watches and their callbacks. Pure bookkeeping: the session sends the requests."""

from __future__ import annotations

import enum
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.zookeeper.interface import EventKind, WatchEvent
from aiozkqueue.zookeeper.paths import folder_and_name, parent_of
from aiozkqueue.zookeeper.records import WatchSet

if TYPE_CHECKING:
    from aiozkqueue.zookeeper.wire import Event

_log = logging.getLogger(__name__)

Callback = Callable[[WatchEvent], None]
Created = Callable[[str, list[str]], None]
_KINDS = {kind.value: kind for kind in EventKind}
_CREATED = EventKind.CREATED.value
_SET_WATCHES_BYTES = 128 * 1024  # the limit of one SetWatches2, so that any number of watches can be re-armed
_MOST_FOLDERS = 1024  # the folders whose ancestor watches are kept


class Mode(enum.Enum):
    """A persistent watch's reach."""

    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


class Registration:
    """One registered persistent watch; see `ZooKeeper.watch`."""

    def __init__(self, path: str, callback: Callback, *, recursive: bool, created: Created | None = None) -> None:
        self.path = path
        self.callback = callback
        self.created = created
        self.recursive = recursive
        self.removed = False

    def notify(self, event: WatchEvent) -> None:
        """Call back, unless it was removed. An error is logged: the other callbacks must still receive the event."""
        if self.removed:
            return
        try:
            self.callback(event)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("a watch callback failed at %s", event.path)

    def notify_created(self, folder: str, names: list[str]) -> None:
        """Report znodes created in one folder, one after the other."""
        if self.created is None:
            for name in names:
                self.notify(WatchEvent(EventKind.CREATED, f"{folder}/{name}"))
        elif not self.removed:
            try:
                self.created(folder, names)
            except Exception:  # noqa: BLE001 - as in `notify`
                _log.exception("a watch callback failed at %s", folder)


class _AncestorWatches(NamedTuple):
    """The watches that receive events about the children of one folder."""

    recursive: tuple[Registration, ...]
    children: tuple[Registration, ...]
    """Plain ones at the folder itself. Another user's recursive watch there has replaced them at the server."""


class WatchRegistry:
    """The persistent watches of a client, by path."""

    def __init__(self) -> None:
        self._persistent: defaultdict[str, list[Registration]] = defaultdict(list)
        self._recursive = 0
        # By folder: a consumer gets an event for each message of its queue.
        self._ancestors: dict[str, _AncestorWatches] = {}
        self._gap = False  # whether missed events have not been reported to the watches yet

    def add(self, registration: Registration) -> None:
        """Add a watch."""
        self._persistent[registration.path].append(registration)
        self._recursive += registration.recursive
        self._ancestors.clear()

    def remove(self, registration: Registration) -> None:
        """Remove a watch. Idempotent."""
        registrations = self._persistent.get(registration.path, [])
        if registration in registrations:
            registrations.remove(registration)
            registration.removed = True
            self._recursive -= registration.recursive
            self._ancestors.clear()
            if not registrations:
                del self._persistent[registration.path]

    def mode(self, path: str) -> Mode | None:
        """Return the watch that the server must keep at this path; None: none. Servers before 3.9 keep at most one."""
        registrations = self._persistent.get(path)
        if not registrations:
            return None
        return Mode.RECURSIVE if any(registration.recursive for registration in registrations) else Mode.PERSISTENT

    def dispatch(self, events: Iterable[Event]) -> None:
        """Pass notifications to all matching watches, in their order.

        Those of a new connection wait for `notify_missed`: a watch assumes that it has missed no event before the one
        that it gets. After `notify_missed` watches assume any change, so earlier events need not be kept.
        """
        if self._gap:
            return
        folder, names = "", list[str]()  # of znodes created one after the other in one folder
        for event in events:
            parent, name = folder_and_name(event.path)
            created = event.kind == _CREATED and event.path not in self._persistent
            if created and names and parent == folder:
                names.append(name)
                continue
            self._notify_created(folder, names)
            folder, names = "", []
            if created and self._takes_names(parent):
                folder, names = parent, [name]
            else:
                self._dispatch(event)
        self._notify_created(folder, names)

    def _dispatch(self, event: Event) -> None:
        kind = _KINDS.get(event.kind)
        if kind is None:  # "watch removed" and events of later servers
            return
        watch_event = WatchEvent(kind, event.path)
        if registrations := self._persistent.get(event.path):
            for registration in tuple(registrations):
                if not (registration.recursive and kind is EventKind.CHILDREN):
                    registration.notify(watch_event)
        if self._recursive and kind is not EventKind.CHILDREN and event.path != "/":
            self._notify_ancestors(watch_event)

    def lost(self) -> None:
        """Record that the connection was lost."""
        self._gap = True

    def notify_missed(self) -> None:
        """Notify every watch that the connection was lost. They get all events from now on."""
        self._gap = False
        for registrations in tuple(self._persistent.values()):
            for registration in tuple(registrations):
                registration.notify(WatchEvent(EventKind.MISSED, registration.path))

    def wanted(self, max_request: int) -> Iterator[WatchSet]:
        """Return all watches to arm on a new connection, in portions that fit into requests of this size, bytes.

        Watches may be added and removed between two portions. One that is added is not returned: its owner arms it.
        """
        limit = min(_SET_WATCHES_BYTES, max_request // 2)
        portion, size = WatchSet([], []), 0
        for path in tuple(self._persistent):
            if (mode := self.mode(path)) is None:
                continue
            (portion.recursive if mode is Mode.RECURSIVE else portion.persistent).append(path)
            size += len(path.encode()) + 4
            if size > limit:
                yield portion
                portion, size = WatchSet([], []), 0
        if size:
            yield portion

    def _takes_names(self, folder: str) -> bool:
        """Whether the ancestor watches take the names of several znodes created in this folder at once."""
        if not folder:
            return False
        ancestors = self._ancestor_watches(folder)
        return not ancestors.children and any(registration.created for registration in ancestors.recursive)

    def _notify_created(self, folder: str, names: list[str]) -> None:
        if not names:
            return
        for registration in self._ancestor_watches(folder).recursive:
            registration.notify_created(folder, names)

    def _notify_ancestors(self, event: WatchEvent) -> None:
        folder = parent_of(event.path)
        ancestors = self._ancestor_watches(folder)
        if ancestors.children and event.kind is not EventKind.CHANGED:
            for registration in ancestors.children:
                registration.notify(WatchEvent(EventKind.CHILDREN, folder))
        for registration in ancestors.recursive:
            registration.notify(event)

    def _ancestor_watches(self, folder: str) -> _AncestorWatches:
        ancestors = self._ancestors.get(folder)
        if ancestors is None:
            if len(self._ancestors) >= _MOST_FOLDERS:
                self._ancestors.clear()
            ancestors = self._ancestors[folder] = self._find_ancestor_watches(folder)
        return ancestors

    def _find_ancestor_watches(self, folder: str) -> _AncestorWatches:
        replaced = self.mode(folder) is Mode.RECURSIVE
        children = tuple(watch for watch in self._persistent[folder] if not watch.recursive) if replaced else ()
        recursive = list[Registration]()
        while True:
            recursive += [watch for watch in self._persistent.get(folder, ()) if watch.recursive]
            if folder == "/":
                return _AncestorWatches(tuple(recursive), children)
            folder = parent_of(folder)
