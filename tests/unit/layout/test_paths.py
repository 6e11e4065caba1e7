from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidNameError, InvalidOptionError
from aiozkqueue.layout import ClientPaths, MalformedError, QueuePaths, check_root, parse_due, parse_lock, parse_meta

from .hostile import ids, moments


def test_the_paths_of_a_queue_are_pinned() -> None:
    paths = QueuePaths("/zms", "orders")
    assert {name: getattr(paths, name) for name in QueuePaths.__slots__} == {
        "root": "/zms",
        "name": "orders",
        "base": "/zms/orders",
        "items": "/zms/orders/items",
        "lanes": "/zms/orders/lanes",
        "later": "/zms/orders/later",
        "locks": "/zms/orders/locks",
        "due": "/zms/orders/due",
        "metas": "/zms/orders/meta",
        "keys": "/zms/orders/keys",
        "dlq": "/zms/orders/dlq",
        "history": "/zms/orders/history",
        "pins": "/zms/orders/history/.pins",
        "janitor": "/zms/orders/janitor",
        "reaper": "/zms/orders/reaper",
        "consumers": "/zms/orders/consumers",
        "filters": "/zms/orders/filters",
        "waiting": "/zms/orders/waiting",
        "ledgers": "/zms/orders/ledger",
        "sinks": "/zms/orders/sinks",
    }
    assert paths.cancelled == "/zms/orders/cancelled"
    assert paths.item("item-iA-0000000001") == "/zms/orders/items/item-iA-0000000001"
    assert paths.dead("item-iA-0000000001") == "/zms/orders/dlq/item-iA-0000000001"
    assert paths.lock("A") == "/zms/orders/locks/lock-A"
    assert paths.meta("A") == "/zms/orders/meta/meta-A"
    assert paths.consumer("A") == "/zms/orders/consumers/A"
    assert paths.due_node(1_795_000_000_000, "A") == "/zms/orders/due/1795000000000-A"
    assert paths.due_node(5, "A") == "/zms/orders/due/0000000000005-A"


def test_the_paths_of_a_client_are_pinned() -> None:
    paths = ClientPaths("/deep/zms", "ABCDEFGHIJKL")
    assert paths.clients == "/deep/zms/.clients"
    assert paths.base == "/deep/zms/.clients/ABCDEFGHIJKL"
    assert paths.slot(3) == "/deep/zms/.clients/ABCDEFGHIJKL/slot-3"


@pytest.mark.parametrize("root", ["/zms", "/a/b/c", "/größe", "/a b", "/.zms", "/...", "/app/zookeeper"])
def test_a_valid_root_is_accepted(root: str) -> None:
    check_root(root)


@pytest.mark.parametrize(
    ("root", "rule"),
    [
        ("", "starts with '/'"),
        ("zms", "starts with '/'"),
        (None, "starts with '/'"),
        (b"/zms", "starts with '/'"),
        ("/", "a znode of their own"),
        ("/zms/", "must not end"),
        ("//zms", "no part may be empty"),
        ("/a//b", "no part may be empty"),
        ("/a/./b", "no part may be empty"),
        ("/a/..", "no part may be empty"),
        ("/a\x00b", "ZooKeeper refuses"),
        ("/a\nb", "ZooKeeper refuses"),
        ("/a\x85b", "ZooKeeper refuses"),
        ("/a\ud800b", "ZooKeeper refuses"),
        ("/a" + chr(0xFFF0), "ZooKeeper refuses"),
        ("/queues-😀", "ZooKeeper refuses"),
        ("/zookeeper", "the server's own"),
        ("/zookeeper/zms", "the server's own"),
    ],
)
def test_an_invalid_root_is_refused(root: str, rule: str) -> None:
    for make in (check_root, lambda root: QueuePaths(root, "orders"), lambda root: ClientPaths(root, "A")):
        with pytest.raises(InvalidOptionError, match=rule) as caught:
            make(root)
        assert repr(root) in str(caught.value)


def test_a_queue_with_a_bad_name_has_no_paths() -> None:
    with pytest.raises(InvalidNameError, match=r"'\.\./other'"):
        QueuePaths("/zms", "../other")


@given(moments, ids)
def test_the_end_of_a_timed_lock_is_read_from_its_path(ms: int, id_: str) -> None:
    path = QueuePaths("/zms", "orders").due_node(ms, id_)
    assert parse_due(path.rpartition("/")[2]) == (ms, id_)


@given(st.integers(0, 10**13 - 1), st.integers(0, 10**13 - 1))
def test_the_paths_of_lock_ends_sort_by_time(first: int, second: int) -> None:
    paths = QueuePaths("/zms", "orders")
    assert (paths.due_node(first, "A") < paths.due_node(second, "A")) == (first < second)


@pytest.mark.parametrize("ms", [-1, 253_402_300_800_000])
def test_a_lock_end_outside_the_calendar_is_refused(ms: int) -> None:
    with pytest.raises(MalformedError):
        QueuePaths("/zms", "orders").due_node(ms, "A")


@given(ids)
def test_locks_and_attempts_are_read_from_their_paths(id_: str) -> None:
    paths = QueuePaths("/zms", "orders")
    assert parse_lock(paths.lock(id_).rpartition("/")[2]) == id_
    assert parse_meta(paths.meta(id_).rpartition("/")[2]) == id_


@pytest.mark.parametrize(
    "name", ["", "x", "lock", "lock-", "meta-", "5-A", "0000000000005", "0000000000005-", "٣" * 13 + "-A", "9" * 5_000]
)
def test_names_of_other_children_are_ignored(name: str) -> None:
    assert parse_due(name) is None
    assert parse_lock(name) is None
    assert parse_meta(name) is None


@given(st.text(max_size=30))
def test_any_child_name_can_be_parsed_without_an_error(name: str) -> None:
    parse_due(name)
    parse_lock(name)
    parse_meta(name)
