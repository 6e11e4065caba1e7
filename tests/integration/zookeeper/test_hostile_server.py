"""Hostile replies of a server: a typed error in time, bounded memory, and a client that recovers with the server."""

from __future__ import annotations

import asyncio
import struct
import time
import tracemalloc

import pytest

import aiozkqueue
from aiozkqueue import ConnectionLostError
from aiozkqueue.zookeeper import (
    Auth,
    Check,
    ConnectionLossError,
    Create,
    ProtocolError,
    State,
    ZooKeeperClient,
    connect,
)
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer, connected, frame, reply


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", 2**31 - 1) + b"x" * 1000,
        struct.pack(">i", -5),
        frame(b""),
        frame(b"\0" * 10),
        frame(struct.pack(">iiqi", 0, 4000, 1, 2**31 - 1)),
        frame(struct.pack(">iiqi", 0, -4000, 1, 16) + bytes(16)),
        connected(1)[:20],
    ],
)
async def test_an_invalid_handshake_fails_the_connect_with_an_error_that_names_the_hosts(first: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(first)
        await asyncio.sleep(0.01)

    async with ScriptedServer(script) as server:
        with pytest.raises(ConnectionLossError, match=server.hosts):
            await connect(server.hosts, connect_timeout=0.3, session_timeout=1.0)


@pytest.mark.parametrize("kind", ["old", "ClickHouse"])
async def test_a_server_without_the_requests_of_zookeeper_3_6_is_refused_when_connecting(kind: str) -> None:
    # ZooKeeper 3.4 and 3.5 answer an unknown request at once, before earlier requests, and then close the connection.
    # ClickHouse Keeper closes it without an answer.
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        xid, _ = await peer.request()
        if kind == "old":
            peer.send(reply(xid + 1, error=-6) + reply(xid, error=-6))

    began = time.monotonic()
    async with ScriptedServer(script) as server:
        with pytest.raises(ConnectionLostError, match=rf"{server.hosts}.* ZooKeeper 3\.6"):
            async with aiozkqueue.connect(server.hosts, connect_timeout=3, session_timeout=6):
                pytest.fail("the session was opened")
    assert kind == "ClickHouse" or time.monotonic() - began < 3


async def test_credentials_that_are_refused_while_the_version_is_checked_are_an_error_of_access() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await peer.packet()  # the credentials
        peer.send(reply(-4, error=0 if peer.number == 1 else -115))
        if peer.number == 1:
            await peer.request()  # the check; its connection is lost

    async with ScriptedServer(script) as server:
        with pytest.raises(aiozkqueue.AccessDeniedError):
            async with aiozkqueue.connect(server.hosts, auth=[Auth.digest("user", "secret")], connect_timeout=10):
                pytest.fail("the session was opened")


_GARBAGE = [
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", -1) + b"x" * 100,
    frame(b""),
    reply(77),
    reply(1, body=b"\0\0"),
    reply(1, body=struct.pack(">i", 2**31 - 1) + b"x" * 50),
    reply(1, body=struct.pack(">ibi", 99, 0, 0)),
]


@pytest.mark.parametrize("garbage", _GARBAGE)
async def test_an_invalid_reply_is_a_typed_error_for_reads_and_unknown_for_writes(garbage: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await peer.request()
        peer.send(garbage)
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        with pytest.raises(ConnectionLossError) as unknown:
            await asyncio.wait_for(zk.multi([Create("/a")]), 30)
        assert isinstance(unknown.value.__cause__, ProtocolError)
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(zk.read_many(["/a"]), 30)
        await asyncio.wait_for(zk.wait_connected(generation=1), 30)
        await zk.close()


async def test_a_truncated_reply_is_a_connection_loss_at_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=60_000))
        await peer.request()
        if peer.number == 1:
            peer.send(reply(1, body=bytes(100))[:50])
            await asyncio.sleep(0.01)
            return
        peer.send(reply(1, body=struct.pack(">i", 0)))
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        assert await asyncio.wait_for(zk.children("/"), 20) == []  # the timeout of a silent connection is 40 s
        await zk.close()


async def test_a_frame_length_of_a_gigabyte_allocates_no_memory() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await peer.request()
        peer.send(reply(1, body=struct.pack(">i", 2**30)))
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError):
                await zk.children("/")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
            await zk.close()


async def test_a_client_backs_off_from_a_server_that_drops_every_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        await asyncio.sleep(0.001)

    async with ScriptedServer(script) as server:
        zk = ZooKeeperClient((await connect(server.hosts))._session)
        before = server.connections
        await asyncio.sleep(1.5)
        assert server.connections - before < 15
        assert zk.state in {State.CONNECTED, State.SUSPENDED}
        await zk.close()


async def test_unexpected_notifications_are_ignored() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        for kind in (-1, 0, 1, 4, 5, 7, 99):
            path = b"/x"
            peer.send(frame(struct.pack(">iqiiii", -1, -1, 0, kind, 3, len(path)) + path))
        await peer.answer(body=struct.pack(">ibi", 13, 0, 0) + struct.pack(">ibi", -1, 1, -1))
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        assert await zk.multi([Check("/")]) == [None]
        await zk.close()


async def test_a_connection_that_answers_only_pings_is_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=600))
        while True:  # `request` answers pings
            await peer.request()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=0.6)
        with pytest.raises(ConnectionLossError, match="1 requests without an answer for"):
            await asyncio.wait_for(zk.multi([Create("/a")]), 30)
        await zk.close()


async def test_a_connection_that_sends_a_reply_byte_by_byte_is_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=600))
        xid, _ = await peer.request()
        for byte in reply(xid, body=struct.pack(">i", 10_000) + b"\0\0\0\1a" * 10_000):
            peer.send(bytes((byte,)))
            await asyncio.sleep(0.05)

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=0.6)
        with pytest.raises(ConnectionLossError, match="1 requests without an answer for"):
            await asyncio.wait_for(zk.multi([Create("/a")]), 30)
        await zk.close()


async def test_a_client_leaves_a_server_that_has_ended_its_stream_and_reads_nothing_at_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number, timeout=60_000))
        await peer.request()
        peer._reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer._writer.write_eof()
        await asyncio.sleep(60)

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=60.0)
        # More than the buffers of the sockets hold.
        sent = [zk.multi([Create("/a", b"x" * 1_000_000)]) for _ in range(20)]
        await asyncio.wait(sent, timeout=30)  # before the timeout of a silent connection
        assert {str(answer.exception()) for answer in sent if answer.done()} == {
            f"connection to {server.hosts} lost: closed by the server"
        }
        zk._session.kill()  # the server does not answer a close


@pytest.mark.parametrize("requests", [0, 1])
@pytest.mark.parametrize("path", [b"/x", "/é".encode()], ids=["ascii", "unicode"])
async def test_a_connection_that_carries_only_notifications_is_closed(requests: int, path: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number, timeout=600))
        event = frame(struct.pack(">iqiiii", -1, -1, 0, 3, 3, len(path)) + path)
        while True:  # neither requests nor pings are answered
            peer.send(event * 2000)
            await asyncio.sleep(0.02)

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=0.6)
        waiting = [zk.multi([Create("/a")]) for _ in range(requests)]
        lost = asyncio.Event()
        zk.on_state(lambda state, _: lost.set() if state is State.SUSPENDED else None)
        await asyncio.wait_for(lost.wait(), 30)
        for answer in waiting:
            with pytest.raises(ConnectionLossError, match="1 requests without an answer for"):
                await answer
        zk._session.kill()  # the server does not answer a close


@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.BlockedLoopWarning")
async def test_a_silent_connection_is_closed_although_the_loop_is_often_late() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(peer.number, timeout=1200))
        await asyncio.sleep(60)

    async with ScriptedServer(script) as server, asyncio.timeout(30):
        zk = await connect(server.hosts, session_timeout=1.2)
        while zk.state is State.CONNECTED:
            end = time.monotonic() + 0.25  # delays timers by about two twelfths of the session timeout
            while time.monotonic() < end:
                pass
            await asyncio.sleep(0.01)
        zk._session.kill()  # the server does not answer a close


async def test_a_client_waits_for_a_long_reply_over_a_slow_connection() -> None:
    names = [b"%07d" % number for number in range(60_000)]
    body = struct.pack(">i", len(names)) + b"".join(struct.pack(">i", 7) + name for name in names)

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1, timeout=1500))
        xid, _ = await peer.request()
        whole = reply(xid, body=body)
        # Ten parts, which take three times as long as the timeout of a silent connection.
        for begin in range(0, len(whole), 70_000):
            peer.send(whole[begin : begin + 70_000])
            await asyncio.sleep(0.3)
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=1.5)
        assert len(await asyncio.wait_for(zk.children("/"), 60)) == len(names)
        assert server.connections == 1
        await zk.close()


@pytest.mark.parametrize("error", [-112, -101])
async def test_a_client_backs_off_from_a_server_that_refuses_every_request(error: int) -> None:
    requests = 0

    async def script(peer: Peer) -> None:
        nonlocal requests
        await peer.asked()
        peer.send(connected(peer.number, timeout=60_000))
        while True:
            await peer.answer(error=error)
            requests += 1

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts, session_timeout=60)
        ensured = asyncio.create_task(zk.ensure("/a/b/c"))
        await asyncio.wait([ensured], timeout=3)
        assert server.connections < 30
        assert requests < 600
        ensured.cancel()
        await asyncio.gather(ensured, return_exceptions=True)
        await zk.close()


async def test_a_server_that_denies_the_existence_of_created_parents_causes_a_typed_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        while True:
            await peer.answer(error=-101)

    async with ScriptedServer(script) as server:
        with pytest.raises(ProtocolError, match="does not find the parent of /"):
            await asyncio.wait_for(connect(server.hosts + "/chroot/of/ours", connect_timeout=None), 30)


async def test_a_listing_of_empty_names_is_refused_at_the_first_name() -> None:
    count = 20_000_000

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(1))
        xid, _ = await peer.request()
        peer.send(reply(xid, body=struct.pack(">i", count) + bytes(4 * count)))
        await peer.keep_alive()

    async with ScriptedServer(script) as server:
        zk = await connect(server.hosts)
        with pytest.raises(ProtocolError, match="a name of 0 bytes"):
            await asyncio.wait_for(zk.children("/"), 30)
        await zk.close()
