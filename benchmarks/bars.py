"""The targets, each a ratio of two cases in one run, or a figure of one case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rounds import Results


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit for ``figure`` of ``case``, divided by that of ``other`` if given."""

    case: str
    limit: float
    other: str | None = None
    figure: str = "rate"
    at_most: bool = False

    def value(self, results: Results) -> float | None:
        """The measured value; None if it was not measured."""
        if self.other is None:
            return results.median(self.case, self.figure)
        return results.ratio(self.case, self.other, self.figure)

    def passed(self, value: float) -> bool:
        """Whether the value meets the limit."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        if self.other is None:
            return f"{self.case}: {self.figure} {sign} {self.limit:,g}"
        measure = "" if self.figure == "rate" else f", {self.figure}"
        return f"{self.case}{measure} {sign} {self.limit:g} × {self.other}"


PUT = "put, a transaction each"
TAKE = "take + commit, a transaction each"
LISTENER = "listener, a result each"
MULTIS, COMMITS_100, COMMITS_200 = (
    "raw: multis of 100 creates",
    "raw: lock, read, commit in 100s",
    "raw: lock, read, commit in 200s",
)
SAFE_8 = "Curator: consume, safe, 8 threads"
LOCKING_QUEUE = "kazoo LockingQueue: get, consume"
SAQ = "SAQ on Redis: no-op jobs"
READ, WRITE = "Spark: read, all columns, bundles", "Spark: write, bundles"
IDLE_STREAM = "Spark: an idle stream"
FIRST_BATCH = "Spark: first batch beside 1,000,000 delayed"
MILLION = "Spark: 1,000,000 waiting"


def stream_name(most: int) -> str:
    """Return the name of the case of a stream with batches of this size."""
    return f"Spark: stream, {most:,} a batch, bundles"


BARS = [
    # a queue with its default settings, relative to a bare socket with one znode for each message, and to peers
    Bar(f"{PUT}, bundles", 4, "Curator: put in background"),
    Bar(f"{PUT}, bundles", 0.9, MULTIS),
    Bar("put_many(1,000), 1 task, bundles", 3, MULTIS),
    Bar(f"{TAKE}, bundles", 1.1, COMMITS_200),
    Bar(f"{TAKE}, bundles", 45, SAFE_8),
    Bar(f"{TAKE}, bundles", 200, LOCKING_QUEUE),
    Bar("take_many(100), 1 task, bundles", 3, COMMITS_100),
    Bar(f"{LISTENER}, bundles", 30, SAFE_8),
    Bar(f"{LISTENER}, bundles", 25, SAQ),
    Bar("async for, default settings, bundles", 20, SAFE_8),
    # one znode for each message
    Bar(PUT, 4, "Curator: put in background"),
    Bar(PUT, 0.4, MULTIS),
    Bar(TAKE, 20, SAFE_8),
    Bar(TAKE, 80, LOCKING_QUEUE),
    Bar(TAKE, 0.4, COMMITS_200),
    Bar(LISTENER, 12, SAFE_8),
    Bar(LISTENER, 10, SAQ),
    Bar("async for, default settings", 6, SAFE_8),
    Bar("take_many(100), 1 task", 0.45, COMMITS_100),
    Bar("take_many(100), 1 task", 0.45, "raw: the same, one batch at a time"),
    Bar("take_many(100), 4 tasks", 0.45, COMMITS_100),
    Bar("put, direct, beside all features", 0.95, "put, direct"),
    Bar("take + commit, beside all features", 0.95, TAKE),
    Bar("take one, put one, 100,000 waiting", 0.8, "take one, put one, 1,000 waiting"),
    Bar("1,000,000 waiting in 64 shards", 0.5, figure="first_s", at_most=True),
    Bar("1,000,000 waiting in 64 shards", 150, figure="grown_mb", at_most=True),
    Bar("16 sessions × 32 tasks", 1.3, "1 session × 32 tasks"),
    Bar("16 sessions × 32 tasks", 0.05, figure="failed", at_most=True),
    Bar("16 sessions × 32 tasks", 0.02, figure="in_vain", at_most=True),
    Bar("64 sessions × 32 tasks", 1, "1 session × 32 tasks"),
    Bar("put → handler, 50 a second", 2.2, "raw write, 50 a second", "p50_ms", at_most=True),
    Bar("put → handler, 16 idle sessions, 100 a second", 3, "raw write, 100 a second", "p50_ms", at_most=True),
    Bar("put → handler, 16 idle sessions, 100 a second", 0.05, figure="failed", at_most=True),
    Bar(stream_name(20_000), 45_000, figure="steady_rate"),
    Bar(stream_name(100_000), 90_000, figure="steady_rate"),
    Bar(READ, 120_000),
    Bar(WRITE, 150_000),
    Bar(IDLE_STREAM, 0, figure="writes_per_s", at_most=True),
    Bar(FIRST_BATCH, 0.5, figure="batch_s", at_most=True),
    Bar(MILLION, 0.5, figure="heap_GiB", at_most=True),
    Bar("event → handler, 150 a second", 10, figure="p99_ms", at_most=True),
    Bar("events put and handled, as many as can be", 20 * 150),
]
