from __future__ import annotations

import tracemalloc

from aiozkqueue.zookeeper.interface import EventKind, WatchEvent
from aiozkqueue.zookeeper.watches import Mode, Registration, WatchRegistry
from aiozkqueue.zookeeper.wire import MAX_REQUEST, Event

CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4


class _Notified(list[WatchEvent]):
    """Watchers of a registry that record their events."""

    def __init__(self, registry: WatchRegistry, path: str, *, recursive: bool = False) -> None:
        super().__init__()
        self.registration = Registration(path, self.append, recursive=recursive)
        registry.add(self.registration)


def _dispatch(registry: WatchRegistry, kind: int, path: str) -> None:
    registry.dispatch([Event(kind, 3, path)])


def test_a_plain_watch_reports_its_own_znode_and_a_recursive_one_all_below() -> None:
    registry = WatchRegistry()
    plain, deep, root = (
        _Notified(registry, "/a"),
        _Notified(registry, "/a/b", recursive=True),
        _Notified(registry, "/", recursive=True),
    )
    _dispatch(registry, CHILDREN, "/a")
    _dispatch(registry, CREATED, "/a/b/c")
    _dispatch(registry, CHANGED, "/ab")
    _dispatch(registry, 99, "/a")  # a kind that a later server may have
    assert plain == [WatchEvent(EventKind.CHILDREN, "/a")]
    assert deep == [WatchEvent(EventKind.CREATED, "/a/b/c")]
    assert root == [WatchEvent(EventKind.CREATED, "/a/b/c"), WatchEvent(EventKind.CHANGED, "/ab")]


def test_a_plain_watch_still_reports_children_after_a_recursive_one_replaced_it() -> None:
    registry = WatchRegistry()
    plain, recursive = _Notified(registry, "/a"), _Notified(registry, "/a", recursive=True)
    assert registry.mode("/a") is Mode.RECURSIVE
    _dispatch(registry, CREATED, "/a/b")
    _dispatch(registry, CHANGED, "/a/b")
    _dispatch(registry, DELETED, "/a/b/c")
    assert plain == [WatchEvent(EventKind.CHILDREN, "/a")]
    assert len(recursive) == 3
    registry.remove(recursive.registration)
    assert registry.mode("/a") is Mode.PERSISTENT
    registry.remove(plain.registration)
    registry.remove(plain.registration)
    assert registry.mode("/a") is None


def test_a_failing_watcher_does_not_block_the_others() -> None:
    registry = WatchRegistry()

    def fails(_event: WatchEvent) -> None:
        raise ValueError

    registry.add(Registration("/a", fails, recursive=False))
    notified = _Notified(registry, "/a")
    _dispatch(registry, CHANGED, "/a")
    registry.notify_missed()
    assert [event.kind for event in notified] == [EventKind.CHANGED, EventKind.MISSED]


def test_events_of_a_new_connection_are_reported_only_after_the_watches_know_that_others_were_missed() -> None:
    registry = WatchRegistry()
    notified = _Notified(registry, "/a", recursive=True)
    registry.lost()
    _dispatch(registry, CREATED, "/a/3")
    registry.notify_missed()
    _dispatch(registry, CREATED, "/a/4")
    assert notified == [WatchEvent(EventKind.MISSED, "/a"), WatchEvent(EventKind.CREATED, "/a/4")]


def test_a_watcher_can_cancel_itself_during_its_call() -> None:
    registry = WatchRegistry()
    registration = Registration("/a", lambda _event: registry.remove(registration), recursive=False)
    registry.add(registration)
    notified = _Notified(registry, "/a")
    _dispatch(registry, CHANGED, "/a")
    assert len(notified) == 1


def test_a_watcher_that_another_one_cancels_during_an_event_does_not_get_that_event() -> None:
    registry = WatchRegistry()
    registry.add(Registration("/a/b", lambda _event: registry.remove(notified.registration), recursive=True))
    notified = _Notified(registry, "/a", recursive=True)
    _dispatch(registry, CREATED, "/a/b/c")
    assert notified == []


def test_watches_that_are_added_and_removed_between_events_of_a_folder_get_the_events_in_between() -> None:
    registry = WatchRegistry()
    first = _Notified(registry, "/a", recursive=True)
    _dispatch(registry, CREATED, "/a/b/1")
    second = _Notified(registry, "/a/b", recursive=True)
    _dispatch(registry, CREATED, "/a/b/2")
    registry.remove(first.registration)
    _dispatch(registry, CREATED, "/a/b/3")
    assert [event.path for event in first] == ["/a/b/1", "/a/b/2"]
    assert [event.path for event in second] == ["/a/b/2", "/a/b/3"]


def _events(*changes: tuple[int, str]) -> list[Event]:
    return [Event(kind, 3, path) for kind, path in changes]


def test_znodes_created_one_after_the_other_in_a_folder_are_reported_together_and_in_order() -> None:
    registry, calls = WatchRegistry(), list[object]()
    each = _Notified(registry, "/", recursive=True)
    registry.add(
        Registration("/a", calls.append, recursive=True, created=lambda folder, names: calls.append((folder, names)))
    )
    events = _events(
        (CREATED, "/a/b/1"), (CREATED, "/a/b/2"), (CREATED, "/a/c/3"), (DELETED, "/a/b/1"), (CREATED, "/a/b/4")
    )
    registry.dispatch(events)
    assert calls == [
        ("/a/b", ["1", "2"]),
        ("/a/c", ["3"]),
        WatchEvent(EventKind.DELETED, "/a/b/1"),
        ("/a/b", ["4"]),
    ]
    assert [(event.kind.value, event.path) for event in each] == [(event.kind, event.path) for event in events]


def test_znodes_created_in_the_root_are_reported_as_those_of_any_folder() -> None:
    registry = WatchRegistry()
    plain, deep = _Notified(registry, "/"), _Notified(registry, "/", recursive=True)
    _dispatch(registry, CREATED, "/a")
    assert plain == [WatchEvent(EventKind.CHILDREN, "/")]
    assert deep == [WatchEvent(EventKind.CREATED, "/a")]


def test_a_watch_on_a_created_znode_itself_is_also_notified_in_order() -> None:
    registry, calls = WatchRegistry(), list[object]()
    registry.add(
        Registration("/a", calls.append, recursive=True, created=lambda folder, names: calls.append((folder, names)))
    )
    registry.add(Registration("/a/2", calls.append, recursive=False))
    registry.dispatch(_events((CREATED, "/a/1"), (CREATED, "/a/2"), (CREATED, "/a/3")))
    second = WatchEvent(EventKind.CREATED, "/a/2")
    assert calls == [("/a", ["1"]), second, second, ("/a", ["3"])]


def test_a_watch_that_fails_with_names_or_removes_another_does_not_block_the_rest() -> None:
    registry, calls = WatchRegistry(), list[object]()
    removed = Registration("/a/b", calls.append, recursive=True, created=lambda *created: calls.append(created))

    def fails(folder: str, names: list[str]) -> None:
        registry.remove(removed)
        raise ValueError(folder, names)

    registry.add(Registration("/a/b", calls.append, recursive=True, created=fails))
    registry.add(removed)
    registry.add(Registration("/a", calls.append, recursive=True))
    registry.dispatch(_events((CREATED, "/a/b/1"), (CREATED, "/a/b/2")))
    assert calls == [WatchEvent(EventKind.CREATED, "/a/b/1"), WatchEvent(EventKind.CREATED, "/a/b/2")]


def test_a_change_of_the_root_is_reported_once() -> None:
    registry = WatchRegistry()
    notified = _Notified(registry, "/", recursive=True)
    _dispatch(registry, CHANGED, "/")
    assert notified == [WatchEvent(EventKind.CHANGED, "/")]


def test_any_number_of_watches_is_rearmed_in_requests_of_legal_size() -> None:
    registry = WatchRegistry()
    for number in range(5000):
        _Notified(registry, f"/{number:0100}", recursive=bool(number % 2))
    portions = list(registry.wanted(MAX_REQUEST))
    assert len(portions) > 1
    assert sum(len(p.persistent) for p in portions) == sum(len(p.recursive) for p in portions) == 2500
    assert all(sum(len(path) + 4 for path in [*p.persistent, *p.recursive]) < 140_000 for p in portions)


def test_a_plain_watch_whose_recursive_neighbour_was_removed_reports_children_only_as_the_server_does() -> None:
    registry = WatchRegistry()
    plain, recursive = _Notified(registry, "/a"), _Notified(registry, "/a", recursive=True)
    root = _Notified(registry, "/", recursive=True)
    _dispatch(registry, CREATED, "/a/b")
    registry.remove(recursive.registration)
    _dispatch(registry, CREATED, "/a/c")  # by the watch of the root
    _dispatch(registry, CHILDREN, "/a")
    assert plain == 2 * [WatchEvent(EventKind.CHILDREN, "/a")]
    assert [event.path for event in root] == ["/a/b", "/a/c"]


def test_a_recursive_watch_takes_no_more_memory_with_each_folder_that_has_an_event() -> None:
    """A queue gets a folder for each hour of its delayed messages, and a client may run for years."""
    registry, seen = WatchRegistry(), 0

    def count(_: WatchEvent) -> None:
        nonlocal seen
        seen += 1

    registry.add(Registration("/queue", count, recursive=True))
    tracemalloc.start()
    try:
        peaks: list[int] = []
        for begin in (0, 1_500):
            tracemalloc.reset_peak()
            for folder in range(begin, begin + 1_500):
                _dispatch(registry, CREATED, f"/queue/later/{folder}/item")
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert seen == 3_000
    assert peaks[1] < 1.5 * peaks[0]
