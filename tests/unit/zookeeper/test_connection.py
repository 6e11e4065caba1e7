"""A connection on a transport of lists: the bytes that it writes, and the effect of any received bytes on requests."""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.zookeeper import (
    Check,
    ConnectionLossError,
    NoNodeError,
    NotConnectedError,
    ProtocolError,
    SessionExpiredError,
    ThrottledError,
    wire,
)
from aiozkqueue.zookeeper.connection import Connection
from aiozkqueue.zookeeper.dropping import Dropping


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


class Opened:
    """A connection after its handshake."""

    def __init__(self) -> None:
        self.events: list[wire.Event] = []
        self.lost: list[Connection] = []
        self.transport = _Transport()
        self.connection = Connection("h1:2181", on_events=self.events.extend, on_lost=self.lost.append)
        self.connection.connection_made(self.transport)
        self.connected = self.connection.handshake(b"connect")
        self.connection.data_received(frame(struct.pack(">iiqi", 0, 4000, 7, 16) + bytes(16)))

    def request(self) -> asyncio.Future[list[str]]:
        return self.connection.submit(wire.get_children("/a", chroot=""))


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def reply(xid: int, *, error: int = 0, body: bytes = b"", zxid: int = 5) -> bytes:
    return frame(struct.pack(">iqi", xid, zxid, error) + body)


_NO_CHILDREN = struct.pack(">i", 0)


async def test_the_first_frame_is_the_answer_to_the_handshake() -> None:
    connected = await Opened().connected
    assert (connected.session_id, connected.timeout) == (7, 4.0)


async def test_requests_of_one_loop_tick_are_sent_in_one_write() -> None:
    peer = Opened()
    await asyncio.sleep(0)
    peer.transport.written.clear()
    for _ in range(3):
        peer.request()
    peer.connection.ping()
    assert peer.transport.written == []
    await asyncio.sleep(0)
    (written,) = peer.transport.written
    assert [struct.unpack_from(">iii", written, n * 19)[1:] for n in range(3)] == [(1, 8), (2, 8), (3, 8)]


async def test_a_cancelled_request_does_not_disturb_the_order_of_the_others() -> None:
    peer = Opened()
    first, second = peer.request(), peer.request()
    first.cancel()
    peer.connection.data_received(reply(1, body=_NO_CHILDREN) + reply(2, error=-101))
    with pytest.raises(NoNodeError, match="/a"):
        await second
    assert peer.connection.loss is None


async def test_a_lost_connection_fails_pending_requests_at_once_and_sends_no_later_ones() -> None:
    peer = Opened()
    pending = [peer.request(), peer.request()]
    peer.connection.connection_lost(ConnectionResetError("reset by peer"))
    for future in pending:
        assert future.done()
        with pytest.raises(ConnectionLossError, match="reset by peer"):
            await future
    with pytest.raises(NotConnectedError):
        await peer.request()
    assert peer.lost == [peer.connection]


async def test_the_pause_before_requests_to_a_server_that_drops_them_grows_until_it_processes_one() -> None:
    peer = Opened()
    dropping, rests, loop = peer.connection.dropping, list[float](), asyncio.get_running_loop()
    for number in range(1, 5):
        dropped = peer.request()
        peer.connection.data_received(reply(number, error=wire.THROTTLED))
        with pytest.raises(ThrottledError):
            await dropped
        rests.append(dropping.until - loop.time())
        dropping.until = 0.0  # as if the pause had ended
    assert rests[0] > 0
    assert all(after > before for before, after in pairwise(rests))
    carried_out = peer.request()
    peer.connection.data_received(reply(5, body=_NO_CHILDREN))
    assert await carried_out == []
    assert (dropping.since, dropping.until) == (None, 0.0)


async def test_a_server_processes_requests_again_when_a_long_reply_begins_to_arrive() -> None:
    peer = Opened()
    dropped = peer.request()
    peer.connection.data_received(reply(1, error=wire.THROTTLED))
    with pytest.raises(ThrottledError):
        await dropped
    listed = peer.request()
    body = struct.pack(">i", 2) + 2 * (struct.pack(">i", 4) + b"name")
    whole = reply(2, body=body)
    peer.connection.data_received(whole[:-3])
    assert peer.connection.dropping.since is None
    peer.connection.data_received(whole[-3:])
    assert await listed == ["name", "name"]


async def test_a_connection_that_its_peer_closes_knows_the_largest_request_without_an_answer() -> None:
    peer = Opened()
    for size in (5000, 9000, 7000):
        peer.connection.submit(wire.Request(bytes(size), lambda *_: None))
    peer.request()
    peer.connection.data_received(reply(1) + reply(2))
    peer.connection.connection_lost(None)
    assert peer.connection.cut_off == 7004


def event(path: str) -> bytes:
    raw = path.encode()
    return frame(struct.pack(">iqiiii", -1, -1, 0, 3, 3, len(raw)) + raw)


@given(st.lists(st.integers(1, 40)))
def test_replies_are_reassembled_however_the_stream_is_split(cuts: list[int]) -> None:
    async def main() -> None:
        peer = Opened()
        futures = [peer.request() for _ in range(3)]
        body = struct.pack(">i", 2) + (struct.pack(">i", 3) + b"abc") * 2
        stream = reply(1, body=body) + event("/a") + reply(-2) + reply(2, error=-101)
        stream += event("/b") + event("/\u00e9") + event("/c") + event("/d") + reply(3, body=body, zxid=9)
        for cut in cuts:
            peer.connection.data_received(stream[:cut])
            stream = stream[cut:]
        peer.connection.data_received(stream)
        assert (await futures[0], await futures[2]) == (["abc", "abc"],) * 2
        assert peer.events == [wire.Event(3, 3, path) for path in ("/a", "/b", "/\u00e9", "/c", "/d")]
        assert peer.connection.last_zxid == 9

    asyncio.run(main())


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        frame(b""),
        frame(b"short"),
        reply(2, body=_NO_CHILDREN),
        reply(-5),
        reply(-4),
        reply(1, body=struct.pack(">i", 1000)),
        reply(1) + reply(1),
        frame(struct.pack(">iqiii", -1, -1, 0, 3, 3)),
    ],
)
async def test_bytes_outside_the_protocol_end_the_connection_with_that_reason(hostile: bytes) -> None:
    peer = Opened()
    future = peer.request()
    peer.connection.data_received(hostile)
    assert peer.transport.aborted
    with pytest.raises(ConnectionLossError) as lost:
        await future
    assert isinstance(lost.value.__cause__, ProtocolError)


@pytest.mark.parametrize("first", [struct.pack(">i", 65537), frame(b"\0" * 8), frame(b"HTTP/1.1 400 Bad Request")])
async def test_a_first_frame_that_is_not_a_handshake_ends_the_connection(first: bytes) -> None:
    connection = Connection("h1:2181", on_events=lambda _events: None, on_lost=lambda _connection: None)
    connection.connection_made(_Transport())
    connected = connection.handshake(b"connect")
    connection.data_received(first)
    with pytest.raises(ConnectionLossError):
        await connected


@given(st.binary(max_size=300))
def test_any_bytes_leave_the_connection_open_or_every_request_failed(noise: bytes) -> None:
    async def main() -> None:
        peer = Opened()
        futures: list[asyncio.Future[Any]] = [peer.request(), peer.connection.authenticate(b"auth")]
        peer.connection.data_received(noise)
        if peer.connection.loss is not None:
            assert all(future.done() for future in futures)
        peer.connection.connection_lost(None)
        assert all(future.done() for future in futures)

    asyncio.run(main())


async def test_xids_stay_positive_after_two_billion_requests() -> None:
    peer = Opened()
    peer.connection._xid = wire.HIGHEST_XID - 1
    futures = [peer.request(), peer.request()]
    peer.connection.data_received(reply(wire.HIGHEST_XID, body=_NO_CHILDREN) + reply(1, body=_NO_CHILDREN))
    assert await asyncio.gather(*futures) == [[], []]


async def test_a_reply_that_the_session_moved_leaves_the_outcome_unknown() -> None:
    peer = Opened()
    future = peer.request()
    peer.connection.data_received(reply(1, error=-118))
    with pytest.raises(ConnectionLossError, match="moved"):
        await future


async def test_a_multi_refused_for_an_expired_session_raises_session_expired() -> None:
    peer = Opened()
    multi = peer.connection.submit(wire.multi([Check("/a")], chroot="", acl=b""))
    refused = struct.pack(">ibii", -1, 0, -112, -112)
    peer.connection.data_received(reply(1, body=refused + struct.pack(">ibi", -1, 1, -1)))
    with pytest.raises(SessionExpiredError):
        await multi
    assert peer.connection.session_expired
    assert peer.transport.aborted


async def test_requests_that_are_dropped_together_cause_one_pause() -> None:
    dropping = Dropping()
    for _ in range(100):
        dropping.dropped(5.0)
    first = dropping.until - 5.0
    assert 0 < first < 0.1
    dropping.dropped(dropping.until)
    assert dropping.until - first - 5.0 == pytest.approx(2 * first)


async def test_a_notification_of_the_end_of_the_session_ends_the_connection_and_the_session() -> None:
    peer = Opened()
    pending = peer.request()
    peer.connection.data_received(frame(struct.pack(">iqiiii", -1, -1, 0, -1, wire.SESSION_EXPIRED, 0)))
    with pytest.raises(ConnectionLossError, match="has ended the session"):
        await pending
    assert peer.connection.session_expired
