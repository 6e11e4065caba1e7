"""The report of an audit: rates, waiting and handling times, retries, dead letters and their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from aiozkqueue.arguments import collection
from aiozkqueue.layout import End
from aiozkqueue.moments import moment_at
from aiozkqueue.operations.history_report import MOST_SPANS, SPANS
from aiozkqueue.spark.failures import unwrapped_errors
from aiozkqueue.spark.folder import Folder

from .moving import OWN
from .records import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

#: The number of reasons in the report, the most frequent first.
MOST_REASONS: Final = 50
#: The precision of percentiles: the error is at most one divided by this.
_ACCURACY: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The times in seconds that 50 %, 95 % and 99 % of the messages did not exceed."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the ended messages of a queue, or of all queues."""

    ended: int
    finished: int
    dead: int
    """The number of dead letters."""
    other: int
    """Expired, cancelled, removed, collapsed, dropped or reaped."""
    first: datetime
    """The time of the first end, on ZooKeeper's clock."""
    last: datetime
    retried: int
    """The number of messages that were delivered more than once."""
    retries: int
    """The total number of further deliveries."""
    waiting: Percentiles | None
    """The time from the put to the last claim; None if no message was claimed."""
    handling: Percentiles | None
    """The time from the last claim to the end."""

    @property
    def per_second(self) -> float:
        """The average number of messages that ended per second, between the first and the last."""
        return self.ended / max(1.0, (self.last - self.first).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason for dead letters of a queue, and their number."""

    queue: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The number of messages that ended in a span of time, by outcome."""

    begin: datetime
    finished: int
    dead: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of an audit."""

    folder: str
    total: Figures | None
    """The figures of all queues together; None if there are no records."""
    queues: dict[str, Figures]
    """The figures of each queue, the busiest first."""
    reasons: list[Reason]
    """The reasons of dead letters, the most frequent first."""
    spans: list[Span]
    """The figures of each span of time, without empty spans."""
    span: timedelta
    """The length of each span."""


def report(
    spark: SparkSession,
    folder: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    queues: Sequence[str] | None = None,
) -> Report:
    """Report on the messages in the files of an audit.

    Args:
        spark: a Spark session.
        folder: the folder of the audit.
        since: the first end to include; None: the oldest.
        until: the first end to exclude; None: no limit.
        queues: the queues to report on; None: all.

    Raises:
        InvalidOptionError: the folder is not the folder of an audit, or ``queues`` is not a collection.
    """
    if queues is not None:
        collection(queues, "queues", "names of queues")
    source = Folder(spark, folder)
    source.require(OWN)
    places = [name for name in source.names() if name.startswith("queue=")]
    nothing = Report(folder=source.path, total=None, queues={}, reasons=[], spans=[], span=timedelta(0))
    if not places:
        return nothing
    with unwrapped_errors():
        records = _chosen(spark.read.schema(SCHEMA).parquet(source.path), since, until, queues)
        rows = records.rollup("queue").agg(*_figures()).collect()
        figures = {row.queue: _figures_of(row) for row in rows if row.ended}
        total = figures.pop(None, None)
        if total is None:
            return nothing
        span = _span((total.last - total.first).total_seconds())
        return Report(
            folder=source.path,
            total=total,
            queues=dict(sorted(figures.items(), key=lambda entry: (-entry[1].ended, entry[0]))),
            reasons=_reasons(records) if total.dead else [],
            spans=_spans(records, span),
            span=timedelta(seconds=span),
        )


def _chosen(
    records: DataFrame, since: datetime | None, until: datetime | None, queues: Sequence[str] | None
) -> DataFrame:
    """Filter by the day first, so that files of other days are not read."""
    if since is not None:
        records = records.where(functions.col("day") >= functions.lit(since.astimezone(UTC).date()))
        records = records.where(functions.col("ended_at") >= functions.lit(since))
    if until is not None:
        records = records.where(functions.col("day") <= functions.lit(until.astimezone(UTC).date()))
        records = records.where(functions.col("ended_at") < functions.lit(until))
    if queues is not None:
        records = records.where(functions.col("queue").isin(list(queues)))
    return records


def _counts() -> list[Column]:
    """Count by outcome."""
    finished = functions.col("outcome") == End.FINISHED.value
    dead = functions.col("outcome") == End.DEAD.value
    return [
        functions.count_if(finished).alias("finished"),
        functions.count_if(dead).alias("dead"),
        functions.count_if(~finished & ~dead).alias("other"),
    ]


def _figures() -> list[Column]:
    again = functions.greatest(functions.col("attempt") - 1, functions.lit(0))
    return [
        functions.count(functions.lit(1)).alias("ended"),
        *_counts(),
        functions.unix_millis(functions.min("ended_at")).alias("first"),
        functions.unix_millis(functions.max("ended_at")).alias("last"),
        functions.count_if(again > 0).alias("retried"),
        functions.sum(again).alias("retries"),
        _percentiles("put_at", "claimed_at").alias("waiting"),
        _percentiles("claimed_at", "ended_at").alias("handling"),
    ]


def _percentiles(begin: str, end: str) -> Column:
    """Return the percentiles of the time between two moments if both are known. A negative time counts as 0."""
    taken = functions.unix_millis(end) - functions.unix_millis(begin)
    taken = functions.when(taken > 0, taken).when(taken <= 0, 0)
    return functions.percentile_approx(taken, [0.5, 0.95, 0.99], _ACCURACY)


def _figures_of(row: Row) -> Figures:
    return Figures(
        ended=row.ended,
        finished=row.finished,
        dead=row.dead,
        other=row.other,
        first=moment_at(row.first),
        last=moment_at(row.last),
        retried=row.retried,
        retries=row.retries or 0,
        waiting=_seconds(row.waiting),
        handling=_seconds(row.handling),
    )


def _seconds(ms: Sequence[int] | None) -> Percentiles | None:
    return None if ms is None else Percentiles(p50=ms[0] / 1000, p95=ms[1] / 1000, p99=ms[2] / 1000)


def _span(seconds: float) -> int:
    """Return the shortest span that does not produce too many rows, seconds."""
    return next((span for span in SPANS if seconds / span <= MOST_SPANS), SPANS[-1])


def _reasons(records: DataFrame) -> list[Reason]:
    dead = records.where(functions.col("outcome") == End.DEAD.value).groupBy("queue", "reason").count()
    rows = dead.orderBy(functions.desc("count"), "queue", "reason").limit(MOST_REASONS).collect()
    return [Reason(queue=row.queue, reason=row.reason or "", messages=row["count"]) for row in rows]


def _spans(records: DataFrame, span: int) -> list[Span]:
    begin = functions.floor(functions.unix_millis("ended_at") / (1000 * span)) * span
    rows = records.groupBy(begin.alias("begin")).agg(*_counts()).orderBy("begin").collect()
    return [
        Span(begin=datetime.fromtimestamp(row.begin, UTC), finished=row.finished, dead=row.dead, other=row.other)
        for row in rows
    ]
