"""The limit: the server's own capacity, measured by a plain socket with as little Python as possible.

No futures, no retries, no fences; requests are pipelined, with the same bytes that any client must send.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from . import wire
from .measure import BODY, Case, Stopwatch
from .wire import Connection

if TYPE_CHECKING:
    from .measure import Sample, Server

_BASE = b"/benchmark-raw"
_ITEMS = _BASE + b"/items"
_LOCKS = _BASE + b"/locks"
_ITEM = wire.create(_ITEMS + b"/item-", BODY, wire.SEQUENTIAL)

#: Multis in flight.
FLIGHTS = 4
#: Bytes of the items of one multi that fills a queue.
FILL_BYTES = 500_000
#: Single creates in flight.
SINGLES = 1000


def single_creates(server: Server, messages: int) -> Sample:
    """Create items, one per request, pipelined."""
    with Connection(server.first) as connection:
        connection.ensure(_ITEMS)
        with Stopwatch(server) as watch:
            connection.pipeline([(wire.CREATE, _ITEM)] * messages, SINGLES)
        connection.remove(_BASE)
    return watch.sample(messages)


def multi_creates(server: Server, messages: int, *, batch: int = 100) -> Sample:
    """Create items in multis."""
    with Connection(server.first) as connection:
        connection.ensure(_ITEMS)
        multi = wire.MULTI, wire.creates([_ITEM] * batch)
        count = messages // batch
        with Stopwatch(server) as watch:
            connection.pipeline([multi] * count, FLIGHTS)
        connection.remove(_BASE)
    return watch.sample(count * batch)


def lifecycle(server: Server, messages: int, *, batch: int, flights: int = FLIGHTS, item: bytes = _ITEM) -> Sample:
    """Lock items, read them under the locks, and delete items and locks, in multis and batches of the given sizes."""
    with Connection(server.first) as connection:
        connection.ensure(_ITEMS)
        connection.ensure(_LOCKS)
        fill(connection, item, messages)
        with Stopwatch(server) as watch:
            names = sorted(connection.children(_ITEMS))
            batches = deque(names[at : at + batch] for at in range(0, len(names), batch))
            claimed: deque[list[bytes]] = deque()
            # The pending replies, in order: two for a claim, or one for a commit.
            awaited: deque[bool] = deque()
            for _ in range(min(flights, len(batches))):
                claimed.append(_claim(connection, batches.popleft()))
                awaited.append(True)
            while awaited:
                if not awaited.popleft():
                    connection.reply()
                    if batches:
                        claimed.append(_claim(connection, batches.popleft()))
                        awaited.append(True)
                    continue
                connection.reply()
                read = wire.nodes(connection.reply())
                _commit(connection, claimed.popleft(), [version for _, version in read])
                awaited.append(False)
        left = connection.children(_ITEMS)
        connection.remove(_BASE)
    if left:
        raise RuntimeError(f"{len(left)} items are left")
    return watch.sample(messages)


def fill(connection: Connection, item: bytes, messages: int) -> None:
    """Create this many items with the same body, without measuring."""
    batch = min(500, FILL_BYTES // len(item))
    full, rest = divmod(messages, batch)
    multis = [(wire.MULTI, wire.creates([item] * batch))] * full
    if rest:
        multis.append((wire.MULTI, wire.creates([item] * rest)))
    connection.pipeline(multis, FLIGHTS)


def _claim(connection: Connection, names: list[bytes]) -> list[bytes]:
    locks = [wire.create(_LOCKS + b"/lock-" + name, b"me", wire.EPHEMERAL) for name in names]
    reads = [wire.read(_ITEMS + b"/" + name) for name in names]
    connection.send((wire.MULTI, wire.creates(locks)), (wire.MULTI_READ, wire.reads(reads)))
    return names


def _commit(connection: Connection, names: list[bytes], versions: list[int]) -> None:
    gone: list[bytes] = []
    for name, version in zip(names, versions, strict=True):
        gone += (wire.delete(_ITEMS + b"/" + name, version), wire.delete(_LOCKS + b"/lock-" + name))
    connection.send((wire.MULTI, wire.deletes(gone)))


def bundle_creates(server: Server, messages: int, *, size: int = 64, batch: int = 8) -> Sample:
    """Create bundles of messages in multis."""
    item = wire.create(_ITEMS + b"/bundle-", BODY * size, wire.SEQUENTIAL)
    with Connection(server.first) as connection:
        connection.ensure(_ITEMS)
        multi = wire.MULTI, wire.creates([item] * batch)
        count = messages // (batch * size)
        with Stopwatch(server) as watch:
            connection.pipeline([multi] * count, FLIGHTS)
        connection.remove(_BASE)
    return watch.sample(count * batch * size)


def bundle_lifecycle(server: Server, messages: int, *, size: int = 64) -> Sample:
    """Lock bundles, read them, and delete bundles and locks, four at a time."""
    item = wire.create(_ITEMS + b"/bundle-", BODY * size, wire.SEQUENTIAL)
    sample = lifecycle(server, messages // size, batch=4, item=item)
    return sample.times(size)


CASES = [
    Case("raw: single creates", "put", 10_000, single_creates),
    Case("raw: multis of 100 creates", "put", 100_000, multi_creates),
    Case("raw: multis of 8 bundles of 64", "put", 400_000, bundle_creates),
    Case("raw: lock, read, commit of bundles of 64", "take", 200_000, bundle_lifecycle),
    Case("raw: lock, read, commit in 200s", "take", 40_000, partial(lifecycle, batch=200)),
    Case("raw: lock, read, commit in 100s", "take_many", 40_000, partial(lifecycle, batch=100)),
    Case("raw: the same, one batch at a time", "take_many", 40_000, partial(lifecycle, batch=100, flights=1)),
]
