"""Moves: a finished move leaves no message in its source that was in it when the move began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.moves import SOURCE, Moved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_finished_move_leaves_no_message_in_its_source(history: History) -> Iterator[str]:
    deliveries = history.deliveries()
    for began, done in history.part(Moved).spans:
        for token, (queue, unit) in history.put().items():
            if queue != SOURCE or unit.status is not Status.COMMITTED or unit.decided > began:
                continue
            for delivery in deliveries.get(token, ()):
                if delivery.queue == SOURCE and delivery.at > done and not history.shown_after_session_end(delivery):
                    yield (
                        f"{token} was delivered to {delivery.client} at {delivery.at}, after a move from"
                        f" {began} to {done}"
                    )
