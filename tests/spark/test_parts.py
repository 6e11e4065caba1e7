"""Spark's tasks without Spark: retried, concurrent and in another order. Also pushed-down filters."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from opentelemetry.sdk.trace import TracerProvider
from pyspark.sql.datasource import DataSource, EqualTo, GreaterThan, In, LessThan, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import aiozkqueue as zq
from aiozkqueue.cli.transfer import load
from aiozkqueue.errors import NotFoundError
from aiozkqueue.layout import is_bundle, messages_in
from aiozkqueue.spark.columns import RowLayout, default_schema
from aiozkqueue.spark.connection import linked
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.partition_writer import BatchIdentity, MarkedPartitionWriter, PartitionWriter
from aiozkqueue.spark.reading import FilteringReader, QueueReader
from aiozkqueue.spark.rows import Row, RowEncoder
from aiozkqueue.spark.source import AiozkqueueDataSource
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.spark.writing import Written, complete, staging_of
from aiozkqueue.testing import ServerOptions
from aiozkqueue.tracing import OpenTelemetry
from tests.spark.test_batch import drained, put, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aiozkqueue.batches.staging import BatchWriter
    from aiozkqueue.spark.connection import Link
    from aiozkqueue.testing import EmbeddedZooKeeper

pytestmark = pytest.mark.timeout(120)


class Task:
    """One attempt at one partition, which may not finish."""

    def __init__(self, link: Link, *, run: str = "first", partition: int = 0) -> None:
        self.link, self.partition = link, partition
        self.staging: BatchWriter = link.call(staging_of, link, "writer")
        batch = BatchIdentity("writer", 0, run)
        fence = link.call(self.staging.begin, 0, run)
        assert fence is not None
        kind = PartitionWriter if link.options.id_column is None else MarkedPartitionWriter
        self.part = kind(link, self.staging, batch, partition, fence)
        link.call(self.part.open)

    def add(self, numbers: Iterable[int]) -> Task:
        marked = self.link.options.id_column is not None
        self.link.call(self.part.add, [Row(b"%d" % n, {}, f"r{n:016d}" if marked else "") for n in numbers])
        return self

    def finish(self) -> Written:
        return Written("writer", self.partition, self.link.call(self.part.finish), self.part.fence.stage, "run")

    def commit(self, *written: Written) -> None:
        self.link.call(complete, self.link, self.staging, 0, list(written))


@contextmanager
def links(options: Mapping[str, str], count: int, **more: str) -> Iterator[list[Link]]:
    with ExitStack() as stack:
        parsed = parse_options({"rowsPerTransaction": "10", **options, **more})
        yield [stack.enter_context(linked(parsed)) for _ in range(count)]


def test_two_concurrent_attempts_of_a_task_put_each_row_once(options: dict[str, str]) -> None:
    with links(options, 2) as (left, right):
        first, second = Task(left), Task(right)
        for start in range(0, 100, 20):
            first.add(range(start, start + 20))
            second.add(range(start, start + 20))
        written = second.finish()
        assert first.finish().rows == written.rows == 100
        assert drained(options) == []
        second.commit(written)
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(100))


def test_a_retried_task_resumes_the_same_rows_and_is_refused_other_ones(options: dict[str, str]) -> None:
    with links(options, 2) as (left, right):
        Task(left).add(range(35))  # it dies with five rows not yet sent
        with pytest.raises(zq.InvalidOptionError, match="this task got different rows"):
            Task(right, run="second").add(range(1, 41))
        successor = Task(right, run="third").add(range(40))
        successor.commit(successor.finish())
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(40))


def test_a_retried_task_with_the_same_payloads_and_other_put_options_is_refused(options: dict[str, str]) -> None:
    def rows(*keys: int) -> list[Row]:
        return [Row(b"same", {"key": f"k{n}", "headers": {"n": str(n)}}) for n in keys]

    with links(options, 2) as (left, right):
        left.call(Task(left).part.add, rows(*range(10)))
        successor = Task(right, run="second")
        with pytest.raises(zq.InvalidOptionError, match="this task got different rows"):
            right.call(successor.part.add, rows(*range(5, 15)))
        successor = Task(right, run="third")
        right.call(successor.part.add, rows(*range(15)))
        successor.commit(successor.finish())
    assert drained(options) == [b"same"] * 15


@pytest.mark.parametrize("more", [{}, {"idColumn": "n"}], ids=["by position", "by id"])
def test_a_retried_task_puts_each_row_once_into_a_queue_with_bundles(
    options: dict[str, str], more: dict[str, str]
) -> None:
    use_bundles(options)
    with links(options, 3, rowsPerTransaction="64", **more) as (first, second, third):
        Task(first).add(range(150))  # it dies with 22 rows not yet sent
        stored = names(options)
        assert sorted(map(messages_in, stored)) == ([1] * 128 if more else [64, 64])
        successor, rival = Task(second, run="second"), Task(third, run="second")
        successor.add(range(150))
        rival.add(range(150))
        successor.finish()
        rival.commit(rival.finish())
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(150))


def test_rows_without_options_carry_the_trace_of_their_put(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr("aiozkqueue.session.connect._tracing_of", lambda **_: OpenTelemetry(provider))
    with links(options, 1) as (link,):
        task = Task(link).add(range(3))
        task.commit(task.finish())
    provider.shutdown()

    async def headers() -> list[set[str]]:
        connected = zq.connect(options["hosts"], root=options["root"], tracing=False)
        async with connected as session, session.transaction() as tx:
            return [set(message.headers) for message in await tx.take_many(session.queue(options["queue"]), 3)]

    assert asyncio.run(headers()) == [{"traceparent"}] * 3


def use_bundles(options: Mapping[str, str]) -> None:
    async def configure() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue(options["queue"]).configure(zq.QueueConfig(bundle=64))

    asyncio.run(configure())


def names(options: Mapping[str, str]) -> list[str]:
    """Return the names of a queue's items and bundles, as an independent client reads them."""
    client = KazooClient(options["hosts"])
    client.start()
    try:
        return list(client.get_children(f"{options['root']}/{options['queue']}/items") or [])
    finally:
        client.stop()
        client.close()


def test_a_batch_retried_with_other_partitions_is_not_committed(options: dict[str, str]) -> None:
    with links(options, 2) as (first, second):
        Task(first, partition=1).add(range(30))
        successor = Task(second, run="second").add(range(60))
        with pytest.raises(zq.NotCommittedError, match="begun with other partitions"):
            successor.commit(successor.finish())
        successor.link.call(successor.staging.abort, 0)
    assert drained(options) == []
    assert state(options) == (0, 0)


def test_rows_with_an_id_column_can_move_between_positions_and_partitions(options: dict[str, str]) -> None:
    with links(options, 3, idColumn="n") as (first, second, third):
        Task(first, partition=1).add(range(30))
        Task(second).add(range(30, 60))
        successor = Task(third, run="second").add(reversed(range(80)))
        successor.commit(successor.finish())
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(80))


def test_two_concurrent_attempts_with_an_id_column_put_each_row_once(options: dict[str, str]) -> None:
    with links(options, 2, idColumn="n") as (left, right):
        first, second = Task(left), Task(right)
        first.add(range(30))
        second.add(reversed(range(50)))
        first.add(range(30, 50))
        first.finish()
        second.commit(second.finish())
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(50))


def test_a_retried_task_whose_payload_is_its_id_puts_each_row_once(options: dict[str, str]) -> None:
    letters = "abcdefghijklmnopqrst"
    columns = StructType([StructField("body", StringType())])
    rows = RowEncoder(columns, "body").rows(pa.RecordBatch.from_pydict({"body": list(letters)}))
    with links(options, 2, idColumn="body") as (left, right):
        left.call(Task(left, partition=1).part.add, rows[:10])  # it dies
        successor = Task(right, run="second")
        right.call(successor.part.add, rows)
        successor.commit(successor.finish())
    assert Counter(drained(options)) == Counter(letter.encode() for letter in letters)
    keyed = StructType([*columns, StructField("key", StringType())])
    (row,) = RowEncoder(keyed, "body").rows(pa.RecordBatch.from_pydict({"body": ["a"], "key": ["k"]}))
    assert row == Row(b"a", {"key": "k"}, rows[0].mark)


def test_a_streamed_batch_is_split_among_tasks_and_fails_if_a_message_is_gone(
    options: dict[str, str],
) -> None:
    ids = put(options, *(b"%d" % n for n in range(10)))
    parsed = parse_options({**options, "minPartitions": "4"})
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end != start
        shares = reader.partitions(start, end)
        read = [
            [message_id for batch in reader.read(share) for message_id in batch["id"].to_pylist()] for share in shares
        ]
        assert [len(found) for found in read] == [3, 2, 3, 2]
        assert Counter(message_id for found in read for message_id in found) == Counter(ids)

        async def force_open() -> None:
            async with zq.connect(options["hosts"], root=options["root"]) as session:
                queue = session.queue("orders")
                assert await queue.admin.release_claims() == 10
                async with session.transaction() as tx:
                    assert await tx.take(queue)
                    await tx.commit()

        asyncio.run(force_open())
        with pytest.raises(zq.ClaimLostError, match="1 messages of a batch no longer exist"):
            list(reader.read(shares[0]))
    finally:
        reader.stop()


def test_a_task_keeps_few_payloads_in_memory_at_a_time(options: dict[str, str]) -> None:
    def peak(queue: str, count: int) -> int:
        """Return the maximum memory use in bytes while this many thousand bytes are read."""
        of_queue = {**options, "queue": queue}
        put(of_queue, *[b"x" * 1000] * count)
        parsed = parse_options(of_queue)
        reader = QueueReader(default_schema(parsed.content), parsed)
        (share,) = reader.partitions()
        tracemalloc.start()
        try:
            rows = sum(batch.num_rows for batch in reader.read(share))
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows == count
        return held

    peak("warm", 10)  # imports, and objects that are kept
    assert peak("many", 30_000) - peak("few", 10_000) < 4_000_000  # while twenty million more bytes are read


def test_large_payloads_are_passed_on_in_batches_of_a_few_megabytes(options: dict[str, str]) -> None:
    put(options, *[b"x" * 500_000] * 40)
    parsed = parse_options(options)
    reader = QueueReader(default_schema(parsed.content), parsed)
    (share,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(share)]
    assert sum(sizes) == 40
    assert max(sizes) <= 20  # eight megabytes and a page, but not all messages


def found(options: Mapping[str, str], *filters: object, **more: str) -> tuple[int, list[str]]:
    """Return the number of tasks of a read, and the ids that they return."""
    parsed = parse_options({**options, "pushDown": "true", **more})
    reader = FilteringReader(default_schema(parsed.content), parsed)
    assert list(reader.pushFilters(list(filters))) == list(filters)  # type: ignore[arg-type]  # Spark checks the filters again
    shares = reader.partitions()
    return len(shares), [
        message_id for share in shares for batch in reader.read(share) for message_id in batch["id"].to_pylist()
    ]


def test_a_filter_on_ids_reads_only_those_messages(options: dict[str, str]) -> None:
    ids = put(options, *(b"%d" % n for n in range(20)))
    assert found(options, EqualTo(("id",), ids[3]))[1] == [ids[3]]
    assert sorted(found(options, In(("id",), (ids[1], ids[5], "other")))[1]) == sorted([ids[1], ids[5]])
    assert found(options, EqualTo(("id",), ids[3]), EqualTo(("id",), ids[4]))[1] == []
    assert len(found(options, StringContains(("id",), "x"))[1]) == 20


def test_a_filter_on_ids_that_may_be_null_reads_only_those_messages_of_bundles(options: dict[str, str]) -> None:
    use_bundles(options)
    ids = put(options, *(b"%d" % n for n in range(200)))
    assert any(map(is_bundle, names(options)))
    assert sorted(found(options, In(("id",), (ids[1], None, ids[150])))[1]) == sorted([ids[1], ids[150]])


def test_a_filter_on_time_reads_only_those_hours_of_a_history(options: dict[str, str]) -> None:
    async def prepare() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue("orders").configure(zq.QueueConfig(history=zq.History()))

    asyncio.run(prepare())
    ids = put(options, b"a", b"b")
    drained(options)
    now = datetime.now(UTC)
    history = {"content": "history"}
    around = (GreaterThan(("ended_at",), now - timedelta(hours=1)), LessThan(("ended_at",), now + timedelta(hours=1)))
    tasks, seen = found(options, *around, **history)
    assert tasks >= 1
    assert sorted(seen) == sorted(ids)
    assert found(options, GreaterThan(("ended_at",), now + timedelta(days=3)), **history) == (0, [])
    assert found(options, LessThan(("ended_at",), now - timedelta(days=3)), **history) == (0, [])
    assert found(options, LessThan(("ended_at",), datetime(1, 1, 3, tzinfo=UTC)), **history) == (0, [])
    ever = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    assert found(options, GreaterThan(("ended_at",), ever[0]), LessThan(("ended_at",), ever[1]), **history) == found(
        options, **history
    )


def test_a_stream_without_a_queue_or_with_types_unknown_to_json_is_refused(options: dict[str, str]) -> None:
    parsed = parse_options(options)
    reader = QueueStreamReader(default_schema(parsed.content), parsed)
    try:
        with pytest.raises(NotFoundError, match=r"there is no queue 'orders' below .*; its first put creates it"):
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    finally:
        reader.stop()
    variants = StructType([StructField("a", VariantType())])
    with pytest.raises(zq.InvalidOptionError, match="column 'a': JSON has no variant"):
        QueueStreamReader(variants, parsed)
    twice = StructType([StructField("a", StringType()), StructField("b", StringType()), StructField("a", DoubleType())])
    with pytest.raises(zq.InvalidOptionError, match="column 'a' is in the schema twice"):
        QueueStreamReader(twice, parsed)
    QueueStreamReader(
        StructType([StructField("_tags", MapType(StringType(), StringType(), valueContainsNull=False))]), parsed
    )
    with pytest.raises(zq.InvalidOptionError, match="only the messages of a queue can be streamed"):
        QueueStreamReader(variants, parse_options({**options, "content": "history"}))
    with pytest.raises(zq.InvalidOptionError, match="idColumn='n': it must be a column of type"):
        RowEncoder(StructType([StructField("body", StringType()), StructField("n", DoubleType())]), "n")


@pytest.mark.parametrize(
    "column",
    [
        StructField("n", LongType(), nullable=False),
        StructField("names", ArrayType(StringType(), containsNull=False)),
        StructField("order", StructType([StructField("n", LongType(), nullable=False)])),
        StructField("_key", StringType(), nullable=False),
        StructField("_corrupt_record", StringType(), nullable=False),
    ],
    ids=lambda column: column.name,
)
def test_a_column_that_may_be_null_but_is_declared_otherwise_is_refused_and_not_read_as_another_value(
    options: dict[str, str], column: StructField
) -> None:
    ids = StructField("_id", StringType(), nullable=False)
    RowLayout(StructType([ids, column]).toNullable().add("x", LongType()), parse_options(options))
    with pytest.raises(zq.InvalidOptionError, match=f"column '{column.name}' is NOT NULL.*toNullable"):
        RowLayout(StructType([ids, column]), parse_options(options))


def test_the_payload_beside_its_fields_is_refused_under_its_plain_name_and_not_read_as_null(
    options: dict[str, str],
) -> None:
    columns = default_schema(parse_options(options).content)
    with pytest.raises(zq.InvalidOptionError, match=r"column 'body': with fields .* the payload itself is `_body`"):
        RowLayout(StructType([*columns, StructField("n", LongType())]), parse_options(options))
    RowLayout(StructType([StructField("body", StringType()), StructField("n", LongType())]), parse_options(options))


def test_rows_without_a_column_are_refused_and_not_dropped() -> None:
    """Spark passes such rows without their number."""
    with pytest.raises(zq.InvalidOptionError, match="the rows have no column"):
        RowEncoder(StructType())


def test_the_help_of_load_names_each_column_that_is_a_put_option() -> None:
    with pytest.raises(zq.InvalidOptionError) as refused:
        RowEncoder(StructType([StructField(name, StringType()) for name in ("body", "colour")]))
    (columns,) = re.findall("the other columns may be (.*); drop this one", str(refused.value))
    assert set(columns.split(", ")) <= set(re.findall(r"\w+", load.__doc__ or ""))


@pytest.mark.parametrize(
    ("columns", "name", "meant"),
    [
        (["id", "_ID"], "_ID", "_id"),
        (["id", "_Enqueued_At"], "_Enqueued_At", "_enqueued_at"),
        (["ID", "body"], "ID", "id"),
        (["id", "BODY"], "BODY", "body"),
        (["name", "_Corrupt_record"], "_Corrupt_record", "_corrupt_record"),
    ],
)
def test_a_column_of_messages_in_another_case_is_refused_and_not_read_as_null(
    columns: list[str], name: str, meant: str
) -> None:
    """Spark treats it as the column of the source."""
    schema = StructType([StructField(column, StringType()) for column in columns])
    with pytest.raises(zq.InvalidOptionError, match=f"column '{name}': the column for each message is `{meant}`"):
        RowLayout(schema, parse_options({"hosts": "h:1", "queue": "q"}))


@pytest.mark.parametrize("columns", [["Id"], ["id", "State"], ["ID", "body", "name"]])
def test_a_field_of_the_payload_may_have_any_case(columns: list[str]) -> None:
    schema = StructType([StructField(column, StringType()) for column in columns])
    assert RowLayout(schema, parse_options({"hosts": "h:1", "queue": "q"})).of_message == {}


@pytest.mark.parametrize("name", ["sessionTimeout", "connectTimeout", "outageTimeout", "putTimeout"])
@pytest.mark.parametrize("value", ["1e300", "2e9", "nan", "-1", "", "5s"])
def test_a_time_that_no_server_or_clock_can_count_is_refused_before_any_task(name: str, value: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=f"^{name}='{value}': give a number of seconds .* at most"):
        parse_options({"hosts": "h:1", "queue": "q", name: value})


def test_a_load_of_several_queues_is_refused_in_its_own_words() -> None:
    with pytest.raises(
        zq.InvalidOptionError, match=r'^load\(\["a","b"\]\): name one queue; read each queue as a frame'
    ):
        parse_options({"hosts": "h:1", "paths": '["a","b"]'})


def test_a_table_is_refused_with_the_statement_to_use() -> None:
    given = {"option.hosts": "h:1", "option.queue": "orders", "hosts": "h:1", "queue": "orders"}
    with pytest.raises(zq.InvalidOptionError, match=r"^a table cannot be a queue, .*: use CREATE TEMPORARY VIEW$"):
        parse_options(given)


@pytest.mark.parametrize("name", ["tlsCa", "tlsCert", "tlsKey", "authFile"])
def test_an_empty_name_of_a_file_is_refused_and_not_ignored(name: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match=f"^{name} is empty: name a file"):
        parse_options({"hosts": "h:1", "queue": "q", "tlsCert": "c", name: ""})


def test_an_option_without_effect_is_reported_with_its_uses(caplog: pytest.LogCaptureFixture) -> None:
    schema = StructType([StructField("body", BinaryType())])
    given = {"hosts": "h:1", "queue": "q", "PUTTIMEOUT": "5", "maxOffsetsPerTrigger": "7", "pushDown": "true"}
    source: DataSource = AiozkqueueDataSource(given)
    expected = {
        "a batch read": ["putTimeout", "maxOffsetsPerTrigger"],
        "a stream": ["putTimeout", "pushDown"],
        "a batch write": ["maxOffsetsPerTrigger", "pushDown"],
        "a stream sink": ["maxOffsetsPerTrigger", "pushDown"],
    }
    uses: tuple[Callable[[], object], ...] = (
        lambda: source.reader(schema),
        lambda: source.streamReader(schema),
        lambda: source.writer(schema, overwrite=False),
        lambda: source.streamWriter(schema, overwrite=False),
    )
    for use, (name, unused) in zip(uses, expected.items(), strict=True):
        caplog.clear()
        use()
        lines = [record.getMessage() for record in caplog.records]
        assert [line.partition(":")[2].partition(":")[0] for line in lines] == [
            f" the option {option} has no effect on {name}" for option in unused
        ]
    assert lines[0].endswith("it is for a stream")


@pytest.mark.parametrize("name", ["Body", "BODY"])
def test_a_payload_in_upper_case_is_refused_and_not_written_as_a_json_object(name: str) -> None:
    """Spark treats it as the column `body`."""
    with pytest.raises(zq.InvalidOptionError, match=f"column '{name}': the payload is a column `body` in lower case"):
        RowEncoder(StructType([StructField(name, StringType()), StructField("KEY", StringType())]))


@pytest.mark.parametrize(
    ("name", "allowed"), [("key", "string"), ("headers", "map<string,string>"), ("ttl", "double or integer or long")]
)
def test_the_error_for_a_column_of_the_wrong_type_names_the_right_ones(name: str, allowed: str) -> None:
    schema = StructType([StructField("body", StringType()), StructField(name, ArrayType(StringType()))])
    with pytest.raises(zq.InvalidOptionError, match=f"column '{name}': it cannot be array<string>; make it {allowed}$"):
        RowEncoder(schema)


def test_a_task_at_a_server_with_a_small_request_limit_puts_its_rows_in_smaller_writes(
    options: dict[str, str], embedded_server: Callable[..., EmbeddedZooKeeper]
) -> None:
    small = {**options, "hosts": embedded_server(ServerOptions(jute_maxbuffer=100_000)).hosts}
    bodies = [b"%03d" % n + b"x" * 2000 for n in range(300)]
    with links(small, 1, rowsPerTransaction="200") as (link,):
        task = Task(link)
        link.call(task.part.add, [Row(body, {}, "") for body in bodies])
        task.commit(task.finish())
    assert sorted(drained(small)) == bodies
