"""The figures of a history, from its records one by one, in a bounded amount of memory. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import End
from aiozkqueue.moments import moment_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.layout import HistoryRecord

#: The bits of a time that a histogram distinguishes: times below 2.048 s are exact, longer ones within 0.1 %.
_BITS: Final = 11
#: Maximum number of different reasons that are counted by themselves.
MOST_REASONS: Final = 1000
#: Maximum number of different numbers of attempts; higher numbers count as this one.
MOST_ATTEMPTS: Final = 100
#: The possible lengths of the spans, seconds: each is a multiple of the one before.
SPANS: Final = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400)
#: Maximum number of spans in a report.
MOST_SPANS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The times in seconds that 50 %, 90 %, 95 % and 99 % of the messages did not exceed."""

    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The ends in a span of time."""

    begin: datetime
    finished: int
    dead: int
    other: int

    @property
    def ended(self) -> int:
        """The messages that ended."""
        return self.finished + self.dead + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of the messages of a queue that ended in a time."""

    queue: str
    ended: int
    outcomes: Mapping[End, int]
    """The messages by how they ended, without outcomes that none had."""
    first: datetime
    """The time of the first end, on ZooKeeper's clock."""
    last: datetime
    attempts: Mapping[int, int]
    """The messages by the number of their attempts, which ends at `MOST_ATTEMPTS`; 0: they were not delivered."""
    retried: int
    """The number of messages that were delivered more than once."""
    retries: int
    """The total number of further deliveries."""
    waiting: Percentiles | None
    """The time from the put to the last claim; None if no message was claimed."""
    handling: Percentiles | None
    """The time from the last claim to the end."""
    reasons: Sequence[tuple[str, int]]
    """The reasons of dead letters with their numbers, the most frequent first."""
    more_reasons: int
    """The dead letters with reasons that were not counted by themselves: there were more than `MOST_REASONS`."""
    spans: Sequence[Span]
    """The ends by span of time, without empty spans."""
    span: timedelta
    """The length of each span."""

    @property
    def per_second(self) -> float:
        """The average number of messages that ended per second, between the first and the last."""
        return self.ended / max(1.0, (self.last - self.first).total_seconds())

    @property
    def peak(self) -> float:
        """The number of messages that ended per second in the busiest span."""
        return max(span.ended for span in self.spans) / self.span.total_seconds()


class Times:
    """A histogram of times in milliseconds, with at most a few ten thousand buckets."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self._total = 0

    def add(self, time: int) -> None:
        """Count a time. A clock set back counts as no time."""
        time = max(0, time)
        shift = max(0, time.bit_length() - _BITS)
        self._counts[time >> shift << shift] += 1
        self._total += 1

    def percentile(self, share: float) -> int:
        """Return the time that this share of the times did not exceed."""
        left = max(1, math.ceil(share * self._total))
        for time in sorted(self._counts):
            left -= self._counts[time]
            if left <= 0:
                return time
        return 0

    @property
    def percentiles(self) -> Percentiles | None:
        """The percentiles in seconds; None without times."""
        if not self._total:
            return None
        p50, p90, p95, p99 = (self.percentile(share) / 1000 for share in (0.5, 0.9, 0.95, 0.99))
        return Percentiles(p50=p50, p90=p90, p95=p95, p99=p99)


class _Spans:
    """The ends by span of time. The spans get longer when they are too many."""

    def __init__(self) -> None:
        self._length = 0
        self._found: dict[int, Counter[str]] = {}
        self._first: int | None = None
        self._last = 0

    def add(self, ended: int, kind: str) -> None:
        """Count an end; ``ended`` is its time, ms."""
        self._first = ended if self._first is None else min(self._first, ended)
        self._last = max(self._last, ended)
        while self._length + 1 < len(SPANS) and (self._last - self._first) / 1000 / self.length > MOST_SPANS:
            self._lengthen()
        self._found.setdefault(ended // 1000 // self.length, Counter())[kind] += 1

    @property
    def length(self) -> int:
        """The length of a span, seconds."""
        return SPANS[self._length]

    @property
    def all(self) -> list[Span]:
        """The spans that have ends, in their order."""
        return [
            Span(
                begin=moment_at(1000 * self.length * begin),
                finished=counts["finished"],
                dead=counts["dead"],
                other=counts["other"],
            )
            for begin, counts in sorted(self._found.items())
        ]

    def _lengthen(self) -> None:
        ratio = SPANS[self._length + 1] // self.length
        self._length += 1
        joined: dict[int, Counter[str]] = {}
        for begin, counts in self._found.items():
            joined.setdefault(begin // ratio, Counter()).update(counts)
        self._found = joined


class Summary:
    """Counts records, and makes the report of them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._outcomes = Counter[End]()
        self._attempts = Counter[int]()
        self._retries = 0
        self._waiting, self._handling = Times(), Times()
        self._reasons = Counter[str]()
        self._more_reasons = 0
        self._spans = _Spans()
        self._first: int | None = None
        self._last = 0
        self.records: int = 0
        """The number of records so far."""

    def add(self, record: HistoryRecord) -> None:
        """Count a record."""
        self.records += 1
        self._first = record.ended if self._first is None else min(self._first, record.ended)
        self._last = max(self._last, record.ended)
        self._outcomes[record.outcome] += 1
        self._attempts[min(record.attempts, MOST_ATTEMPTS)] += 1
        self._retries += max(0, record.attempts - 1)
        if record.claimed is not None:
            self._waiting.add(record.claimed - record.put)
            self._handling.add(record.ended - record.claimed)
        if record.outcome is End.DEAD:
            self._count_reason(record.reason)
        self._spans.add(record.ended, _KINDS.get(record.outcome, "other"))

    def report(self) -> Report | None:
        """Return the report; None without records."""
        if self._first is None:
            return None
        return Report(
            queue=self._queue,
            ended=self.records,
            outcomes=dict(self._outcomes.most_common()),
            first=moment_at(self._first),
            last=moment_at(self._last),
            attempts=dict(sorted(self._attempts.items())),
            retried=sum(number for attempts, number in self._attempts.items() if attempts > 1),
            retries=self._retries,
            waiting=self._waiting.percentiles,
            handling=self._handling.percentiles,
            reasons=sorted(self._reasons.items(), key=lambda entry: (-entry[1], entry[0])),
            more_reasons=self._more_reasons,
            spans=self._spans.all,
            span=timedelta(seconds=self._spans.length),
        )

    def _count_reason(self, reason: str) -> None:
        if reason in self._reasons or len(self._reasons) < MOST_REASONS:
            self._reasons[reason] += 1
        else:
            self._more_reasons += 1


_KINDS: Final = {End.FINISHED: "finished", End.DEAD: "dead"}
