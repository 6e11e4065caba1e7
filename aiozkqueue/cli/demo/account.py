"""The demo's account, which compares the input with the output. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiozkqueue.cli.demo.records import Result, transformed


@dataclass(frozen=True, slots=True)
class Victim:
    """The worker that was killed, and the line that it held."""

    name: str
    pid: int
    line: int
    claims: int  #: items of the queue that all workers had locked at that moment
    killed_at: float  #: on the clock of `Result.handed_over`
    status: int  #: the exit status from the operating system: minus the signal's number


@dataclass(slots=True)
class Account:
    """The lines, recorded when they are sent, and the results, recorded when their take is committed."""

    lines: Sequence[str]
    results: list[Result] = field(default_factory=list[Result])
    victim: Victim | None = None
    left: int = 0  #: messages in the two queues at the end
    dead_letters: int = 0
    seconds: float = 0.0  #: from the first delivery to the last result

    @property
    def times(self) -> Counter[int]:
        """The number of results for each line, by the line's number from 0."""
        return Counter(result.number for result in self.results)

    @property
    def lost(self) -> list[int]:
        """The lines without a result."""
        times = self.times
        return [number for number in range(len(self.lines)) if number not in times]

    @property
    def twice(self) -> list[int]:
        """The lines with more than one result."""
        return sorted(number for number, count in self.times.items() if count > 1)

    @property
    def altered(self) -> list[int]:
        """The results that do not match a line that was sent."""
        return [
            result.number
            for result in self.results
            if not 0 <= result.number < len(self.lines)
            or (result.text, result.words) != transformed(self.lines[result.number])
        ]

    @property
    def by_worker(self) -> Counter[str]:
        """The number of results of each worker."""
        return Counter(result.worker for result in self.results)

    @property
    def redelivered(self) -> Result | None:
        """The result of the line that the victim held, from the worker that took it over."""
        if self.victim is None:
            return None
        line, name = self.victim.line, self.victim.name
        return next((r for r in self.results if r.number == line and r.worker != name), None)

    @property
    def take_over(self) -> float | None:
        """Seconds from the kill until the victim's line was delivered to another worker."""
        if self.victim is None or self.redelivered is None:
            return None
        return self.redelivered.handed_over - self.victim.killed_at

    @property
    def balanced(self) -> bool:
        """Whether every line has exactly one result, despite the death of a worker, and the queues are empty."""
        once = not (self.lost or self.twice or self.altered)
        return once and not self.left and not self.dead_letters and self.take_over is not None
