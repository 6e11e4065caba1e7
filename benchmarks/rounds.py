"""Cases in turns: every round runs each case once, so that what disturbs the machine disturbs them all."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from .absent import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .measure import Case, Sample, Server

#: A case that is run with this part of its messages before the first round: the server's JVM compiles what is hot.
WARM_UP = 0.25


class Results:
    """Samples by case and round; a round has none of a case that was not run in it."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[int, Sample]] = {}
        self.subjects: dict[str, str] = {}
        """Of every case, in the order in which they are to be told of."""
        self.absent: dict[str, str] = {}
        """Why a case could not be run here."""

    def add(self, case: Case, round_: int, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.setdefault(case.name, {})[round_] = sample

    def median(self, case: str, figure: str = "rate") -> float | None:
        """Return the median of a figure over the rounds; None when the case was not run."""
        samples = self.samples.get(case)
        return median(sample.figure(figure) for sample in samples.values()) if samples else None

    def ratio(self, case: str, other: str, figure: str = "rate") -> float | None:
        """Return the median over the rounds of the ratio of two cases within a round."""
        ours, theirs = self.samples.get(case, {}), self.samples.get(other, {})
        ratios = [ours[round_].figure(figure) / theirs[round_].figure(figure) for round_ in ours.keys() & theirs.keys()]
        return median(ratios) if ratios else None


def run(
    cases: Sequence[Case],
    server: Server,
    results: Results,
    *,
    rounds: int,
    scale: float,
    tell: Callable[[Case, Sample | None], None],
) -> None:
    """Run the cases in turns, every other round backwards. ``tell`` hears of each when it begins (None) and ends."""
    results.subjects.update((case.name, case.subject) for case in cases)
    for round_ in range(-1, rounds):
        for case in cases if round_ % 2 else reversed(cases):
            if case.name in results.absent or round_ >= (rounds if case.rounds is None else case.rounds):
                continue
            warming = round_ < 0
            if warming and case.rounds is not None:
                continue
            tell(case, None)
            messages = max(100, int(case.messages * scale * (WARM_UP if warming else 1)))
            try:
                sample = case.run(server, messages)
            except AbsentError as error:
                results.absent[case.name] = str(error)
                continue
            if not warming:
                results.add(case, round_, sample)
                tell(case, sample)
