"""Tasks of an attempt that has been replaced change no decision about the messages of the next attempt.

The tests use the classes that Spark calls, without Spark.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import aiozkqueue as zq
from aiozkqueue.batches.ledger import HandedOut, Ledger
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from tests.simulation.between import Between
from tests.spark.test_attempts import dead
from tests.spark.test_batch import put
from tests.spark.test_lost_requests import reject
from tests.spark.test_parts import use_bundles
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.timeout(120)

BODIES = [b'{"n": 1}', b'{"n": "one"}', b'{"n": 3}']


NUMBERS = StructType([StructField("n", IntegerType()), StructField("_id", StringType())])
#: A schema with which all payloads decode.
ANY = StructType([StructField("m", StringType()), StructField("_id", StringType())])


class Attempt:
    """An attempt at the first batch of a queue."""

    def __init__(self, options: Mapping[str, str], schema: StructType | None = None, **more: str) -> None:
        parsed = parse_options({**options, "startingOffsets": "earliest", **more})
        self.reader = QueueStreamReader(schema or default_schema(parsed.content), parsed)
        begin = self.reader.initialOffset()
        self._end = self.reader.latestOffset(begin, ReadAllAvailable())
        self._shares = self.reader.partitions(begin, self._end)

    def read(self) -> list[dict[str, object]]:
        """Read the batch as its tasks do."""
        return [row for share in self._shares for batch in self.reader.read(share) for row in batch.to_pylist()]

    def finish(self) -> None:
        """Have Spark commit the batch."""
        self.reader.latestOffset(self._end, ReadAllAvailable())


@contextmanager
def attempts(*found: Attempt) -> Iterator[None]:
    try:
        yield
    finally:
        for attempt in found:
            attempt.reader.stop()


def late(attempt: Attempt) -> None:
    """Run the tasks of an attempt that has been replaced."""
    with pytest.raises(zq.ClaimLostError):
        attempt.read()


async def test_a_driver_that_is_replaced_while_it_hands_out_a_batch_does_not_name_the_attempt_of_its_successor(
    zookeeper: str, queue_root: str
) -> None:
    for number in range(1, 100):
        root, handed = f"{queue_root}/{number}", list[HandedOut]()
        async with zq.connect(zookeeper, root=root) as session, zq.connect(zookeeper, root=root) as other:
            await session.queue("orders").put(b"a")
            first, second = (Ledger(core_of(client).handle("orders"), "spark") for client in (session, other))
            assert await first.next_batch(-1, None) == 0

            async def replace(successor: Ledger = second, handed: list[HandedOut] = handed) -> None:
                assert await successor.next_batch(-1, None) == 0
                handed.append(await successor.hand_out(0, "stream"))

            between = Between(session, number, replace)
            try:
                replaced = await first.hand_out(0, "stream")
            except zq.ClaimLostError:
                continue
        if not between.reached:
            assert number > 5
            return
        assert replaced.attempt != handed[0].attempt, number
    pytest.fail("the batch is never handed out")


@pytest.fixture(params=[False, True], ids=["single items", "bundles"])
def ids(request: pytest.FixtureRequest, options: dict[str, str]) -> list[str]:
    if request.param:
        use_bundles(options)
    return put(options, *BODIES)


def test_a_late_task_does_not_undo_a_rejection_of_the_next_attempt(options: dict[str, str], ids: list[str]) -> None:
    first = Attempt(options)
    second = Attempt(options)
    with attempts(first, second):
        assert len(second.read()) == 3
        reject(options, ids[:1], "unpaid")
        late(first)
        second.finish()
    assert dead(options) == [(BODIES[0], "stream 'spark': unpaid")]
    assert left(options) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["deadletter", "permissive"])
def test_a_late_task_with_another_schema_does_not_undo_a_dead_letter_of_the_next_attempt(
    options: dict[str, str], ids: list[str], mode: str
) -> None:
    first = Attempt(options, ANY, mode=mode)
    second = Attempt(options, NUMBERS, mode="deadletter")
    with attempts(first, second):
        assert [row["_id"] for row in second.read()] == [ids[0], ids[2]]
        late(first)
        second.finish()
    assert [body for body, _ in dead(options)] == [BODIES[1]]
    assert left(options) == (0, 0, 0)


def test_a_late_task_with_another_schema_makes_no_dead_letter_of_a_row_of_the_next_attempt(
    options: dict[str, str], ids: list[str]
) -> None:
    first = Attempt(options, NUMBERS, mode="deadletter")
    second = Attempt(options, ANY, mode="deadletter")
    with attempts(first, second):
        assert [row["_id"] for row in second.read()] == ids
        late(first)
        second.finish()
    assert dead(options) == []
    assert left(options) == (0, 0, 0)
