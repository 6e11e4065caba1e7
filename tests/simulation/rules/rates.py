"""Rates: calls never begin faster than the rate allows, whatever is lost or ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.rates.pace import USABLE_FOR
from tests.simulation.checker import rule
from tests.simulation.programs.rates import LOOK, Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def handlers_of_all_sessions_begin_no_faster_than_their_rate(history: History) -> Iterator[str]:
    pace = history.part(Pace)
    yield from _too_fast(pace.calls, pace.rate, pace.reply + pace.record)


@rule
def handlers_of_a_listener_begin_no_faster_than_its_own_rate(history: History) -> Iterator[str]:
    pace = history.part(Pace)
    for rate, calls in pace.own:
        yield from _too_fast(calls, rate, pace.record)


def _too_fast(calls: list[float], rate: float, slack: float) -> Iterator[str]:
    """Yield the first period in which more calls began than a rate allows."""
    calls = sorted(calls)
    for first, began in enumerate(calls):
        for last in range(first, len(calls)):
            allowed = rate * (calls[last] - began + USABLE_FOR + slack) + 1
            if last - first + 1 > allowed + 1e-6:
                yield (
                    f"{last - first + 1} calls began from {began:.3f} to {calls[last]:.3f}, with a rate of {rate:g}"
                    f" and delays of {slack:.3f} s"
                )
                return


@rule
def no_call_begins_long_after_its_slot(history: History) -> Iterator[str]:
    pace = history.part(Pace)
    if pace.record > pace.limit + 2 * LOOK:
        yield f"a call began {pace.record:.3f} s after its slot"
