"""A server that replies with arbitrary bytes: a typed error in time, bounded memory, and no hang."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiozkqueue as zq
from tests.integration.zookeeper.scripted_server import Peer, ScriptedServer, connected, frame, reply
from tests.security.fuzzing import FUZZ, LONG

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(3600 if LONG else 300)

integers = st.sampled_from([0, 1, -1, 2, -2, 4, 5, 14, 22, 2**31 - 1, -(2**31), 1024]) | st.integers(
    -(2**31), 2**31 - 1
)
#: Each example takes as long as the client tries to connect.
FEW = settings(FUZZ, max_examples=LONG or 8)
#: The parts of a reply's body: any lengths and counts, stats, ends, random bytes.
bodies = st.lists(
    integers.map(lambda number: struct.pack(">i", number)) | st.binary(max_size=80) | st.just(bytes(68)), max_size=8
).map(b"".join)
#: An error code and a body; or bytes instead of the whole reply.
answers = st.tuples(st.sampled_from([0, 0, 0, -101, -110, -102, -112, -4]) | integers, bodies) | st.binary(max_size=60)


@FEW
@given(script=st.lists(answers, min_size=1, max_size=6), raw=st.booleans())
def test_replies_of_any_bytes_end_in_a_typed_error(
    script: Sequence[tuple[int, bytes] | bytes],
    raw: bool,  # noqa: FBT001 -- Hypothesis gives it by name
) -> None:
    async def serve(peer: Peer) -> None:
        await peer.asked()
        peer.send(connected(7))
        for answer in script:
            xid, _ = await peer.request()
            if isinstance(answer, bytes):
                peer.send(answer if raw else frame(answer))
            else:
                peer.send(reply(xid, error=answer[0], body=answer[1]))
        peer.drop()

    async def use() -> None:
        async with ScriptedServer(serve) as server, asyncio.timeout(60):
            with suppress(zq.QueueError):
                async with zq.connect(server.hosts, session_timeout=0.5, connect_timeout=0.1) as session:
                    async with asyncio.timeout(0.1):
                        await session.queue("q").put(b"1")

    with suppress(TimeoutError):  # raised by the put, which waits for a connection until its timeout
        asyncio.run(use())


@FEW
@given(first=st.binary(max_size=80), whole=st.booleans())
def test_a_handshake_of_any_bytes_opens_no_connection(
    first: bytes,
    whole: bool,  # noqa: FBT001 -- Hypothesis gives it by name
) -> None:
    async def serve(peer: Peer) -> None:
        await peer.asked()
        peer.send(frame(first) if whole else first)
        peer.drop()

    async def use() -> None:
        async with ScriptedServer(serve) as server, asyncio.timeout(60):
            with pytest.raises(zq.ConnectionLostError):
                async with zq.connect(server.hosts, session_timeout=0.5, connect_timeout=0.1):
                    pass

    asyncio.run(use())
