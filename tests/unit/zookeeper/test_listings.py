"""A listing that arrives in pieces: the names are those of the whole listing, and no length is trusted."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiozkqueue.zookeeper import ConnectionLossError, NoNodeError, ProtocolError, wire
from aiozkqueue.zookeeper.connection import MAX_REPLY
from aiozkqueue.zookeeper.listings import Collected, Listing
from tests.unit.zookeeper.test_connection import Opened, frame, reply

_names = st.one_of(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20), max_size=12),
    # Names of the same length, or nearly: the fast path reads them by their length until a length differs.
    st.integers(1, 130).flatmap(
        lambda size: st.lists(
            st.one_of(
                st.text("ab\0\4\5\x7f", min_size=size, max_size=size),
                st.text("aé", min_size=max(1, size - 1), max_size=size),
            ),
            max_size=12,
        )
    ),
)
_cuts = st.lists(st.integers(0, 400), max_size=8)


class Names:
    """A collector that keeps all names, in the pieces in which they arrive."""

    def __init__(self) -> None:
        self.pieces: list[list[str]] = []

    def take(self, names: list[str]) -> None:
        self.pieces.append(names)

    @property
    def all(self) -> list[str]:
        return [name for piece in self.pieces for name in piece]


class Once:
    """A collector that fails at the second piece."""

    def __init__(self) -> None:
        self.pieces = 0

    def take(self, names: list[str]) -> None:
        self.pieces += 1
        if self.pieces > 1:
            raise LookupError(f"enough: {names}")


def body(names: list[str]) -> bytes:
    encoded = [name.encode() for name in names]
    return struct.pack(">i", len(names)) + b"".join(struct.pack(">i", len(name)) + name for name in encoded)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut_at, len(data)) for cut_at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def asked(peer: Opened) -> tuple[asyncio.Future[Collected[Names]], list[Names]]:
    """Request a listing into collectors; return it with the list of all collectors that were created."""
    made: list[Names] = []

    def collector() -> Names:
        made.append(Names())
        return made[-1]

    return peer.connection.submit(wire.collect_children("/a", collector, chroot="")), made


@settings(deadline=None)
@given(_names, _cuts)
def test_names_are_the_same_however_the_listing_is_split(names: list[str], cuts: list[int]) -> None:
    collected, data = Names(), body(names)
    listing = Listing(len(data), collected.take, "done")
    for piece in cut(data, cuts):
        listing.feed(piece)
    assert listing.finish() == "done"
    assert collected.all == names
    assert [] not in collected.pieces


@settings(deadline=None)
@given(_names, _cuts, st.integers(1, 400))
def test_a_truncated_listing_is_refused_and_yields_no_wrong_name(
    names: list[str], cuts: list[int], missing: int
) -> None:
    data = body(names)
    short = data[: max(0, len(data) - missing)]
    collected = Names()
    listing = Listing(len(short), collected.take, None)

    def read() -> None:
        for piece in cut(short, cuts):
            listing.feed(piece)
        listing.finish()

    with pytest.raises(ProtocolError):
        read()
    assert collected.all == names[: len(collected.all)]


@settings(deadline=None)
@given(st.binary(max_size=200), _cuts)
def test_random_bytes_are_read_or_refused_in_pieces_as_in_one(noise: bytes, cuts: list[int]) -> None:
    def read(pieces: list[bytes]) -> list[str] | None:
        collected = Names()
        listing = Listing(len(noise), collected.take, collected)
        try:
            for piece in pieces:
                listing.feed(piece)
            return listing.finish().all
        except ProtocolError:
            return None

    assert read(cut(noise, cuts)) == read([noise])


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -2),
        struct.pack(">ii", 2, 2**31 - 1),
        struct.pack(">ii", 2, -2),
    ],
)
def test_an_impossible_count_or_length_is_refused_before_the_rest_arrives(hostile: bytes) -> None:
    listing = Listing(1_000_000, list[object]().append, None)
    with pytest.raises(ProtocolError):
        listing.feed(hostile)


def test_the_pieces_of_an_endless_name_are_joined_only_once() -> None:
    """Joining the name again with each of 16,000 pieces would copy 130 GB."""
    collected, name = Names(), "x" * 2**24
    data = body([name])
    listing = Listing(len(data), collected.take, None)
    for start in range(0, len(data), 2**10):
        listing.feed(data[start : start + 2**10])
    listing.finish()
    assert collected.all == [name]


def test_a_listing_holds_at_most_one_piece_in_memory() -> None:
    data = body([f"item-{number:030d}" for number in range(200_000)])
    counted: list[int] = []
    listing = Listing(len(data), lambda names: counted.append(len(names)), None)
    view = memoryview(data)
    tracemalloc.start()
    try:
        for start in range(0, len(data), 2**16):
            listing.feed(bytes(view[start : start + 2**16]))
        listing.finish()
        assert tracemalloc.get_traced_memory()[1] < len(data) // 10
    finally:
        tracemalloc.stop()
    assert sum(counted) == 200_000


# On a connection


@settings(deadline=None)
@given(_names, st.lists(st.integers(1, 60), max_size=20))
def test_replies_and_events_around_a_listing_are_all_received(names: list[str], sizes: list[int]) -> None:
    async def main() -> None:
        peer = Opened()
        first, (listed, _), (missing, unmade), plain = peer.request(), asked(peer), asked(peer), peer.request()
        event = frame(struct.pack(">iqiiii", -1, -1, 0, 3, 3, 2) + b"/a")
        stream = reply(1, body=body(["a"])) + event + reply(2, body=body(names), zxid=7) + event + reply(-2)
        stream += reply(3, error=-101) + reply(4, body=body(names), zxid=9) + event
        for size in sizes:
            peer.connection.data_received(stream[:size])
            stream = stream[size:]
        peer.connection.data_received(stream)
        assert (await listed).result().all == names
        assert await first == ["a"]
        with pytest.raises(NoNodeError, match="/a"):
            await missing
        assert unmade == []
        assert await plain == names
        assert len(peer.events) == 3
        assert peer.connection.last_zxid == 9
        assert peer.connection.answered == 4

    asyncio.run(main())


async def test_names_are_passed_on_before_the_reply_is_complete_and_its_zxid_only_then() -> None:
    peer = Opened()
    listed, made = asked(peer)
    data = reply(1, body=body(["abc", "def", "ghi"]), zxid=77)
    peer.connection.data_received(data[:-6])
    assert made[0].all == ["abc", "def"]
    assert not listed.done()
    assert peer.connection.last_zxid != 77
    peer.connection.data_received(data[-6:])
    assert (await listed).result() is made[0]
    assert made[0].all == ["abc", "def", "ghi"]
    assert peer.connection.last_zxid == 77


async def test_a_connection_lost_during_a_listing_fails_it_and_later_requests() -> None:
    peer = Opened()
    (listed, _), behind = asked(peer), peer.request()
    peer.connection.data_received(reply(1, body=body(["abc", "def"]))[:-3])
    peer.connection.connection_lost(ConnectionResetError("reset by peer"))
    for future in (listed, behind):
        with pytest.raises(ConnectionLossError, match="reset by peer"):
            await future


async def test_a_listing_that_becomes_malformed_ends_the_connection() -> None:
    peer = Opened()
    (listed, _), behind = asked(peer), peer.request()
    hostile = struct.pack(">i", 3) + b"\0\0\0\3abc" + struct.pack(">i", 2**30)
    peer.connection.data_received(reply(1, body=hostile + bytes(100))[:-50])
    assert peer.transport.aborted
    for future in (listed, behind):
        with pytest.raises(ConnectionLossError) as lost:
            await future
        assert isinstance(lost.value.__cause__, ProtocolError)


async def test_a_cancelled_listing_gets_no_more_names_and_the_next_reply_is_read() -> None:
    peer = Opened()
    (listed, made), behind = asked(peer), peer.request()
    data = reply(1, body=body(["abc", "def", "ghi"]))
    peer.connection.data_received(data[:-6])
    listed.cancel()
    peer.connection.data_received(data[-6:] + reply(2, body=body(["x"])))
    assert await behind == ["x"]
    assert made[0].all == ["abc", "def"]
    assert peer.connection.loss is None


async def test_an_error_of_a_collector_is_raised_to_its_caller_and_the_connection_stays_open() -> None:
    peer = Opened()
    listed = peer.connection.submit(wire.collect_children("/a", Once, chroot=""))
    behind = peer.request()
    data = reply(1, body=body(["abc", "def", "ghi"])) + reply(2, body=body(["x"]))
    peer.connection.data_received(data[:40])
    peer.connection.data_received(data[40:])
    with pytest.raises(LookupError, match="enough"):
        (await listed).result()
    assert await behind == ["x"]


async def test_a_listing_over_the_size_limit_is_refused_at_its_header() -> None:
    peer = Opened()
    listed, made = asked(peer)
    peer.connection.data_received(struct.pack(">iiqi", MAX_REPLY + 1, 1, 5, 0) + body(["abc"]))
    with pytest.raises(ConnectionLossError, match="announced"):
        await listed
    assert made == []


async def test_data_that_arrives_while_a_long_listing_is_read_is_read_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS delivers data that it decrypted before the transport paused."""
    peer = Opened()
    monkeypatch.setattr(peer.transport, "pause_reading", lambda: None)
    monkeypatch.setattr(peer.transport, "resume_reading", lambda: None)
    names = [f"{number:09}" for number in range(20_000)]
    (listed, _), later = asked(peer), peer.request()
    whole = reply(1, body=body(names)) + reply(2, body=body(["last"]))
    peer.connection.data_received(whole[:150_000])
    peer.connection.data_received(whole[150_000:])
    assert (await listed).result().all == names
    assert await later == ["last"]
