"""Each fault of aiozk 0.32 that this package works around: stock aiozk has it, and our client does not.

A test marked ``stock_aiozk`` asserts the *faulty* behaviour. When such a test fails, the fault is fixed upstream, and
the replacement of that part can be reviewed.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiozk
import pytest
from aiozk import exc, protocol

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.testing import Direction, Opcode
from aiozkqueue.zookeeper import (
    Check,
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    SessionExpiredError,
    State,
    WatchEvent,
    connect,
)
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer, connected, frame, reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.zookeeper.conftest import Opener, SecureServer

stock = pytest.mark.stock_aiozk
# Stock aiozk leaves transports and tasks behind. That is fault 6, and must not fail the tests of the other faults.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@asynccontextmanager
async def stock_client(servers: str, *, started: bool = True, **options: Any) -> AsyncIterator[Any]:
    """Run a client of stock aiozk, and shut it down by force, since its close() may wait forever."""
    before = asyncio.all_tasks()
    client = aiozk.ZKClient(servers, **options)
    try:
        if started:
            await asyncio.wait_for(client.start(), 30)
        yield client
    finally:
        session = client.session
        session.closing = True
        if session.heartbeat_handle:
            session.heartbeat_handle.cancel()
        left = [task for task in asyncio.all_tasks() - before if "aiozk" in repr(task.get_coro())]
        left = [task for task in left if "aiozkqueue" not in repr(task.get_coro())]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if session.heartbeat_handle:
            session.heartbeat_handle.cancel()
        if session.conn and session.conn.writer:
            session.conn.writer.transport.abort()
            await asyncio.sleep(0)


async def hangs(call: Any, seconds: float) -> bool:
    """Return whether a call is still pending after this many seconds."""
    task = asyncio.ensure_future(call)
    await asyncio.wait([task], timeout=seconds)
    if task.done():
        task.exception()
        return False
    task.cancel()
    await asyncio.wait([task], timeout=30)
    return True


class TestOneEndOfStream:
    """The end of the stream leaves pending calls waiting, and the reader spins."""

    @stock
    async def test_stock_keeps_waiting_after_a_truncated_reply(self, zookeeper_proxy: ZooKeeperProxy) -> None:
        async with stock_client(zookeeper_proxy.hosts, session_timeout=4, read_timeout=1.5) as client:
            zookeeper_proxy.cut_after(30, Direction.TO_CLIENT)
            assert await hangs(client.get("/zookeeper"), 1.0)

    @stock
    async def test_stock_keeps_waiting_after_a_clean_end_of_the_connection(
        self, zookeeper_proxy: ZooKeeperProxy
    ) -> None:
        async with stock_client(zookeeper_proxy.hosts, session_timeout=4) as client:
            zookeeper_proxy.cut_after(0, Direction.TO_CLIENT)
            assert await hangs(client.get("/zookeeper"), 2.0)

    @pytest.mark.parametrize("count", [0, 30])
    async def test_ours_continues_at_once(self, zookeeper_proxy: ZooKeeperProxy, opened: Opener, count: int) -> None:
        zk = await opened(zookeeper_proxy.hosts, session_timeout=60)
        zookeeper_proxy.cut_after(count, Direction.TO_CLIENT)
        began = time.monotonic()
        assert await zk.read("/zookeeper")
        assert time.monotonic() - began < 30  # long before the timeout of a silent connection
        assert zookeeper_proxy.accepted == 2


class TestTwoWritesSentAgain:
    """Every write is sent again after a loss; a retry that is given up leaks into an unrelated request."""

    @stock
    async def test_stock_creates_a_sequential_znode_twice(
        self, zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
    ) -> None:
        view = await opened(zookeeper_proxy.hosts + queue_root)
        async with stock_client(zookeeper_proxy.hosts, chroot=queue_root, session_timeout=2) as client:
            zookeeper_proxy.lose_after(Opcode.CREATE2)
            await asyncio.wait_for(client.create("/s-", sequential=True), 30)
            assert len(await view.children("/")) == 2

    @stock
    async def test_stock_keeps_the_retry_count_of_an_abandoned_request(self) -> None:
        policy = aiozk.RetryPolicy.once()
        request = protocol.DeleteRequest(path="/x", version=-1)
        await policy.enforce(request)
        with pytest.raises(exc.FailedRetry):
            await policy.enforce(request)
        assert id(request) in policy.timings  # the next object at this address has no retries left

    async def test_ours_sends_a_write_once_and_the_next_one_is_not_affected(
        self, zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener
    ) -> None:
        zk = await opened(zookeeper_proxy.hosts + queue_root)
        zookeeper_proxy.lose_after(Opcode.MULTI)
        with pytest.raises(ConnectionLossError):
            await zk.multi([Create("/s-", sequential=True)])
        assert await zk.children("/") == ["s-0000000000"]
        await zk.wait_connected()
        lost = zookeeper_proxy.lose_after(Opcode.MULTI)
        with pytest.raises(ConnectionLossError):
            await zk.multi([Create("/s-", sequential=True)])
        assert len(lost.requests) == 1
        await zk.wait_connected()
        (created,) = await zk.multi([Create("/s-", sequential=True)])
        assert created == "/s-0000000002"


class TestThreeRepairLoop:
    """The repair loop awaits its own SetWatches, which only that loop can complete."""

    @stock
    async def test_stock_hangs_when_the_connection_drops_while_watches_are_set(
        self, zookeeper_proxy: ZooKeeperProxy
    ) -> None:
        async with stock_client(zookeeper_proxy.hosts, session_timeout=1) as client:
            client.session.add_watch_callback(protocol.WatchEvent.DATA_CHANGED, "/zookeeper", lambda _path: None)
            zookeeper_proxy.lose_before(Opcode.SET_WATCHES)
            zookeeper_proxy.reset_connections()
            assert await hangs(client.get("/zookeeper"), 3.0)
            accepted = zookeeper_proxy.accepted
            await asyncio.sleep(0.5)
            assert zookeeper_proxy.accepted == accepted  # it has stopped trying

    async def test_ours_tries_again(self, zookeeper_proxy: ZooKeeperProxy, queue_root: str, opened: Opener) -> None:
        zk = await opened(zookeeper_proxy.hosts + queue_root, session_timeout=60)
        events: list[WatchEvent] = []
        await zk.watch("/", events.append)
        dropped = zookeeper_proxy.lose_before(Opcode.SET_WATCHES2)
        zookeeper_proxy.reset_connections()
        assert not await hangs(zk.read("/"), 30)
        await zk.multi([Create("/x")])
        assert len(dropped.requests) == 1
        assert len(events) == 2


class TestFourSessionIdentity:
    """The session id in the reply is not compared, and the newest zxid is forgotten."""

    @staticmethod
    async def _another_session_each_time(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number, timeout=2000))
        if peer.number == 1:
            await peer.answer(zxid=99, body=struct.pack(">i", 0) + bytes(68))
            peer.drop()
        await peer.keep_alive()

    @stock
    async def test_stock_mistakes_a_new_session_for_the_old_one(self) -> None:
        async with (
            ScriptedServer(self._another_session_each_time, banner=True) as server,
            stock_client(server.hosts, session_timeout=2) as client,
        ):
            states: list[str] = []
            move = client.session.state.transition_to

            def moved(state: str) -> None:
                states.append(state)
                move(state)

            client.session.state.transition_to = moved
            assert client.session.last_zxid is None
            await client.get("/x")
            while client.session.session_id == 1:  # noqa: ASYNC110 - stock offers nothing to wait for
                await asyncio.sleep(0.05)
            await client.session.ensure_safe_state()
            assert states == ["suspended", "connected"]  # no state reports that the first session's ephemerals are gone

    async def test_ours_reports_the_end_of_the_old_session(self) -> None:
        async with ScriptedServer(self._another_session_each_time) as server:
            zk = await connect(server.hosts)
            states: list[State] = []
            zk.on_state(lambda state, _generation: states.append(state))
            await zk.read("/x")
            with pytest.raises(SessionExpiredError):
                await asyncio.wait_for(zk.wait_connected(generation=1, after=1), 30)
            assert await zk.wait_connected(after=1) == 2
            assert states == [State.SUSPENDED, State.LOST, State.CONNECTED]
            assert zk.last_zxid == 99
            await zk.close()


class TestFiveTransactionResults:
    """The results of a transaction are the requested paths; sequential names and the errors of operations are lost."""

    @stock
    async def test_stock_drops_names_and_errors(self, zookeeper: str, queue_root: str) -> None:
        async with stock_client(zookeeper, chroot=queue_root) as client:
            transaction = client.begin_transaction()
            transaction.create("/s-", sequential=True)
            transaction.create("/s-", sequential=True)
            assert (await transaction.commit()).created == {"/s-"}
            refused = client.begin_transaction()
            refused.check_version("/", 0)
            refused.delete("/gone")
            result = await refused.commit()
            assert vars(result) == {"checked": set(), "created": set(), "updated": set(), "deleted": set()}
            await client.close()

    async def test_ours_returns_names_and_errors(self, zookeeper: str, queue_root: str, opened: Opener) -> None:
        zk = await opened(zookeeper + queue_root)
        assert await zk.multi([Create("/s-", sequential=True)] * 2) == ["/s-0000000000", "/s-0000000001"]
        with pytest.raises(MultiError, match="operation 1 of the multi: /gone: no such znode"):
            await zk.multi([Check("/", 0), Check("/gone")])


class TestSixStartAndClose:
    """close() while disconnected times out and leaves tasks alive; bad hosts hang start() forever."""

    @stock
    async def test_stock_cannot_close_without_a_connection(self, zookeeper_proxy: ZooKeeperProxy) -> None:
        async with stock_client(zookeeper_proxy.hosts, session_timeout=1.5) as client:
            zookeeper_proxy.refuse()
            zookeeper_proxy.reset_connections()
            await asyncio.sleep(0.05)
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await client.close()
            assert time.monotonic() - began >= 1.4
            assert client.session.heartbeat_handle is not None
            assert client.session.closing

    @stock
    @pytest.mark.parametrize("bad", ["127.0.0.1:port", "{}/chroot"])
    async def test_stock_hangs_at_bad_hosts(self, zookeeper: str, bad: str) -> None:
        async with stock_client(bad.format(zookeeper), started=False) as client:
            assert await hangs(client.start(), 1.0)

    async def test_ours_closes_promptly_and_leaves_nothing(self, zookeeper_proxy: ZooKeeperProxy) -> None:
        before = asyncio.all_tasks()
        zk = await connect(zookeeper_proxy.hosts, session_timeout=60)
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await zk.close()
        assert time.monotonic() - began < 30  # half of a session timeout
        async with asyncio.timeout(30):
            while "aiozkqueue/zookeeper" in repr(asyncio.all_tasks() - before):  # noqa: ASYNC110 - no event reports the last end
                await asyncio.sleep(0.01)

    async def test_ours_refuses_a_bad_port_and_accepts_a_chroot(self, zookeeper: str, queue_root: str) -> None:
        with pytest.raises(InvalidOptionError, match="'port' is not a port"):
            await connect("127.0.0.1:port")
        zk = await connect(zookeeper + queue_root)
        assert await zk.children("/") == []
        await zk.close()


class TestSevenReader:
    """A repeated LOST raises in the read loop; connecting requires the srvr command and a banner."""

    @staticmethod
    async def _says_expired_twice(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number))
        if peer.number == 1:
            xid, _ = await peer.request()
            for _ in range(2):
                peer.send(frame(struct.pack(">iqiiii", -1, -1, 0, 0, -112, 0)))
            peer.send(reply(xid, body=struct.pack(">i", 0) + bytes(68)))
        while True:
            await peer.answer(body=struct.pack(">i", 0) + bytes(68))

    @stock
    async def test_stock_stops_reading_at_the_second_session_expiry(self) -> None:
        async with (
            ScriptedServer(self._says_expired_twice, banner=True) as server,
            stock_client(server.hosts, session_timeout=4) as client,
        ):
            reading = client.session.conn.read_loop_task
            with pytest.raises(exc.TimeoutError):  # although the reply has arrived
                await client.get("/x")
            assert isinstance(reading.exception(), exc.InvalidStateTransition)

    async def test_ours_ends_the_session_and_continues(self) -> None:
        async with ScriptedServer(self._says_expired_twice) as server:
            zk = await connect(server.hosts, session_timeout=60)
            assert (await asyncio.wait_for(zk.read("/x"), 30)).data == b""  # the timeout of a silent connection is 40 s
            assert zk.generation == 2
            await zk.close()

    @staticmethod
    async def _answers(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await peer.keep_alive()

    @stock
    async def test_stock_cannot_connect_to_a_server_without_the_srvr_command(self) -> None:
        async with ScriptedServer(self._answers) as server, stock_client(server.hosts, started=False) as client:
            assert await hangs(client.start(), 1.0)

    async def test_ours_needs_no_probe(self) -> None:
        async with ScriptedServer(self._answers) as server:
            zk = await asyncio.wait_for(connect(server.hosts), 10)
            assert server.connections == 1
            await zk.close()


class TestEightMissing:
    """No TLS, no auth packet, no AddWatch, no multi-read; container znodes ride on create2."""

    @stock
    def test_stock_lacks_these_options_and_requests(self) -> None:
        assert not {"tls", "ssl", "auth"} & set(inspect.signature(aiozk.ZKClient).parameters)
        assert not {Opcode.ADD_WATCH, Opcode.MULTI_READ, Opcode.SET_WATCHES2} & set(protocol.response_xref)
        with pytest.raises(TypeError):
            protocol.SASLRequest(token=b"")

    @stock
    async def test_stock_containers_are_never_collected(self, secure_server: SecureServer, queue_root: str) -> None:
        async with stock_client(secure_server.hosts, chroot=queue_root) as client:
            await client.create("/c", container=True)
            await client.create("/c/x")
            await client.delete("/c/x")
            await asyncio.sleep(1.0)
            assert await client.exists("/c")
            await client.close()

    async def test_our_containers_are_collected(
        self, secure_server: SecureServer, queue_root: str, opened: Opener
    ) -> None:
        zk = await opened(secure_server.hosts)
        await zk.multi([Create(queue_root), Create(f"{queue_root}/c", container=True), Create(f"{queue_root}/c/x")])
        await zk.multi([Delete(f"{queue_root}/c/x")])
        async with asyncio.timeout(30):
            while await zk.exists(f"{queue_root}/c"):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.05)
