"""The memory of driver and tasks does not grow with the queue, as a queue fifteen times as deep shows."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import aiozkqueue as zq
from aiozkqueue.operations.batch_writers import marks_of
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.connection import linked
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.reading import QueueReader
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozkqueue.spark.connection import Link

pytestmark = pytest.mark.timeout(180)

SHALLOW, DEEP = 4_000, 61_000
SHARE = 2_000
MIB = 2**20


def peak(work: Callable[[], object]) -> int:
    """Return the maximum memory use in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fill(options: dict[str, str], messages: int) -> None:
    async def put() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue(options["queue"])
            await queue.put_many([b"x"] * 1000)  # creates the queue
            for _ in range(1, messages // 1000, 3):
                await asyncio.gather(*(queue.put_many([b"x"] * 1000) for _ in range(3)))

    asyncio.run(put())


@pytest.fixture(scope="module")
def queues() -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The options of two queues on a temporary server; the second is fifteen times as deep as the first."""
    with EmbeddedZooKeeper(ServerOptions(fsync=False)) as server:
        shallow, deep = ({"hosts": server.hosts, "root": "/zms", "queue": name} for name in ("shallow", "deep"))
        fill(shallow, SHALLOW)
        fill(deep, DEEP)
        yield shallow, deep


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.spark.reading.SHARE", SHARE)
    monkeypatch.setattr("aiozkqueue.batches.making.BACKLOG", SHARE)
    monkeypatch.setattr("aiozkqueue.batches.making.MOST", SHARE)


def read_one_share(options: dict[str, str]) -> None:
    parsed = parse_options(options)
    reader = QueueReader(default_schema(parsed.content), parsed)
    shares = reader.partitions()
    rows = sum(batch.num_rows for batch in reader.read(shares[0]))
    assert 0.7 * SHARE < rows < 1.3 * SHARE


def choose_a_batch(options: dict[str, str]) -> None:
    parsed = parse_options({**options, "group": uuid4().hex})
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        offset = reader.latestOffset({"seq": -1}, ReadMaxRows(100))
        shares = reader.partitions({"seq": -1}, offset)
        assert sum(share.messages for share in shares) == 100
    finally:
        reader.stop()


def begin_to_write_by_a_column(options: dict[str, str]) -> None:
    with linked(parse_options({**options, "idColumn": "id"})) as link:
        assert link.call(_marks_of, link) == set()


async def _marks_of(link: Link) -> set[str]:
    return await marks_of(QueueHandle(link.runtime, link.state), "b" + "x" * 32)


@pytest.mark.parametrize("work", [read_one_share, choose_a_batch, begin_to_write_by_a_column])
def test_memory_use_does_not_grow_with_the_depth_of_a_queue(
    queues: tuple[dict[str, str], dict[str, str]], work: Callable[[dict[str, str]], None]
) -> None:
    """The names of the deep queue take 6 MiB, and its listing takes 3 MiB.

    A piece of the listing with its names takes one.
    """
    shallow, deep = queues
    work(shallow)  # so that imports and objects that are made once do not count
    assert peak(lambda: work(deep)) < 1.3 * peak(lambda: work(shallow)) + 2 * MIB


def test_shares_of_a_folder_hold_every_message_once_and_are_about_one_task_in_size(
    queues: tuple[dict[str, str], dict[str, str]],
) -> None:
    options = parse_options(queues[0])
    reader = QueueReader(default_schema(options.content), options)
    shares = [
        [one for batch in reader.read(share) for one in batch.column("id").to_pylist()] for share in reader.partitions()
    ]
    assert len(shares) == SHALLOW // SHARE
    assert max(map(len, shares)) < 1.3 * SHARE
    ids = [message_id for share in shares for message_id in share]
    assert len(ids) == len(set(ids)) == SHALLOW
