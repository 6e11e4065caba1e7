"""The targets of streams, reads and writes through Spark, next to the lower limit that Spark itself sets.

All cases run in ``local[2]`` with bundles of 64. The lower limit is a stream whose source reads nothing: its tasks
create the rows. The other cases do not depend on throughput: the writes of an idle stream, the first batch among many
delayed messages, and the server's heap.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.testing.node import four_letters

from .absent import AbsentError
from .bars import FIRST_BATCH, IDLE_STREAM, MILLION, READ, WRITE, stream_name
from .deep import live_heap
from .measure import Case, Sample, Stopwatch
from .on_spark import batches_of, drain, fill, measured, next_queue, read, spark, started, stream_of, write
from .ours import BUNDLED, remove, take_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .measure import Server
    from .on_spark import Local

BUNDLE: Final = 64
#: Ready and delayed messages in the measurement of the first batch.
READY, DELAYED = 1000, 1_000_000
#: Seconds for which an idle stream is observed.
IDLE: Final = 5.0
HOUR: Final = 3600


def floor(local: Local, options: Mapping[str, str], messages: int, *, most: int) -> Mapping[str, float]:
    """Run a stream of rows that are not stored on a server."""
    from .nothing_source import NothingSource  # noqa: PLC0415 - imports Spark, which takes a second

    local.session.dataSource.register(NothingSource)
    stream = local.session.readStream.format("nothing").option("messages", messages).option("most", most)
    _, steady = batches_of(local, stream, options["queue"], messages)
    return {"steady_rate": steady}


def idle(server: Server, messages: int) -> Sample:
    """Observe a stream that has read these messages and waits for more."""
    local = spark()
    options = next_queue(server)
    try:
        asyncio.run(fill(options, messages, BUNDLE))
        query = started(local, stream_of(local, options), options["queue"])
        try:
            while sum(progress["numInputRows"] for progress in query.recentProgress) < messages:
                time.sleep(0.01)
            time.sleep(2)
            with Stopwatch(server) as watch:
                before = _transactions(server)
                time.sleep(IDLE)
                after = _transactions(server)
        finally:
            query.stop()
        return watch.sample(messages, writes_per_s=(after - before) / IDLE)
    finally:
        remove(server)


def first_batch(server: Server, messages: int) -> Sample:
    """Measure the first batch of a stream: a few ready messages among many that are due this hour."""
    local = spark()
    warm, options = next_queue(server), next_queue(server)
    if (left := HOUR - time.time() % HOUR) < HOUR / 6:
        time.sleep(left + 1)  # all of them must be due in one hour, after the measurement
    due = HOUR * (time.time() // HOUR + 1) - 1
    try:
        asyncio.run(fill(warm, messages, BUNDLE))
        batches_of(local, stream_of(local, warm), warm["queue"], messages)
        asyncio.run(fill(options, DELAYED * messages // READY, BUNDLE, due))
        asyncio.run(fill(options, messages, BUNDLE))
        query = started(local, stream_of(local, options), options["queue"])
        try:
            with Stopwatch(server) as watch:
                while not (batches := [progress for progress in query.recentProgress if progress["numInputRows"]]):
                    time.sleep(0.01)
        finally:
            query.stop()
        spent: Mapping[str, float] = batches[0]["durationMs"]
        return watch.sample(
            messages, batch_s=spent["triggerExecution"] / 1000, latest_offset_s=spent["latestOffset"] / 1000
        )
    finally:
        remove(server)


def heap(server: Server, messages: int) -> Sample:
    """Measure the live heap of the server while messages wait that Spark has written."""
    local = spark()
    options = next_queue(server)
    pid = server.processes[0].pid
    try:
        asyncio.run(fill(options, 0, BUNDLE))
        with Stopwatch(server) as watch:
            write(local, options, messages, partitions=2)
        live = live_heap(pid)
        if live is None:
            msg = "jcmd is missing: install a JDK instead of a JRE"
            raise AbsentError(msg)
        return watch.sample(messages, heap_GiB=live / 2**30)
    finally:
        remove(server)


def _transactions(server: Server) -> int:
    """Return the number of the server's last transaction."""
    found = re.search(r"Zxid: 0x([0-9a-f]+)", four_letters(server.ports[0], "srvr"))
    assert found is not None  # noqa: S101 - every version shows it
    return int(found[1], 16)


_measured = partial(measured, bundle=BUNDLE)
_deep = partial(_measured, depth=1)


def _case(name: str, messages: int, run: Callable[[Server, int], Sample]) -> Case:
    return Case(name, "spark targets", messages, run, rounds=3)


CASES = [
    _case("direct: take_many(100), 1 task, bundles", 90_000, partial(BUNDLED, drain=partial(take_many, tasks=1))),
    *(
        case
        for most, messages in ((20_000, 100_000), (100_000, 300_000))
        for case in (
            _case(stream_name(most), messages, partial(_deep, work=partial(drain, partitions=2, most=most))),
            _case(f"{stream_name(most)}, no server", messages, partial(_measured, work=partial(floor, most=most))),
        )
    ),
    _case(READ, 300_000, partial(_deep, work=partial(read, schema=None))),
    _case(WRITE, 300_000, partial(_measured, work=partial(write, partitions=2))),
    _case(IDLE_STREAM, READY, idle),
    _case(FIRST_BATCH, READY, first_batch),
    _case(MILLION, 1_000_000, heap),
]
