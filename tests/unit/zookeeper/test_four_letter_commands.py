"""The answers of servers to four-letter commands."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.handshake import ask
from aiozkqueue.zookeeper.hosts import Server
from aiozkqueue.zookeeper.interface import Silence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.zookeeper import Answer


@contextmanager
def resetting() -> Iterator[Server]:
    """Run a server that resets each connection when it opens, as ZooKeeper does at its limit."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Server("127.0.0.1", listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def test_a_server_that_resets_connections_is_not_taken_for_an_unreachable_one() -> None:
    with resetting() as server:

        async def answers() -> set[Answer]:
            return {await ask(server, "srvr", None) for _ in range(200)}

        assert asyncio.run(answers()) == {Silence.CLOSED}
    assert asyncio.run(ask(server, "srvr", None)) is Silence.UNREACHABLE
