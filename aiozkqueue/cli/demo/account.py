"""The demo's account: what went in against what came out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiozkqueue.cli.demo.records import Result, transformed


@dataclass(frozen=True, slots=True)
class Victim:
    """The worker that was killed, and what it held then."""

    name: str
    pid: int
    line: int
    claims: int  #: items of the queue that were locked at that moment, by all workers
    killed_at: float  #: on the clock of `Result.handed_over`
    status: int  #: as the operating system reported the end: minus the signal's number


@dataclass(slots=True)
class Account:
    """Every line is entered when it is sent, every result when it has been taken for good."""

    lines: Sequence[str]
    results: list[Result] = field(default_factory=list[Result])
    victim: Victim | None = None
    left: int = 0  #: messages in the two queues at the end
    dead_letters: int = 0
    seconds: float = 0.0  #: from the first delivery to the last result

    @property
    def times(self) -> Counter[int]:
        """How often each line came out, by its number from 0."""
        return Counter(result.number for result in self.results)

    @property
    def lost(self) -> list[int]:
        """Lines that never came out."""
        times = self.times
        return [number for number in range(len(self.lines)) if number not in times]

    @property
    def twice(self) -> list[int]:
        """Lines that came out more than once."""
        return sorted(number for number, count in self.times.items() if count > 1)

    @property
    def altered(self) -> list[int]:
        """Results that are not what becomes of a line that was sent."""
        return [
            result.number
            for result in self.results
            if not 0 <= result.number < len(self.lines)
            or (result.text, result.words) != transformed(self.lines[result.number])
        ]

    @property
    def by_worker(self) -> Counter[str]:
        """How many lines each worker's results carried through."""
        return Counter(result.worker for result in self.results)

    @property
    def heir(self) -> Result | None:
        """The result of the line that the victim held, by whoever took it over."""
        if self.victim is None:
            return None
        line, name = self.victim.line, self.victim.name
        return next((r for r in self.results if r.number == line and r.worker != name), None)

    @property
    def take_over(self) -> float | None:
        """Seconds from the kill until the victim's line was handed to another worker."""
        if self.victim is None or self.heir is None:
            return None
        return self.heir.handed_over - self.victim.killed_at

    @property
    def balanced(self) -> bool:
        """Whether every line came out once, through the death of a worker, and nothing is left anywhere."""
        once = not (self.lost or self.twice or self.altered)
        return once and not self.left and not self.dead_letters and self.take_over is not None
