"""Scheduled retries: no retry is early, and the handler of exhausted retries commits together with the dead letter."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.scheduled_retries import SCHEDULE, Tries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_scheduled_retry_is_delivered_before_its_date(history: History) -> Iterator[str]:
    seen = history.part(Tries)
    # The last delivery of an attempt is the one that was undone: a session that ended made the earlier ones void.
    last: dict[tuple[str, int], int] = {}
    for index, (token, attempt, at) in enumerate(seen.tries):
        last[token, attempt] = index
        if last.get((token, attempt - 1)) not in seen.failed:
            continue
        due = seen.put_at[token] + (0, *SCHEDULE)[min(attempt - 1, len(SCHEDULE))]
        if at < due:
            yield f"{token}: attempt {attempt} was delivered at {at}, and was due at {due}"


@rule
def a_dead_letter_and_the_put_of_its_exhausted_handler_are_committed_together(history: History) -> Iterator[str]:
    for dead, given_up in history.part(Tries).looks:
        counts = Counter(given_up)
        for token in dead:
            if not counts[token]:
                yield f"{token} is a dead letter, and the put of its exhausted handler is not stored"
        for token, count in counts.items():
            if count > 1:
                yield f"the put of the exhausted handler of {token} is stored {count} times"
