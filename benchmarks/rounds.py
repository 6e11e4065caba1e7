"""Runs cases in turns: every round runs each case once, so that a disturbance of the machine affects all of them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from .absent import AbsentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .measure import Case, Sample, Server

#: The share of its messages that a case runs before the first round, so that the server's JVM compiles the hot code.
WARM_UP = 0.25


class Results:
    """Samples by case and round; a case that did not run in a round has no sample for it."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[int, Sample]] = {}
        self.subjects: dict[str, str] = {}
        """The cases, in the order of the report."""
        self.absent: dict[str, str] = {}
        """The reason why a case could not run here."""

    def add(self, case: Case, round_: int, sample: Sample) -> None:
        """Store a sample."""
        self.samples.setdefault(case.name, {})[round_] = sample

    def median(self, case: str, figure: str = "rate") -> float | None:
        """Return the median of a figure over the rounds; None if the case was not run."""
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
    show_progress: Callable[[Case, Sample | None], None],
) -> None:
    """Run the cases in turns, every other round backwards.

    ``show_progress`` is called when a case begins (with None) and when it ends.
    """
    results.subjects.update((case.name, case.subject) for case in cases)
    for round_ in range(-1, rounds):
        for case in cases if round_ % 2 else reversed(cases):
            if case.name in results.absent or round_ >= (rounds if case.rounds is None else case.rounds):
                continue
            warming = round_ < 0
            if warming and case.rounds is not None:
                continue
            show_progress(case, None)
            messages = max(100, int(case.messages * scale * (WARM_UP if warming else 1)))
            try:
                sample = case.run(server, messages)
            except AbsentError as error:
                results.absent[case.name] = str(error)
                continue
            if not warming:
                results.add(case, round_, sample)
                show_progress(case, sample)
