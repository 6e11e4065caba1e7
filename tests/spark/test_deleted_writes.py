"""A write whose queue is deleted meanwhile puts all its rows, or fails and puts none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.connection import Link
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.partition_writer import BatchIdentity, MarkedPartitionWriter, PartitionWriter
from aiozkqueue.spark.rows import Row
from aiozkqueue.spark.writing import Written, complete, staging_of
from tests.simulation.between import Between
from tests.spark.test_batch import drained, put
from tests.spark.test_parts import Task, links

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.timeout(180)

ROWS = 5


async def write(session: zq.QueueSession, options: Mapping[str, str], rows: int) -> None:
    """Write one partition as a task and a driver do, with one session."""
    link = Link(cast("Any", None), session, parse_options(options), core_of(session).zookeeper)
    staging = await staging_of(link, "writer")
    fence = await staging.begin(0, "run")
    assert fence is not None
    kind = MarkedPartitionWriter if "idColumn" in options else PartitionWriter
    part = kind(link, staging, BatchIdentity("writer", 0, "run"), 0, fence)
    await part.open()
    await part.add([Row(b"row", {}, f"r{number:016d}" if "idColumn" in options else "") for number in range(rows)])
    await complete(link, staging, 0, [Written("writer", 0, await part.finish(), part.fence.stage, "run")])


@dataclass
class Deletion:
    """The deletion of the queue by another client."""

    options: Mapping[str, str]
    again: bool
    """Whether the queue is created again."""
    rows: int = 0
    """The number of rows that consumers could take before the deletion."""

    async def __call__(self) -> None:
        async with zq.connect(self.options["hosts"], root=self.options["root"], janitor=False) as other:
            queue = other.queue("orders")
            if await queue.exists():
                stats = await queue.stats()
                self.rows = 0 if stats.staged else stats.size
                await queue.admin.delete(force=True)
            if self.again:
                await queue.configure(zq.QueueConfig(bundle=1))


@pytest.mark.parametrize("rows", [0, ROWS])
@pytest.mark.parametrize("then", ["deleted", "created again"])
@pytest.mark.parametrize("more", [{}, {"idColumn": "n"}], ids=["by position", "by id"])
async def test_a_write_during_which_the_queue_is_deleted_puts_all_rows_or_fails(
    zookeeper: str, queue_root: str, more: dict[str, str], then: str, rows: int
) -> None:
    failed = 0
    for number in range(1, 200):
        options = {"hosts": zookeeper, "root": f"{queue_root}/{number}", "queue": "orders", **more}
        options["rowsPerTransaction"] = "2"
        async with zq.connect(zookeeper, root=options["root"], janitor=False) as session:
            await session.queue("orders").configure(zq.QueueConfig(bundle=1))
            deletion = Deletion(options, again=then == "created again")
            between = Between(session, number, deletion)
            try:
                async with asyncio.timeout(30):
                    await write(session, options, rows)
            except zq.NotCommittedError:
                failed += 1
                expected = 0
            else:
                expected = 0 if deletion.rows else rows
        async with zq.connect(zookeeper, root=options["root"], janitor=False) as session:
            queue = session.queue("orders")
            stats = await queue.stats() if await queue.exists() else None
            assert (0 if stats is None or stats.staged else stats.size) == expected, number
        if not between.reached:
            assert number > 10
            assert failed
            return
    pytest.fail("the write never ends")


def test_a_run_does_not_complete_the_batch_that_another_run_has_begun_again(options: dict[str, str]) -> None:
    with links(options, 2, idColumn="n") as (one, other):
        first = Task(one).add(range(20))
        written = first.finish()
        assert one.call(first.staging.abort, 0) == 20
        successor = Task(other, run="second").add(range(10))
        with pytest.raises(zq.NotCommittedError, match="has been discarded"):
            first.commit(written)
        put(options, b"other")
        assert drained(options) == [b"other"]
        successor.add(range(10, 20)).commit(successor.finish())
    assert len(drained(options)) == 20
