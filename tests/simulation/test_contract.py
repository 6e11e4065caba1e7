"""The behaviour of ZooKeeper that the package relies on, checked on the simulated ensemble and on a real one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest

from aiozkqueue.testing import ServerOptions, run_virtual, simulated
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    EventKind,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RequestTooLargeError,
    ServerError,
    SessionExpiredError,
    SetData,
    Stat,
    State,
    WatchEvent,
    connect,
)
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import Cluster, EmbeddedZooKeeper
    from aiozkqueue.zookeeper import Operation, ZooKeeper


class Ground(Protocol):
    """The environment of a contract test: a root, clients, and functions to end a session or cut a connection."""

    root: str

    async def client(self, timeout: float = 4.0) -> ZooKeeper: ...

    async def end_session(self, client: ZooKeeper) -> None: ...

    def cut(self, client: ZooKeeper) -> None: ...


contracts: list[Callable[[Ground], Awaitable[None]]] = []


def contract(function: Callable[[Ground], Awaitable[None]]) -> Callable[[Ground], Awaitable[None]]:
    contracts.append(function)
    return function


async def refusal(client: ZooKeeper, *operations: Operation) -> tuple[int, type[Exception]]:
    with pytest.raises(MultiError) as refused:
        await client.multi(operations)
    return refused.value.index, type(refused.value.error)


@contract
async def a_create_returns_the_actual_path_and_the_znode_has_a_stat(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    assert await a.multi([Create(f"{root}/x", b"12")]) == [f"{root}/x"]
    data, stat = await a.read(f"{root}/x")
    assert data == b"12"
    assert (stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children) == (0, 0, 0, 2, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid <= a.last_zxid
    assert stat.ctime == stat.mtime > 1_500_000_000_000
    assert stat.ephemeral_owner == 0


@contract
async def sequence_numbers_count_every_child_ever_created(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    await a.multi([Create(f"{root}/plain"), Delete(f"{root}/plain")])
    results = await a.multi([Create(f"{root}/s-", sequential=True), Create(f"{root}/t-", sequential=True)])
    assert results == [f"{root}/s-0000000001", f"{root}/t-0000000002"]
    await a.multi([Delete(f"{root}/t-0000000002")])
    assert await a.multi([Create(f"{root}/", sequential=True)]) == [f"{root}/0000000003"]
    stat = await a.exists(root)
    assert stat is not None
    assert (stat.num_children, stat.cversion) == (2, 6)  # four creates, two deletes


@contract
async def a_refused_multi_takes_no_sequence_number(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    before = await a.exists(root)
    assert (await refusal(a, Create(f"{root}/s-", sequential=True), Delete(f"{root}/gone"))) == (1, NoNodeError)
    assert await a.exists(root) == before
    assert await a.multi([Create(f"{root}/s-", sequential=True)]) == [f"{root}/s-0000000000"]


@contract
async def the_first_failing_operation_of_a_multi_is_named(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    await a.multi([Create(f"{root}/there", b"0"), Create(f"{root}/full"), Create(f"{root}/full/x")])
    fails: list[tuple[Operation, type[Exception]]] = [
        (Create(f"{root}/there"), NodeExistsError),
        (Create(f"{root}/gone/x"), NoNodeError),
        (Create(f"{root}/gone/x", sequential=True), NoNodeError),
        (Delete(f"{root}/there", 5), BadVersionError),
        (Delete(f"{root}/gone", 5), NoNodeError),
        (Delete(f"{root}/full", 5), BadVersionError),
        (Delete(f"{root}/full"), NotEmptyError),
        (Check(f"{root}/gone"), NoNodeError),
        (Check(f"{root}/there", 1), BadVersionError),
        (SetData(f"{root}/there", b"", 5), BadVersionError),
        (SetData(f"{root}/gone", b""), NoNodeError),
    ]
    for operation, error in fails:
        before = await a.read(root)
        change, made = SetData(root, b"1", 0), Create(f"{root}/new", ephemeral=True)
        assert await refusal(a, change, made, Check(f"{root}/full"), operation, Check("/none")) == (3, error)
        assert await a.exists(f"{root}/new") is None
        assert await a.read(root) == before


@contract
async def each_operation_of_a_multi_sees_the_effects_of_the_earlier_ones(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    results = await a.multi(
        [
            Create(f"{root}/p"),
            Create(f"{root}/p/c"),
            SetData(f"{root}/p/c", b"1", 0),
            SetData(f"{root}/p/c", b"2", 1),
            Check(f"{root}/p/c", 2),
            Delete(f"{root}/p/c", 2),
            Delete(f"{root}/p"),
            Create(f"{root}/p", b"again"),
        ]
    )
    first, second = results[2], results[3]
    assert isinstance(first, Stat)
    assert isinstance(second, Stat)
    assert (first.version, second.version, results[4:]) == (1, 2, [None, None, None, f"{root}/p"])
    node = await a.read(f"{root}/p")
    assert (node.data, node.stat.version, node.stat.cversion) == (b"again", 0, 0)
    assert second.mzxid == second.czxid == node.stat.czxid  # one transaction, one zxid


@contract
async def an_empty_multi_is_applied(ground: Ground) -> None:
    a = await ground.client()
    assert await a.multi([]) == []


@contract
async def reads_report_missing_znodes(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    for read in (a.read, a.children):
        with pytest.raises(NoNodeError):
            await read(f"{root}/gone")
    assert await a.exists(f"{root}/gone") is None
    await a.multi([Create(f"{root}/x", b"1"), Create(f"{root}/y")])
    nodes = await a.read_many([f"{root}/x", f"{root}/gone", f"{root}/y", f"{root}/x"])
    assert [None if node is None else node.data for node in nodes] == [b"1", None, b"", b"1"]
    assert nodes[0] == await a.read(f"{root}/x")
    assert sorted(await a.children(root)) == ["x", "y"]


@contract
async def an_invalid_path_is_refused(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    for name in ("", ".", "..", "a\x01"):
        assert await refusal(a, Create(f"{root}/{name}")) == (0, ServerError)
    for name in ("/x", "./x", "../x"):
        assert await refusal(a, Create(f"{root}/{name}")) == (0, NoNodeError)


@contract
async def ephemerals_have_an_owner_and_no_children(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    await a.multi([Create(f"{root}/e", ephemeral=True)])
    stat = await a.exists(f"{root}/e")
    assert stat is not None
    assert stat.ephemeral_owner == a.session_id
    assert await refusal(a, Create(f"{root}/e/x")) == (0, ServerError)


@contract
async def a_closed_session_removes_all_its_ephemerals_in_one_transaction(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    await a.multi([Create(f"{root}/k"), Create(f"{root}/k/e1", ephemeral=True), Create(f"{root}/k/e2", ephemeral=True)])
    await a.multi([Create(f"{root}/e3", ephemeral=True)])
    await a.close()
    assert await b.children(f"{root}/k") == []
    assert await b.exists(f"{root}/e3") is None
    parent, other = await b.exists(f"{root}/k"), await b.exists(root)
    assert parent is not None
    assert other is not None
    assert parent.pzxid == other.pzxid


@contract
async def the_session_after_an_expired_one_is_new_and_requests_of_the_expired_one_are_not_sent(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    states: list[tuple[State, int]] = []
    a.on_state(lambda state, generation: states.append((state, generation)))
    old = a.session_id
    await a.multi([Create(f"{root}/e", ephemeral=True), Create(f"{root}/p")])
    await ground.end_session(a)
    assert await a.wait_connected(after=1) == 2
    assert a.session_id != old
    assert states == [(State.SUSPENDED, 1), (State.LOST, 1), (State.CONNECTED, 2)]
    with pytest.raises(SessionExpiredError):
        await a.multi([Check(root)], generation=1)
    with pytest.raises(SessionExpiredError):
        await a.read(root, generation=1)
    with pytest.raises(SessionExpiredError):
        await a.wait_connected(generation=1)
    await b.sync(root)
    assert sorted(await b.children(root)) == ["p"]


@contract
async def a_client_that_ends_its_session_continues_with_a_new_one(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    states: list[tuple[State, int]] = []
    a.on_state(lambda state, generation: states.append((state, generation)))
    await a.multi([Create(f"{root}/e", ephemeral=True), Create(f"{root}/p")])
    await a.end_session(1)
    assert states == [(State.SUSPENDED, 1), (State.LOST, 1), (State.CONNECTED, 2)]
    await b.sync(root)
    assert await b.children(root) == ["p"]
    await a.end_session(1)
    assert await a.children(root) == ["p"]
    assert a.generation == 2


@contract
async def a_lost_connection_keeps_the_session_and_its_ephemerals(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    states: list[tuple[State, int]] = []
    a.on_state(lambda state, generation: states.append((state, generation)))
    await a.multi([Create(f"{root}/e", ephemeral=True)])
    pending = a.multi([Check(root)])
    ground.cut(a)
    with pytest.raises(ConnectionLossError):
        await pending
    reading = asyncio.ensure_future(a.children(root))  # waits, and is sent after the reconnection
    with pytest.raises(ConnectionLossError):
        await a.multi([Check(root)])
    assert await reading == ["e"]
    assert await a.wait_connected(generation=1) == 1
    assert states == [(State.SUSPENDED, 1), (State.CONNECTED, 1)]


@contract
async def watches_report_in_order_and_before_the_reply_to_a_later_read(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    plain: list[WatchEvent] = []
    deep: list[WatchEvent] = []
    await a.watch(f"{root}/w", plain.append)
    await a.watch(root, deep.append, recursive=True)
    await b.multi([Create(f"{root}/w"), Create(f"{root}/w/c"), SetData(f"{root}/w/c", b"1"), SetData(f"{root}/w", b"")])
    await b.multi([Delete(f"{root}/w/c"), Delete(f"{root}/w")])
    await a.sync(root)
    assert await a.exists(f"{root}/w") is None
    created, deleted, changed, children = EventKind.CREATED, EventKind.DELETED, EventKind.CHANGED, EventKind.CHILDREN
    assert [(event.kind, event.path.removeprefix(root)) for event in deep] == [
        (created, "/w"),
        (created, "/w/c"),
        (changed, "/w/c"),
        (changed, "/w"),
        (deleted, "/w/c"),
        (deleted, "/w"),
    ]
    assert [event.kind for event in plain] == [created, children, changed, children, deleted]


@contract
async def a_watch_reports_the_writes_of_its_client_before_their_replies(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    events: list[WatchEvent] = []
    watch = await a.watch(root, events.append, recursive=True)
    await a.multi([Create(f"{root}/x")])
    assert events == [WatchEvent(EventKind.CREATED, f"{root}/x")]
    watch.cancel()
    await a.multi([Create(f"{root}/y")])
    assert len(events) == 1


@contract
async def the_end_of_a_session_is_reported_to_the_watches_of_its_ephemerals(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    await a.multi([Create(f"{root}/e1", ephemeral=True), Create(f"{root}/e2", ephemeral=True)])
    events: list[WatchEvent] = []
    await b.watch(root, events.append, recursive=True)
    await ground.end_session(a)
    await b.sync(root)
    assert {(event.kind, event.path) for event in events} == {
        (EventKind.DELETED, f"{root}/e1"),
        (EventKind.DELETED, f"{root}/e2"),
    }


@contract
async def watches_are_armed_again_and_notified_that_they_may_have_missed_events(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    events: list[WatchEvent] = []
    await a.watch(root, events.append, recursive=True)
    missed = WatchEvent(EventKind.MISSED, root)
    ground.cut(a)
    await a.wait_connected()
    assert events == [missed]
    await ground.end_session(a)
    await a.wait_connected(after=1)
    assert events == [missed, missed]
    await b.multi([Create(f"{root}/x")])
    await a.sync(root)
    assert events == [missed, missed, WatchEvent(EventKind.CREATED, f"{root}/x")]


@contract
async def requests_are_answered_in_the_order_in_which_they_were_sent(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    answered: list[int] = []
    writes = [a.multi([Create(f"{root}/n{number}")]) for number in range(20)]
    reads = [asyncio.ensure_future(a.children(root)) for _ in range(3)]
    for number, future in enumerate([*writes, *reads]):
        asyncio.ensure_future(future).add_done_callback(lambda _, number=number: answered.append(number))  # type: ignore[misc]
    names = await asyncio.gather(*reads)
    await asyncio.sleep(0)
    assert [len(listing) for listing in names] == [20, 20, 20]
    assert answered == list(range(23))


@contract
async def a_request_over_the_limit_is_not_sent(ground: Ground) -> None:
    a, root = await ground.client(), ground.root
    room = a.max_request - a.request_size([Create(f"{root}/a")])
    with pytest.raises(RequestTooLargeError):
        await a.multi([Create(f"{root}/a", bytes(room + 1))])
    assert await a.multi([Create(f"{root}/a", bytes(room))]) == [f"{root}/a"]
    assert a.path_size(f"{root}/a") == len(root) + 2
    assert a.state is State.CONNECTED


@contract
async def timeouts_are_negotiated(ground: Ground) -> None:
    assert (await ground.client(0.001)).session_timeout == pytest.approx(2 * TICK)
    assert (await ground.client(1.5)).session_timeout == pytest.approx(1.5)


@contract
async def clients_can_ensure_the_same_parents_concurrently(ground: Ground) -> None:
    a, b, root = await ground.client(), await ground.client(), ground.root
    await asyncio.gather(a.ensure(f"{root}/x/y/z"), b.ensure(f"{root}/x/y/z"))
    assert await a.children(f"{root}/x/y") == ["z"]


TICK = 0.1


class Simulated:
    root = "/contract"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names: dict[ZooKeeper, str] = {}

    async def client(self, timeout: float = 4.0) -> ZooKeeper:
        client = await self._cluster.client(session_timeout=timeout)
        self._names[client] = client.session.name
        await client.ensure(self.root)
        return client

    async def end_session(self, client: ZooKeeper) -> None:
        self._cluster.expire(self._names[client])

    def cut(self, client: ZooKeeper) -> None:
        self._cluster.cut(self._names[client])


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("agreed", contracts, ids=lambda clause: clause.__name__)
def test_the_simulated_ensemble_keeps_the_contract(agreed: Callable[[Ground], Awaitable[None]], servers: int) -> None:
    async def main() -> None:
        async with simulated(servers=servers) as cluster:
            cluster.ensemble.tick = TICK
            await agreed(Simulated(cluster))

    run_virtual(main)


class Real:
    def __init__(self, hosts: str, root: str) -> None:
        self.root = root
        self._hosts = hosts
        self.clients: list[ZooKeeper] = []

    async def client(self, timeout: float = 4.0) -> ZooKeeper:
        client = await connect(self._hosts, session_timeout=timeout)
        self.clients.append(client)
        await client.ensure(self.root)
        return client

    async def end_session(self, client: ZooKeeper) -> None:
        resumable = client._session._resumable  # type: ignore[attr-defined]
        close_elsewhere(self._hosts, resumable.session_id, resumable.password)

    def cut(self, client: ZooKeeper) -> None:
        client._session.connection.abort("cut")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def real_hosts(embedded_server: Callable[..., EmbeddedZooKeeper]) -> str:
    return embedded_server(ServerOptions(tick_time=TICK, fsync=False)).hosts


@pytest.mark.parametrize("agreed", contracts, ids=lambda clause: clause.__name__)
async def test_a_real_server_keeps_the_contract(
    agreed: Callable[[Ground], Awaitable[None]], real_hosts: str, queue_root: str
) -> None:
    ground = Real(real_hosts, queue_root)
    try:
        await agreed(ground)
    finally:
        for client in ground.clients:
            await client.close()
