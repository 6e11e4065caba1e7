"""The single operations of the client protocol, on a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    ClientClosedError,
    Create,
    Delete,
    EventKind,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RequestTooLargeError,
    SetData,
    Stat,
    State,
    WatchEvent,
    ZooKeeper,
)

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.zookeeper.conftest import Opener


async def test_a_multi_returns_each_result_with_the_actual_names(
    zookeeper: str, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper + queue_root)
    results = await zk.multi(
        [
            Create("/a", b"x"),
            Create("/a/s-", b"1", sequential=True),
            Create("/a/s-", b"2", sequential=True, ephemeral=True),
            SetData("/a", b"xy", 0),
            Check("/a", 1),
            Create("/b"),
            Delete("/b", 0),
            Create("/c", container=True),
        ]
    )
    assert results[:3] == ["/a", "/a/s-0000000000", "/a/s-0000000001"]
    assert isinstance(results[3], Stat)
    assert (results[3].version, results[3].data_length) == (1, 2)
    assert results[4:] == [None, "/b", None, "/c"]
    first, second, missing = await zk.read_many(["/a/s-0000000000", "/a/s-0000000001", "/b"])
    assert first is not None
    assert second is not None
    assert (first.data, second.data, missing) == (b"1", b"2", None)
    assert (first.stat.ephemeral_owner, second.stat.ephemeral_owner) == (0, zk.session_id)
    assert sorted(await zk.children("/a")) == ["s-0000000000", "s-0000000001"]


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/there"), NodeExistsError),
        (Create("/gone/x"), NoNodeError),
        (Delete("/there", 5), BadVersionError),
        (Delete("/full"), NotEmptyError),
        (Check("/gone"), NoNodeError),
        (SetData("/there", b"", 5), BadVersionError),
    ],
)
async def test_a_refused_multi_names_the_operation_and_applies_nothing(
    zookeeper: str,
    queue_root: str,
    opened: Opener,
    operation: Create | Delete | Check | SetData,
    error: type[Exception],
) -> None:
    zk = await opened(zookeeper + queue_root)
    await zk.multi([Create("/there"), Create("/full"), Create("/full/x")])
    with pytest.raises(MultiError) as refused:
        await zk.multi([Create("/new"), operation, Check("/gone")])
    assert refused.value.index == 1
    assert type(refused.value.error) is error
    assert operation.path in str(refused.value)
    assert await zk.exists("/new") is None


async def test_reads_of_missing_znodes_report_that_they_do_not_exist(
    zookeeper: str, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper + queue_root)
    with pytest.raises(NoNodeError, match="/gone"):
        await zk.read("/gone")
    with pytest.raises(NoNodeError, match="/gone"):
        await zk.children("/gone")
    assert await zk.exists("/gone") is None
    assert await zk.read_many([]) == []


async def test_a_multi_and_the_read_after_it_are_sent_in_one_write_and_the_read_sees_it(
    zookeeper: str, queue_root: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = await opened(zookeeper + queue_root)
    connection = zk._session.connection
    assert connection is not None
    writes, flush = list[int](), connection._flush

    def counted() -> None:
        writes.append(len(connection._outgoing))
        flush()

    monkeypatch.setattr(connection, "_flush", counted)
    sent = zk.multi([Create("/a", b"new")])
    assert [node and node.data for node in await zk.read_many(["/a"])] == [b"new"]
    assert await sent == ["/a"]
    assert writes == [4]  # two requests, each a head and a body


async def test_cancelling_the_caller_does_not_undo_the_request(zookeeper: str, queue_root: str, opened: Opener) -> None:
    zk = await opened(zookeeper + queue_root)

    async def put() -> None:
        await zk.multi([Create("/a")])

    task = asyncio.create_task(put())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await zk.exists("/a") is not None


async def test_all_paths_are_below_the_chroot_which_the_client_creates(
    zookeeper: str, queue_root: str, opened: Opener
) -> None:
    zk = await opened(f"{zookeeper}{queue_root}/deep/er")
    outside = await opened(zookeeper)
    assert await zk.children("/") == []
    await zk.ensure("/x/y/z")
    await zk.ensure("/x/y/z")
    events: list[WatchEvent] = []
    await zk.watch("/", events.append, recursive=True)
    assert await zk.multi([Create("/x/q-", sequential=True)]) == ["/x/q-0000000001"]
    assert sorted(await outside.children(f"{queue_root}/deep/er/x")) == ["q-0000000001", "y"]
    await zk.sync("/")
    assert events == [WatchEvent(EventKind.CREATED, "/x/q-0000000001")]
    assert zk.path_size("/x") == len(f"{queue_root}/deep/er/x")


async def test_a_request_over_the_limit_is_refused_locally_and_keeps_the_connection(
    queue_root: str, opened: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    room = zk.max_request - zk.request_size([Create("/a")])
    with pytest.raises(RequestTooLargeError, match=str(zk.max_request + 1)):
        await zk.multi([Create("/a", bytes(room + 1))])
    assert await zk.multi([Create("/a", bytes(room))]) == ["/a"]  # the server accepts a request of exactly the limit
    assert len((await zk.read("/a")).data) == room
    assert zookeeper_proxy.accepted == 1
    small = await opened(zookeeper_proxy.hosts + queue_root, max_request=1000)
    with pytest.raises(RequestTooLargeError):
        await small.multi([Create("/b", bytes(1000))])


async def test_watches_report_events_until_they_are_cancelled(zookeeper: str, queue_root: str, opened: Opener) -> None:
    zk = await opened(zookeeper + queue_root)
    plain: list[WatchEvent] = []
    deep: list[WatchEvent] = []
    plain_watch = await zk.watch("/a", plain.append)
    deep_watch = await zk.watch("/a", deep.append, recursive=True)
    await zk.multi([Create("/a")])
    await zk.multi([Create("/a/b"), SetData("/a/b", b"1")])
    assert {event.kind for event in plain} == {EventKind.CREATED, EventKind.CHILDREN}
    assert [(event.kind, event.path) for event in deep] == [
        (EventKind.CREATED, "/a"),
        (EventKind.CREATED, "/a/b"),
        (EventKind.CHANGED, "/a/b"),
    ]
    deep_watch.cancel()
    deep_watch.cancel()
    reported = len(deep)
    plain.clear()
    await zk.multi([Create("/a/c")])
    assert plain == [WatchEvent(EventKind.CHILDREN, "/a")]
    plain_watch.cancel()
    await zk.multi([Create("/a/d")])
    assert (len(plain), len(deep)) == (1, reported)


async def test_each_call_of_a_closed_client_raises(zookeeper: str, opened: Opener) -> None:
    zk = await opened(zookeeper)
    states: list[tuple[State, int]] = []
    zk.on_state(lambda state, generation: states.append((state, generation)))
    await asyncio.gather(zk.close(), zk.close())
    await zk.close()
    assert states == [(State.CLOSED, 1)]
    for call in (zk.multi([Check("/")]), zk.read("/"), zk.wait_connected(), zk.ensure("/x"), zk.sync("/")):
        with pytest.raises(ClientClosedError):
            await call


async def test_the_client_implements_the_protocol_that_the_queue_uses(zookeeper: str, opened: Opener) -> None:
    zk: ZooKeeper = await opened(zookeeper)  # type checkers check the annotation
    assert (zk.state, zk.generation) == (State.CONNECTED, 1)
    assert zk.last_zxid >= 0


async def test_closing_removes_the_ephemerals_at_once(zookeeper: str, queue_root: str, opened: Opener) -> None:
    zk, other = await opened(zookeeper + queue_root), await opened(zookeeper + queue_root)
    await zk.multi([Create("/e", ephemeral=True)])
    await zk.close()
    assert await other.exists("/e") is None
