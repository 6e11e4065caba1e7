"""The longest turns of the event loop on very deep queues: ``python -m benchmarks.turns --messages 1000000``.

A turn is the time for which the loop runs one step of a task before another task can run, in CPU seconds of its thread.
Each public operation runs once with each kind of queue that affects it. The longest garbage collection is also shown,
because each string in a list or set makes it longer. ``--where`` shows the stack in which a turn exceeds the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
import time
import traceback
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import aiozkqueue as zq
from aiozkqueue.http.dashboard.readings.letters import LetterFilter, search
from aiozkqueue.http.dashboard.readings.message import details
from aiozkqueue.layout import key_hash
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from types import FrameType

    from aiozkqueue.layout import HistoryRecord

#: MiB of heap for the server: a million items take about 455 MB.
HEAP = 6144
#: Seconds of CPU that a turn may take.
LIMIT = 0.05
#: Znodes created in one request.
BATCH = 2000
MS = 1000
#: Messages that a call takes.
TAKEN = 10
#: Seconds after which a call is cancelled.
PATIENCE = 240


class Turns:
    """The longest turn of the loop, and the longest garbage collection, in CPU seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.collecting = 0.0
        self._began = 0.0

    def collect(self, phase: str, _: object) -> None:
        """Note that a collection starts or stops."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.collecting = max(self.collecting, time.thread_time() - self._began)

    async def watch(self) -> None:
        """Take a step whenever the loop allows."""
        last = time.thread_time()
        while True:
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now


@asynccontextmanager
async def watched() -> AsyncIterator[Turns]:
    """Watch the turns of the loop, except those that collect garbage of earlier operations."""
    gc.collect()
    gc.freeze()
    turns = Turns()
    watch = asyncio.create_task(turns.watch())
    await asyncio.sleep(0)
    gc.callbacks.append(turns.collect)
    try:
        yield turns
    finally:
        gc.callbacks.remove(turns.collect)
        watch.cancel()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        gc.unfreeze()


class Call(NamedTuple):
    """One operation on one queue."""

    name: str
    run: Callable[[], Awaitable[object]]


class Bench:
    """Fills queues of one session and makes the calls."""

    def __init__(self, session: zq.QueueSession, other: zq.QueueSession, messages: int) -> None:
        self.session = session
        self.other = other
        self.messages = messages
        self.core = core_of(session)
        self.zookeeper = self.core.zookeeper

    async def create(self, nodes: Iterable[Create]) -> None:
        """Create znodes, many per request."""
        page: list[Create] = []
        for node in nodes:
            page.append(node)
            if len(page) == BATCH:
                await self.zookeeper.multi(page)
                page = []
        if page:
            await self.zookeeper.multi(page)

    def numbers(self) -> Iterator[tuple[int, str]]:
        """Yield a number and an id for each message."""
        for number in range(self.messages):
            yield number, f"Bench{number:013d}"

    async def open(self, name: str, config: zq.QueueConfig | None = None) -> zq.Queue[bytes]:
        """Return a new queue."""
        queue = self.session.queue(name)
        await queue.configure(config or zq.QueueConfig())
        return queue

    async def items(self, name: str, prefix: Callable[[int, str], str], lanes: tuple[str, ...] = ("items",)) -> None:
        """Create an item for each message, with the name prefix that ``prefix`` returns, in these lanes in turn."""
        base = self.core.queue_state(name).paths.base
        await self.create(
            Create(f"{base}/{lanes[number % len(lanes)]}/{prefix(number, message_id)}", b"", sequential=True)
            for number, message_id in self.numbers()
        )


def _plain(_: int, message_id: str) -> str:
    return f"item-i{message_id}-"


async def _take(
    session: zq.QueueSession, queue: zq.Queue[bytes], number: int = TAKEN, filters: zq.Filter | None = None
) -> None:
    async with session.transaction() as tx:
        taken = await tx.take_many(session.queue(queue.name), number, timeout=60, filters=filters)
        if len(taken) != number:
            raise RuntimeError(f"{len(taken)} messages taken, not {number}")
        await tx.rollback()


async def _drain(source: AsyncIterator[HistoryRecord], most: int | None = None) -> None:
    seen = 0
    async for _ in source:
        seen += 1
        if seen == most:
            break


async def _for_a_while(work: Callable[[], Awaitable[object]], seconds: float = 10) -> None:
    """Run a long operation for some seconds, and cancel it."""
    try:
        async with asyncio.timeout(seconds):
            await work()
    except TimeoutError:
        pass


def _reads(bench: Bench, queue: zq.Queue[bytes]) -> list[Call]:
    session, name = bench.session, queue.name
    sampler = Sampler(session, lambda: [name])
    return [
        Call("take", partial(_take, session, queue)),
        Call("take beside another", partial(_beside, bench, queue)),
        Call("take(timeout=0)", partial(_take_now, session, queue)),
        Call("peek", lambda: queue.peek(10)),
        Call("peek 5,000", lambda: queue.peek(5000)),
        Call("stats", lambda: queue.stats(budget=60)),
        Call("state", partial(_first_state, queue)),
        Call("state of the last", lambda: queue.state(f"Bench{bench.messages - 1:013d}")),
        Call("state of none", lambda: queue.state("nobody")),
        Call("cancel", lambda: queue.cancel(id="nobody")),
        Call("cancel by key", lambda: queue.cancel(key="nobody")),
        Call("update", lambda: queue.update(b"new", id="nobody")),
        Call("release_claims", queue.admin.release_claims),
        Call("unfinished", queue.admin.unfinished),
        Call("ledgers", queue.admin.ledgers),
        Call("consumers", queue.admin.consumers),
        Call("clean", lambda: session.admin.clean(name)),
        Call("diagnose", lambda: session.admin.diagnose(name, budget=120)),
        Call("sample", lambda: sampler.sample_all(0)),
        Call("sample again", lambda: sampler.sample_all(0)),
        Call("lease", lambda: queue.leases.take(10)),
    ]


async def _take_now(session: zq.QueueSession, queue: zq.Queue[bytes]) -> None:
    async with session.transaction() as tx:
        await tx.take_many(session.queue(queue.name), 10)
        await tx.rollback()


async def _beside(bench: Bench, queue: zq.Queue[bytes]) -> None:
    async with bench.other.transaction() as tx:
        await tx.take(bench.other.queue(queue.name), timeout=60)
        await _take(bench.session, queue)
        await tx.rollback()


async def _first_state(queue: zq.Queue[bytes]) -> None:
    (first,) = await queue.peek(1)
    await queue.state(first.id)


async def _ends(bench: Bench, queue: zq.Queue[bytes]) -> list[Call]:
    target = bench.session.queue(f"{queue.name}-target")

    async def move() -> None:
        await bench.session.admin.moves.start(queue, target)
        await asyncio.sleep(20)

    return [
        Call("purge", lambda: _for_a_while(queue.purge)),
        Call("move", move),
    ]


KINDS: dict[str, Callable[[Bench], Awaitable[list[Call]]]] = {}


def _kind(function: Callable[[Bench], Awaitable[list[Call]]]) -> Callable[[Bench], Awaitable[list[Call]]]:
    KINDS[function.__name__.strip("_").replace("_", " ")] = function
    return function


@_kind
async def _simple(bench: Bench) -> list[Call]:
    queue = await bench.open("simple")
    await bench.items("simple", _plain)
    return [*_reads(bench, queue), *await _ends(bench, queue)]


@_kind
async def _groups(bench: Bench) -> list[Call]:
    queue = await bench.open("groups")
    await queue.put(b"", group="first")
    hashes = [key_hash(str(number)) for number in range(1000)]
    await bench.items("groups", lambda number, message_id: f"item-g{hashes[number % 1000]}-i{message_id}-")
    return [*_reads(bench, queue), *await _ends(bench, queue)]


@_kind
async def _own_groups(bench: Bench) -> list[Call]:
    queue = await bench.open("own-groups")
    await queue.put(b"", group="first")
    await bench.items("own-groups", lambda number, message_id: f"item-g{key_hash(str(number))}-i{message_id}-")
    return _reads(bench, queue)


@_kind
async def _ordered(bench: Bench) -> list[Call]:
    queue = await bench.open("ordered", zq.QueueConfig(ordered=True))
    await bench.items("ordered", _plain)
    calls = [call for call in _reads(bench, queue) if not call.name.startswith(("take", "lease"))]
    return [
        Call("take", partial(_take, bench.session, queue, 1)),
        Call("take(timeout=0)", partial(_take_now, bench.session, queue)),
        Call("lease", lambda: queue.leases.take(1)),
        *calls,
    ]


@_kind
async def _filters(bench: Bench) -> list[Call]:
    queue = await bench.open("filters")
    await queue.put(b"", tags={"kind": "a"})
    await queue.put(b"", tags={"kind": "b"})
    zookeeper, paths = bench.zookeeper, bench.core.queue_state("filters").paths
    digests = await zookeeper.children(paths.filters)
    await bench.items("filters", lambda number, message_id: f"item-f{digests[number % 2]}-i{message_id}-")
    where = zq.Filter("kind", "eq", "a")
    return [
        Call("take filtered", partial(_take, bench.session, queue, filters=where)),
        Call("take filtered, few", partial(_take, bench.session, queue, 1, filters=where)),
        *_reads(bench, queue),
    ]


@_kind
async def _ttl(bench: Bench) -> list[Call]:
    queue = await bench.open("ttl", zq.QueueConfig(ttl=timedelta(days=1)))
    end = int((time.time() + 1000) * MS)
    await bench.items("ttl", lambda _, message_id: f"item-e{end}-i{message_id}-")
    return _reads(bench, queue)


@_kind
async def _expired(bench: Bench) -> list[Call]:
    queue = await bench.open("expired", zq.QueueConfig(ttl=timedelta(days=1)))
    end = int((time.time() - 1000) * MS)
    await bench.items("expired", lambda _, message_id: f"item-e{end}-i{message_id}-")
    return [
        Call("stats", lambda: queue.stats(budget=60)),
        Call("clean", lambda: _for_a_while(lambda: bench.session.admin.clean("expired"))),
        Call("take(timeout=0)", partial(_take_now, bench.session, queue)),
    ]


@_kind
async def _affinity(bench: Bench) -> list[Call]:
    queue = await bench.open("affinity", zq.QueueConfig(affinity="producer"))
    await queue.put(b"")
    node = key_hash("another")
    await bench.items("affinity", lambda _, message_id: f"item-n{node}-i{message_id}-")
    return [
        Call("reap", lambda: _for_a_while(lambda: queue.admin.reap(limit=1000))),
        Call("take(timeout=0)", partial(_take_now, bench.session, queue)),
        Call("stats", lambda: queue.stats(budget=60)),
        Call("peek", lambda: queue.peek(10)),
        Call("clean", lambda: bench.session.admin.clean("affinity")),
        Call("diagnose", lambda: bench.session.admin.diagnose("affinity", budget=120)),
    ]


@_kind
async def _collapse(bench: Bench) -> list[Call]:
    queue = await bench.open("collapse", zq.QueueConfig(collapse=True))
    await queue.put(b"", key="first")
    await bench.items("collapse", lambda number, message_id: f"item-k{key_hash(str(number // 2))}-i{message_id}-")
    return _reads(bench, queue)


@_kind
async def _unique(bench: Bench) -> list[Call]:
    queue = await bench.open("unique")
    await queue.put(b"", unique=True)
    await bench.items("unique", lambda number, message_id: f"item-k{key_hash(str(number))}-u1-i{message_id}-")
    paths = bench.core.queue_state("unique").paths
    await bench.create(
        Create(paths.key(key_hash(str(number))), message_id.encode()) for number, message_id in bench.numbers()
    )
    return [
        Call("stats", lambda: queue.stats(budget=60)),
        Call("cancel", lambda: queue.cancel(key="nobody")),
        Call("clean", lambda: bench.session.admin.clean("unique")),
        Call("diagnose", lambda: bench.session.admin.diagnose("unique", budget=120)),
    ]


@_kind
async def _shards(bench: Bench) -> list[Call]:
    queue = await bench.open("shards", zq.QueueConfig(shards=16))
    await queue.put_many([b""] * 100)
    lanes = bench.core.queue_state("shards").config.lanes
    for lane in lanes:
        if not await _exists(bench, f"/zms/shards/{lane}"):
            await bench.zookeeper.multi([Create(f"/zms/shards/{lane}")])
    await bench.items("shards", _plain, tuple(lanes))
    return _reads(bench, queue)


async def _exists(bench: Bench, path: str) -> bool:
    return await bench.zookeeper.exists(path) is not None


@_kind
async def _priorities(bench: Bench) -> list[Call]:
    queue = await bench.open("priorities")
    for priority in (-5, 0, 5):
        await queue.put(b"", priority=priority)
    lanes = bench.core.queue_state("priorities").config.lanes
    await bench.items("priorities", _plain, tuple(lanes))
    return _reads(bench, queue)


@_kind
async def _scheduled(bench: Bench) -> list[Call]:
    queue = await bench.open("scheduled")
    await queue.put(b"", delay=3600)
    now = int(time.time() * MS)
    due = (now // 3_600_000 + 1) * 3_600_000
    if not await _exists(bench, f"/zms/scheduled/later/{due // 3_600_000}"):
        await bench.zookeeper.multi([Create(f"/zms/scheduled/later/{due // 3_600_000}")])
    await bench.items(
        "scheduled", lambda number, message_id: f"item-t{due + number}-i{message_id}-", (f"later/{due // 3_600_000}",)
    )
    calls = [call for call in _reads(bench, queue) if not call.name.startswith(("take", "lease"))]
    return [Call("take(timeout=0)", partial(_take_now, bench.session, queue)), *calls]


@_kind
async def _due(bench: Bench) -> list[Call]:
    queue = await bench.open("due")
    await queue.put(b"", delay=0.1)
    now = int(time.time() * MS)
    hour = now // 3_600_000
    for folder in (hour, hour - 1):
        if not await _exists(bench, f"/zms/due/later/{folder}"):
            await bench.zookeeper.multi([Create(f"/zms/due/later/{folder}")])
    moment = (hour - 1) * 3_600_000
    await bench.items(
        "due", lambda number, message_id: f"item-t{moment + number}-i{message_id}-", (f"later/{hour - 1}",)
    )
    return _reads(bench, queue)


@_kind
async def _leased(bench: Bench) -> list[Call]:
    queue = await bench.open("leased")
    paths = bench.core.queue_state("leased").paths
    await queue.put(b"")
    await queue.leases.take(1, lifetime=3600)
    (lock,) = await bench.zookeeper.children(paths.locks)
    (name,) = await bench.zookeeper.children(paths.due)
    data, _ = await bench.zookeeper.read(f"{paths.locks}/{lock}")
    node, _ = await bench.zookeeper.read(f"{paths.due}/{name}")
    moment = int(name.partition("-")[0])
    await bench.items("leased", _plain)
    await bench.create(Create(paths.lock(message_id), data) for _, message_id in bench.numbers())
    await bench.create(
        Create(paths.due_node(moment + number, message_id), node) for number, message_id in bench.numbers()
    )
    metas = await bench.zookeeper.children(paths.metas)
    meta = (await bench.zookeeper.read(f"{paths.metas}/{metas[0]}"))[0] if metas else b""
    await bench.create(Create(paths.meta(message_id), meta) for _, message_id in bench.numbers())
    await queue.put(b"free")
    calls = [
        call for call in _reads(bench, queue) if call.name not in {"take", "take beside another", "release_claims"}
    ]
    return [
        Call("take", partial(_take, bench.session, queue, 1)),
        *calls,
        Call("release_claims", lambda: _for_a_while(queue.admin.release_claims, 30)),
    ]


@_kind
async def _dead(bench: Bench) -> list[Call]:
    queue = await bench.open("dead")
    paths = bench.core.queue_state("dead").paths
    await bench.create(
        Create(paths.dead(f"item-i{message_id}-{number:010d}"), b"") for number, message_id in bench.numbers()
    )
    letters = queue.dead_letters
    return [
        Call("dead_letters.peek", letters.peek),
        Call("dead_letters.size", letters.size),
        Call("dead_letters.redrive some", lambda: letters.redrive([f"Bench{n:013d}" for n in range(10)])),
        Call("dead_letters.purge some", lambda: letters.purge([f"Bench{n:013d}" for n in range(10, 20)])),
        Call("dead_letters.redrive", lambda: _for_a_while(letters.redrive)),
        Call("dead_letters.purge", lambda: _for_a_while(letters.purge)),
        Call("state", lambda: queue.state(f"Bench{bench.messages // 2:013d}")),
        Call("stats", queue.stats),
        Call("clean", lambda: bench.session.admin.clean("dead")),
        Call("diagnose", lambda: bench.session.admin.diagnose("dead", budget=120)),
        Call("dashboard", lambda: search(queue, LetterFilter(), payloads=False)),
        Call("dashboard, search", lambda: search(queue, LetterFilter("nothing"), payloads=True)),
        Call("dashboard, message", lambda: details(queue, f"Bench{bench.messages // 2:013d}")),
    ]


@_kind
async def _history(bench: Bench) -> list[Call]:
    queue = await bench.open("history", zq.QueueConfig(history=zq.History(most=10_000_000)))
    paths = bench.core.queue_state("history").paths
    await queue.put(b"")
    async with bench.session.transaction() as tx:
        await tx.take(queue, timeout=10)
    (hour,) = (child for child in await bench.zookeeper.children(paths.history) if not child.startswith("."))
    (name,) = await bench.zookeeper.children(paths.record(hour))
    data, _ = await bench.zookeeper.read(paths.record(f"{hour}/{name}"))
    moment = int(name.partition("-")[0])
    await bench.create(
        Create(paths.record(f"{hour}/{moment + number % 1000:013d}-{message_id}"), data)
        for number, message_id in bench.numbers()
    )
    return [
        Call("history, first", lambda: _drain(queue.history(limit=10))),
        Call("history, since", lambda: _drain(queue.history(since=datetime.now(UTC)))),
        Call("history", lambda: _for_a_while(lambda: _drain(queue.history()))),
        Call("state", lambda: queue.state(f"Bench{bench.messages // 2:013d}")),
        Call("stats", queue.stats),
        Call("diagnose", lambda: bench.session.admin.diagnose("history", budget=120)),
        Call("clean", lambda: bench.session.admin.clean("history")),
        Call("clean, half", partial(_halve, bench, queue)),
    ]


async def _halve(bench: Bench, queue: zq.Queue[bytes]) -> None:
    await queue.configure(zq.QueueConfig(history=zq.History(most=bench.messages // 2)))
    await _for_a_while(lambda: bench.session.admin.clean(queue.name))


@_kind
async def _foreign(bench: Bench) -> list[Call]:
    await bench.zookeeper.ensure("/foreign/entries")
    await bench.create(Create(f"/foreign/entries/entry-{100:03d}-", b"", sequential=True) for _ in bench.numbers())
    queue = bench.session.kazoo_queue("/foreign")

    async def take_foreign() -> None:
        async with bench.session.transaction() as tx:
            await tx.take_many(queue, TAKEN, timeout=60)
            await tx.rollback()

    return [
        Call("take", take_foreign),
        Call("peek", lambda: queue.peek(10)),
        Call("stats", queue.stats),
    ]


async def main() -> None:
    """Read the options, fill a queue of each kind on a separate server, and make its calls."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--only", action="append", help="a kind of queue: " + ", ".join(KINDS))
    parser.add_argument("--call", action="append", help="an operation")
    parser.add_argument("--where", action="store_true", help="show the stacks of long turns")
    options = parser.parse_args()

    def show(_: int, frame: FrameType | None) -> None:
        if options.where:
            print("".join(traceback.format_stack(frame)[-7:]), file=sys.stderr)

    signal.signal(signal.SIGVTALRM, show)
    for name, fill in KINDS.items():
        if options.only and name not in options.only:
            continue
        with EmbeddedZooKeeper(ServerOptions(heap=HEAP)) as server:
            async with zq.connect(server.hosts) as session, zq.connect(server.hosts) as other:
                begun = time.monotonic()
                calls = await fill(Bench(session, other, options.messages))
                print(f"{name}: filled in {time.monotonic() - begun:.0f} s", flush=True)
                for call in calls:
                    if not options.call or call.name in options.call:
                        await _measure(call)


async def _measure(call: Call) -> None:
    begun, failure = time.monotonic(), ""
    async with watched() as turns:
        try:
            async with asyncio.timeout(PATIENCE):
                await call.run()
        except (zq.QueueError, TimeoutError, RuntimeError) as error:
            failure = f"  {type(error).__name__}: {error}"[:150]
    took, mark = time.monotonic() - begun, "  *" if turns.longest > LIMIT else ""
    longest, garbage = turns.longest * MS, turns.collecting * MS
    print(f"  {call.name:28} {longest:7.1f} ms, garbage {garbage:7.1f} ms, in {took:6.2f} s{mark}{failure}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
