"""kazoo's two queues in one thread, used as documented."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kazoo.client import KazooClient

from . import wire
from .measure import BODY, Case, Stopwatch
from .raw import fill
from .wire import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .measure import Sample, Server

_BASE = "/benchmark-kazoo"


@contextmanager
def _client(server: Server, entries: str, messages: int) -> Iterator[KazooClient]:
    """Yield a client, with entries below a path; remove all znodes afterwards."""
    with Connection(server.first) as connection:
        path = entries.encode()
        connection.ensure(path)
        fill(connection, wire.create(path + b"/entry-100-", BODY, wire.SEQUENTIAL), messages)
    client = KazooClient(server.hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
        with Connection(server.first) as connection:
            connection.remove(_BASE.encode())


def put(server: Server, messages: int) -> Sample:
    """Put one entry after the other."""
    with _client(server, _BASE, 0) as client:
        queue = client.Queue(_BASE)
        with Stopwatch(server) as watch:
            for _ in range(messages):
                queue.put(BODY)
        return watch.sample(messages)


def get(server: Server, messages: int) -> Sample:
    """Get from a `Queue`: at most once."""
    with _client(server, _BASE, messages) as client:
        queue = client.Queue(_BASE)
        with Stopwatch(server) as watch:
            for _ in range(messages):
                if queue.get() is None:
                    raise RuntimeError("an entry is missing")
        return watch.sample(messages)


def get_locked(server: Server, messages: int) -> Sample:
    """Get from a `LockingQueue`, and consume."""
    with _client(server, f"{_BASE}/entries", messages) as client:
        queue = client.LockingQueue(_BASE)
        with Stopwatch(server) as watch:
            for _ in range(messages):
                if queue.get(30) is None or not queue.consume():
                    raise RuntimeError("an entry is missing")
        return watch.sample(messages)


CASES = [
    Case("kazoo Queue: put", "put", 1_000, put),
    Case("kazoo Queue: get", "take", 1_000, get),
    Case("kazoo LockingQueue: get, consume", "take", 400, get_locked),
]
