"""Scheduled retries: not before their date, and what is done when they are used up is done with the dead letter."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.scheduled_retries import SCHEDULE, Tries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_scheduled_retry_does_not_come_before_its_date(history: History) -> Iterator[str]:
    seen = history.part(Tries)
    for token, attempt, at in seen.tries:
        if (token, attempt - 1) not in seen.failed:
            continue
        due = seen.put_at[token] + (0, *SCHEDULE)[min(attempt - 1, len(SCHEDULE))]
        if at < due:
            yield f"{token}: attempt {attempt} came at {at}, and was due at {due}"


@rule
def what_is_given_up_is_a_dead_letter_and_what_was_put_then_once(history: History) -> Iterator[str]:
    for dead, given_up in history.part(Tries).looks:
        counts = Counter(given_up)
        for token in dead:
            if not counts[token]:
                yield f"{token} is dead, and what was put when it was given up is not there"
        for token, count in counts.items():
            if count > 1:
                yield f"{token} was given up {count} times"
