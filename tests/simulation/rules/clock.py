"""One clock: what sleeps on it wakes when it is moved past its time, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.stories.clock import Waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def nothing_comes_before_the_clock_says_so(history: History) -> Iterator[str]:
    waits = history.part(Waits)
    for one, at in waits.shown.items():
        if at + waits.ahead(at) < waits.dues[one]:
            yield f"{one} came when the clock said {at + waits.ahead(at)}, and is due at {waits.dues[one]}"


@rule
def what_sleeps_wakes_when_the_clock_is_moved(history: History) -> Iterator[str]:
    waits = history.part(Waits)
    for one, due in waits.dues.items():
        at, reached = waits.shown.get(one), waits.reached(due)
        if at is None or at > reached + waits.late:
            yield f"{one} came at {at}, the clock had come to its time at {reached}"
    for patient, returned in waits.gave_up:
        if returned > waits.reached(patient) + waits.late:
            yield f"a take returned at {returned}, its patience was over at {waits.reached(patient)}"
