"""Pause: nothing is claimed from a queue while it is paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.pausing import Rested
from tests.simulation.stories.pausing import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def nothing_is_taken_from_a_queue_that_is_paused(history: History) -> Iterator[str]:
    pauses = history.part(Pauses)
    for told, resumed in pauses.spans:
        for unit in history.units:
            for one in unit.takes:
                if told + pauses.late < one.at < resumed:
                    yield f"{one.token} was given to {one.client} at {one.at}, the queue was paused since {told}"


@rule
def nothing_is_claimed_while_a_queue_is_known_to_be_paused(history: History) -> Iterator[str]:
    rested = history.part(Rested)
    for told, resumed in rested.spans:
        for token, claims in rested.claims.items():
            for claimed in claims:
                if told < claimed < resumed:
                    yield f"{token} was claimed at {claimed}, the queue was paused from {told} to {resumed}"
