"""The clock: delays, backoffs and timeouts end when the clock moves past them, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.stories.clock import Waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_message_is_delivered_before_its_time_on_the_clock(history: History) -> Iterator[str]:
    waits = history.part(Waits)
    for token, at in waits.shown.items():
        if at + waits.ahead(at) < waits.dues[token]:
            yield (
                f"{token} was delivered when the clock read {at + waits.ahead(at)}, and was due at {waits.dues[token]}"
            )


@rule
def timers_fire_when_the_clock_moves_past_them(history: History) -> Iterator[str]:
    waits = history.part(Waits)
    for token, due in waits.dues.items():
        at, reached = waits.shown.get(token), waits.reached(due)
        if at is None or at > reached + waits.late:
            yield f"{token} was delivered at {at}, and the clock had reached its due time at {reached}"
    for patient, returned in waits.gave_up:
        if returned > waits.reached(patient) + waits.late:
            yield f"a take returned at {returned}, and its timeout had ended at {waits.reached(patient)}"
