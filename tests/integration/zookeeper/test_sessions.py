"""The life of a session, its end, and the next session."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.errors import BlockedLoopWarning, InvalidOptionError
from aiozkqueue.testing import (
    Direction,
    Opcode,
    ZooKeeperProxy,
)
from aiozkqueue.zookeeper import (
    Check,
    ConnectionLossError,
    Create,
    EventKind,
    NotConnectedError,
    SessionExpiredError,
    State,
    WatchEvent,
    ZooKeeperClient,
    ZooKeeperError,
    connect,
    handshake,
    heartbeat,
)
from aiozkqueue.zookeeper.connection import UNANSWERED
from tests.full_server import full_server
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer, connected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper import Auth
    from aiozkqueue.zookeeper.connection import Connection
    from tests.integration.zookeeper.conftest import Opener
    from tests.observer import Observer


def _states(zk: ZooKeeperClient) -> list[tuple[State, int]]:
    states: list[tuple[State, int]] = []
    zk.on_state(lambda state, generation: states.append((state, generation)))
    return states


async def test_after_an_idle_connection_is_reset_the_next_call_succeeds_within_half_a_second(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root, session_timeout=10.0)
    assert zk.session_timeout == 10.0
    await zk.multi([Create("/lock", ephemeral=True)])
    session, times = zk.session_id, list[float]()
    for _ in range(5):
        zookeeper_proxy.reset_connections()
        began = time.monotonic()
        node = await zk.read("/lock")
        times.append(time.monotonic() - began)
        assert (zk.session_id, zk.generation, node.stat.ephemeral_owner) == (session, 1, session)
    assert min(times) < 0.5, times  # the minimum, since the machine may stall


async def test_a_multi_pending_at_a_connection_loss_is_unknown_and_never_sent_again(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    applied = zookeeper_proxy.lose_after(Opcode.MULTI)
    with pytest.raises(ConnectionLossError) as lost:
        await zk.multi([Create("/s-", sequential=True)])
    assert not isinstance(lost.value, NotConnectedError)
    await applied.struck()
    with pytest.raises(NotConnectedError):
        await zk.multi([Create("/s-", sequential=True)])
    await zk.wait_connected(generation=1)
    zookeeper_proxy.lose_before(Opcode.MULTI)
    with pytest.raises(ConnectionLossError):
        await zk.multi([Create("/s-", sequential=True)])
    assert await zk.children("/") == ["s-0000000000"]


@pytest.mark.parametrize(
    "opcode", [Opcode.GET_DATA, Opcode.MULTI_READ, Opcode.EXISTS, Opcode.GET_CHILDREN, Opcode.SYNC]
)
async def test_reads_are_repeated_after_a_loss(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener, opcode: Opcode
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    calls: dict[Opcode, Callable[[], Awaitable[object]]] = {
        Opcode.GET_DATA: lambda: zk.read("/"),
        Opcode.MULTI_READ: lambda: zk.read_many(["/"]),
        Opcode.EXISTS: lambda: zk.exists("/"),
        Opcode.GET_CHILDREN: lambda: zk.children("/"),
        Opcode.SYNC: lambda: zk.sync("/"),
    }
    first, second = zookeeper_proxy.lose_after(opcode), zookeeper_proxy.lose_before(opcode, nth=2)
    await calls[opcode]()
    assert (len(first.requests), len(second.requests)) == (1, 1)


@pytest.mark.slow
async def test_acknowledged_writes_exist_and_no_call_hangs_after_random_resets(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    session = zk.session_id
    acknowledged, unknown, unsent = set[str](), set[str](), set[str]()
    chance, progress = random.Random(7), asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(100):
            name = f"{writer}-{number}"
            try:
                await zk.multi([Create(f"/{name}", bytes(2000)), Check("/")])
                acknowledged.add(name)
            except NotConnectedError:
                unsent.add(name)
                await zk.wait_connected(generation=1)
            except ConnectionLossError:
                unknown.add(name)
            await zk.read_many(["/", f"/{name}"])
            progress.set()

    async def disturb() -> None:
        while True:
            await progress.wait()  # so that a connection lasts until a writer makes progress, even on a slow machine
            progress.clear()
            await zk.wait_connected()
            await asyncio.sleep(chance.uniform(0, 0.05))
            if chance.random() < 0.5:
                zookeeper_proxy.reset_connections()
            else:
                zookeeper_proxy.cut_after(chance.randrange(3000), chance.choice(list(Direction)))

    disturbing = asyncio.create_task(disturb())
    async with asyncio.timeout(120):
        await asyncio.gather(*(write(writer) for writer in range(8)))
    disturbing.cancel()
    zookeeper_proxy.heal()
    stored = set(await zk.children("/"))
    assert acknowledged <= stored <= acknowledged | unknown
    assert not unsent & stored
    assert unknown
    assert (zk.session_id, zk.generation) == (session, 1)


async def test_a_session_ended_by_the_server_is_followed_by_the_next_generation(
    zookeeper: str, queue_root: str, opened: Opener, end_session: Callable[[ZooKeeperClient], Awaitable[None]]
) -> None:
    zk = await opened(zookeeper + queue_root)
    states, old = _states(zk), zk.session_id
    await zk.multi([Create("/e", ephemeral=True), Create("/p")])
    waiting = asyncio.create_task(zk.wait_connected(after=1))
    lost = asyncio.create_task(_lost(zk, 1))
    await end_session(zk)
    assert await waiting == 2
    await lost
    assert states == [(State.SUSPENDED, 1), (State.LOST, 1), (State.CONNECTED, 2)]
    assert zk.session_id != old
    assert await zk.children("/") == ["p"]
    for call in (zk.multi([Check("/")], generation=1), zk.read("/", generation=1), zk.wait_connected(generation=1)):
        with pytest.raises(SessionExpiredError):
            await call
    assert await zk.multi([Create("/e", ephemeral=True)], generation=2) == ["/e"]


async def _lost(zk: ZooKeeperClient, generation: int) -> None:
    with pytest.raises(SessionExpiredError):
        while True:
            await zk.wait_connected(generation=generation)
            await asyncio.sleep(0)


async def test_only_the_server_ends_a_session(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener, server_view: Observer
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root, session_timeout=3.0)
    await zk.multi([Create("/e", ephemeral=True)])
    states = _states(zk)
    zookeeper_proxy.stall()
    await server_view.gone(f"{queue_root}/e")
    await asyncio.sleep(0.5)  # a client with its own timer would report the end by now
    assert states == [(State.SUSPENDED, 1)]  # it left the silent connection in time, and still has its session
    reading = asyncio.create_task(zk.read("/", generation=1))
    zookeeper_proxy.heal()
    with pytest.raises(SessionExpiredError):
        await reading
    assert await zk.wait_connected(after=1) > 1
    assert states[:3] == [(State.SUSPENDED, 1), (State.LOST, 1), (State.CONNECTED, 2)]


async def test_an_idle_session_is_kept_alive_on_the_same_connection(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    for _ in range(3):  # repeated, since the machine may stall for a second
        accepted, pings = zookeeper_proxy.accepted, zookeeper_proxy.requests.get(Opcode.PING, 0)
        zk = await opened(zookeeper_proxy.hosts + queue_root, session_timeout=1.5)
        began, session = time.monotonic(), zk.session_id
        async with asyncio.timeout(60):
            while time.monotonic() - began < 3 or zookeeper_proxy.requests[Opcode.PING] < pings + 4:  # noqa: ASYNC110 - the proxy only counts
                await asyncio.sleep(0.05)
        await zk.exists("/")
        assert zookeeper_proxy.requests[Opcode.PING] - pings <= 20 * (time.monotonic() - began) / 3
        kept = (zk.session_id, zk.generation, zookeeper_proxy.accepted) == (session, 1, accepted + 1)
        await zk.close()
        if kept:
            break
    else:
        pytest.fail("it was not kept alive, or not on the same connection")


async def test_a_connection_to_a_silent_server_is_closed_after_two_thirds_of_the_timeout(
    zookeeper_proxy: ZooKeeperProxy, opened: Opener
) -> None:
    zk, times = await opened(zookeeper_proxy.hosts, session_timeout=3.0), list[float]()
    while not times or (times[-1] >= 3.0 and len(times) < 3):  # repeated, since the machine may stall
        await zk.wait_connected()
        zookeeper_proxy.drop(Direction.TO_CLIENT)
        began = time.monotonic()
        with pytest.raises(ConnectionLossError, match="no answer"):
            await zk.multi([Check("/")])
        times.append(time.monotonic() - began)
        zookeeper_proxy.heal()
    assert 1.0 < times[-1] < 3.0, times


async def test_watches_are_set_again_after_a_reconnection_or_a_new_session_and_report_the_gap(
    zookeeper_proxy: ZooKeeperProxy,
    queue_root: str,
    opened: Opener,
    end_session: Callable[[ZooKeeperClient], Awaitable[None]],
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    plain: list[WatchEvent] = []
    deep: list[WatchEvent] = []
    await zk.watch("/", plain.append)
    await zk.watch("/", deep.append, recursive=True)
    for generation, cut in ((1, None), (2, end_session)):
        plain.clear()
        deep.clear()
        if cut is None:
            zookeeper_proxy.reset_connections()
        else:
            await cut(zk)
            await zk.wait_connected(after=generation - 1)
        await zk.exists("/")
        assert plain == deep == [WatchEvent(EventKind.MISSED, "/")]
        await zk.multi([Create("/x-", sequential=True)])
        assert plain[1:] == [WatchEvent(EventKind.CHILDREN, "/")]
        assert [event.kind for event in deep[1:]] == [EventKind.CREATED]
        assert zk.generation == generation


async def test_a_connection_that_drops_while_watches_are_set_again_is_retried(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root, session_timeout=60)
    events: list[WatchEvent] = []
    await zk.watch("/", events.append)
    dropped = zookeeper_proxy.lose_before(Opcode.SET_WATCHES2)
    zookeeper_proxy.reset_connections()
    await asyncio.wait_for(zk.exists("/"), 30)  # long before the timeout of a silent connection
    assert len(dropped.requests) == 1
    assert events == [WatchEvent(EventKind.MISSED, "/")]


async def test_a_watch_requested_as_the_connection_drops_is_set_after_the_reconnection(
    zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper_proxy.hosts + queue_root)
    zookeeper_proxy.lose_before(Opcode.ADD_WATCH)
    events: list[WatchEvent] = []
    await zk.watch("/", events.append)
    await zk.multi([Create("/x")])
    assert events[-1] == WatchEvent(EventKind.CHILDREN, "/")


async def test_a_blocked_loop_causes_a_warning_and_keeps_connection_and_session(
    zookeeper_proxy: ZooKeeperProxy, opened: Opener
) -> None:
    # Longer than the block, since the machine may stall too.
    zk = await opened(zookeeper_proxy.hosts, session_timeout=15.0)
    await asyncio.sleep(0.2)
    with pytest.warns(BlockedLoopWarning, match="was blocked for"):
        end = time.monotonic() + 10.1  # longer than the timeout of a silent connection, 2/3 of the session timeout
        while time.monotonic() < end:
            pass
        await asyncio.sleep(0.3)
    await zk.exists("/")
    assert (zk.generation, zookeeper_proxy.accepted) == (1, 1)


async def test_a_warning_turned_into_an_error_does_not_end_the_session(zookeeper: str, opened: Opener) -> None:
    zk = await opened(zookeeper, session_timeout=12.0)  # longer than the block, since the machine may stall too
    await asyncio.sleep(0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = time.monotonic() + 5.4
        while time.monotonic() < end:
            pass
        await asyncio.sleep(0.3)
    await zk.exists("/", generation=1)


async def test_connecting_without_a_server_fails_after_the_timeout_and_names_the_hosts(zookeeper: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionLossError, match=r"127\.0\.0\.1:1,.*refused|127\.0\.0\.1:1.*Connect call failed"):
        await connect("127.0.0.1:1,127.0.0.1:2", connect_timeout=0.4)
    assert 0.3 < time.monotonic() - began < 10  # the default is 15 s
    zk = await connect(f"127.0.0.1:1,{zookeeper}")
    await zk.close()


async def test_an_outage_is_logged_when_it_begins_when_it_lasts_and_when_it_ends(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The next message would follow after five minutes.
    monkeypatch.setattr("aiozkqueue.zookeeper.outage._FIRST", (0.3,))
    caplog.set_level(logging.DEBUG, "aiozkqueue.zookeeper")
    down, up = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        if peer.number > 1 and not up.is_set():
            return  # closes the connection without a reply
        peer.send(connected(7, timeout=20_000))
        if peer.number > 1:
            await peer.keep_alive()
        await down.wait()

    def logged(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= level]

    async with ScriptedServer(script) as server, asyncio.timeout(60):
        zk = await opened(server.hosts, session_timeout=20.0)
        caplog.clear()
        down.set()
        while len([line for line in logged(logging.DEBUG) if line.startswith(f"{server.hosts}: ")]) < 8:  # noqa: ASYNC110 - the log has no events
            await asyncio.sleep(0.05)
        up.set()
        await zk.wait_connected(after=0)
        zk._session.kill()  # the server does not answer a close
    tries = re.escape(UNANSWERED)
    peer = re.escape(server.hosts)
    lost, lasting, back = logged(logging.INFO)
    assert lost == f"connection to {server.hosts} lost: closed by the server"
    assert re.fullmatch(rf"no connection to {peer} for \d+ s; last error: {peer}: .*{tries}", lasting)
    assert re.fullmatch(rf"resumed session 0x7 at {peer}, timeout 20.0 s, after \d+\.\d s without a connection", back)


async def test_connections_that_are_lost_again_and_again_do_not_fill_the_log(
    zookeeper_proxy: ZooKeeperProxy, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiozkqueue.zookeeper")
    zk = await opened(zookeeper_proxy.hosts, session_timeout=20.0)
    for _ in range(25):
        assert await zk.exists("/")
        zookeeper_proxy.reset_connections()
    assert await zk.exists("/")
    lines = [record.getMessage() for record in caplog.records if record.name == "aiozkqueue.zookeeper.outage"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) <= 1 + 2 * 3 + 1, lines
    peer = re.escape(zookeeper_proxy.hosts)
    assert re.match(rf"4 connections to {peer} were lost within \d+ s; the last: connection to {peer} lost: ", warning)


async def test_a_server_that_is_at_its_limit_of_connections_is_named_as_a_cause() -> None:
    async with full_server() as hosts:
        first = await connect(hosts, session_timeout=20.0)
        try:
            with pytest.raises(ConnectionLossError, match=re.escape(UNANSWERED)):
                await connect(hosts, session_timeout=20.0, connect_timeout=2.0)
        finally:
            await first.close()


@pytest.mark.parametrize("kind", [BrokenPipeError, ConnectionResetError])
async def test_a_connection_closed_before_the_loop_sees_it_names_the_causes(
    kind: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create_connection(*_: object, **__: object) -> None:
        raise kind(32, "Connect call failed")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
    with pytest.raises(ConnectionLossError, match=re.escape(UNANSWERED)):
        await connect("127.0.0.1:1", session_timeout=20.0, connect_timeout=0.2)


async def test_a_server_that_accepts_and_never_answers_does_not_hang_the_connect(zookeeper: str) -> None:
    async def silence(_peer: Peer) -> None:
        await asyncio.sleep(60)

    async with ScriptedServer(silence) as server:
        with pytest.raises(ConnectionLossError, match=f"{server.hosts}: no answer in time"):
            await connect(server.hosts, session_timeout=0.6, connect_timeout=1.0)
        zk = await asyncio.wait_for(connect(f"{server.hosts},{zookeeper}", session_timeout=2.0), 30)
        await zk.close()


async def test_a_cancelled_connect_leaves_nothing_behind(zookeeper: str) -> None:
    before = asyncio.all_tasks()
    for delay in (0.0, 0.001, 0.003, 0.01):
        connecting = asyncio.create_task(connect(zookeeper))
        await asyncio.sleep(delay)
        connecting.cancel()
        try:
            await (await connecting).close()
        except asyncio.CancelledError:
            await no_task_but(before)
    await no_task_but(before)


async def no_task_but(before: set[asyncio.Task[Any]]) -> None:
    """Wait until only the earlier tasks are left. Raises: TimeoutError."""
    async with asyncio.timeout(30):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - no event reports the last end
            await asyncio.sleep(0.01)


async def test_close_is_prompt_in_any_state_and_leaves_no_task_or_socket(zookeeper: str) -> None:
    before = asyncio.all_tasks()
    for fault in ("none", "silent", "refused"):
        async with ZooKeeperProxy(zookeeper) as proxy:
            zk = await connect(proxy.hosts, session_timeout=60)
            if fault == "silent":
                proxy.stall()
            elif fault == "refused":
                proxy.refuse()
                proxy.reset_connections()
                await asyncio.sleep(0.05)
            began = time.monotonic()
            await zk.close()
            assert time.monotonic() - began < 30, fault  # half of a session timeout
            assert zk.state is State.CLOSED
            proxy.heal()
    await no_task_but(before)


async def test_a_session_closed_while_disconnected_is_still_closed_at_the_server(
    zookeeper: str, zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
) -> None:
    zk, other = await opened(zookeeper_proxy.hosts + queue_root), await opened(zookeeper + queue_root)
    await zk.multi([Create("/e", ephemeral=True)])
    zookeeper_proxy.reset_connections()
    await asyncio.sleep(0)
    await zk.close()
    assert await other.exists("/e") is None


async def test_closing_a_client_in_another_task_never_cancels_the_task_that_opened_it(
    zookeeper: str,
) -> None:
    zk = await asyncio.create_task(connect(zookeeper))
    await asyncio.create_task(zk.close())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_loop_that_ends_with_an_open_client_ends_the_clients_task(zookeeper: str) -> None:
    def run() -> State:
        async def main() -> ZooKeeperClient:
            return await connect(zookeeper)

        return asyncio.run(main()).state

    assert await asyncio.to_thread(run) is State.CLOSED


async def test_a_connect_response_with_another_session_ends_the_old_session() -> None:
    asked, closed = list[int](), list[int]()

    async def answers_with_a_new_session(peer: Peer) -> None:
        asked.append((await peer.asked()).session_id)
        peer.send(connected(peer.number))
        if peer.number == 1:
            await asyncio.sleep(0.1)
            peer.drop()
        if peer.number == 2:
            closed.append(await peer.answer())
        await peer.keep_alive()

    async with ScriptedServer(answers_with_a_new_session) as server:
        zk = await connect(server.hosts)
        states: list[Any] = _states(zk)
        assert await zk.wait_connected(after=1) == 2
        # The client closes the second session, which the server opened instead of resuming the first; then a third.
        assert asked == [0, 1, 0]
        assert closed == [Opcode.CLOSE]
        assert zk.session_id == 3
        assert states == [(State.SUSPENDED, 1), (State.LOST, 1), (State.CONNECTED, 2)]
        await zk.close()


async def test_an_expiry_reply_on_the_open_connection_ends_the_session_at_once() -> None:
    async def expires(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number))
        if peer.number == 1:
            await peer.answer(error=-112)
        await peer.keep_alive()

    async with ScriptedServer(expires) as server:
        zk = await connect(server.hosts)
        with pytest.raises(SessionExpiredError):
            await zk.multi([Check("/")])
        assert zk.state is State.LOST
        assert await zk.wait_connected(after=1) == 2
        await zk.close()


async def test_the_next_connection_sends_the_newest_zxid() -> None:
    carried: list[int] = []

    async def script(peer: Peer) -> None:
        carried.append((await peer.asked()).last_zxid)
        peer.send(connected(1))
        if peer.number == 1:
            await peer.answer(zxid=0x500000007)
            peer.drop()
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        await zk.sync("/")
        await zk.sync("/")
        assert carried == [0, 0x500000007]
        assert zk.last_zxid == 0x500000007
        await zk.close()


async def test_a_shorter_timeout_granted_by_the_server_applies_at_once() -> None:
    pinged = asyncio.Event()

    async def gives_one_second(peer: Peer) -> None:
        asked = await peer.asked()
        assert asked.timeout == 300_000
        peer.send(connected(1, timeout=1000))
        await peer.packet()
        pinged.set()

    async with ScriptedServer(gives_one_second) as server:
        zk = await connect(server.hosts, session_timeout=300.0)
        assert zk.session_timeout == 1.0
        await asyncio.wait_for(pinged.wait(), 30)  # a third of the requested timeout would be 100 s
        await zk.close()


@pytest.mark.parametrize("option", [{"session_timeout": 0}, {"session_timeout": 10**8}, {"max_request": 0}])
async def test_the_error_for_an_option_out_of_range_names_it(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(option))):
        await connect("h1", **option)


async def test_the_client_connects_to_an_ipv6_server() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await peer.keep_alive()

    try:
        server = await ScriptedServer(script, host="::1").__aenter__()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert server.hosts.startswith("[::1]:")
    zk = await connect(server.hosts)
    assert zk.session_id == 1
    await zk.close()
    await server.__aexit__(None, None, None)


async def test_a_connection_that_is_lost_at_the_moment_it_is_established_is_replaced(
    zookeeper: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = await opened(zookeeper, session_timeout=10.0)
    established: list[Connection] = []

    async def authenticate(connection: Connection, _: Sequence[Auth]) -> None:
        established.append(connection)
        if len(established) == 1:
            connection.abort("lost")

    monkeypatch.setattr(handshake, "authenticate", authenticate)
    assert zk._session.connection is not None
    zk._session.connection.abort("lost")
    async with asyncio.timeout(20):
        assert await zk.exists("/") is not None
    assert (zk.state, zk.generation, len(established)) == (State.CONNECTED, 1, 2)


async def test_a_defect_of_a_connected_client_fails_its_pending_and_later_calls(
    zookeeper_proxy: ZooKeeperProxy, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    defective = asyncio.Event()

    async def fail(_: object) -> None:
        await defective.wait()
        raise LookupError("a defect")

    monkeypatch.setattr(heartbeat, "run", fail)
    zk = await opened(zookeeper_proxy.hosts)
    zookeeper_proxy.stall()
    pending = asyncio.ensure_future(zk.exists("/"))
    await asyncio.sleep(0)
    defective.set()
    async with asyncio.timeout(20):
        for call in (pending, zk.exists("/"), zk.wait_connected()):
            with pytest.raises(ZooKeeperError, match="a defect"):
                await call


async def test_a_watch_that_is_cancelled_before_it_is_armed_reports_nothing(
    zookeeper: str, queue_root: str, opened: Opener
) -> None:
    zk = await opened(zookeeper + queue_root)
    events: list[WatchEvent] = []
    watching = asyncio.create_task(zk.watch("/a", events.append))
    await asyncio.sleep(0)  # it is sent
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    await zk.multi([Create("/a")])
    assert zk._session.connection is not None
    zk._session.connection.abort("lost")
    await zk.exists("/a")
    assert events == []
