"""Pauses: no message of a paused queue is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.pausing import Rested
from tests.simulation.stories.pausing import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_message_of_a_paused_queue_is_delivered(history: History) -> Iterator[str]:
    pauses = history.part(Pauses)
    for paused, resumed in pauses.spans:
        for unit in history.units:
            for delivery in unit.takes:
                if paused + pauses.late < delivery.at < resumed:
                    yield (
                        f"{delivery.token} was delivered to {delivery.client} at {delivery.at}, paused from"
                        f" {paused} to {resumed}"
                    )


@rule
def no_message_is_claimed_during_a_pause(history: History) -> Iterator[str]:
    rested = history.part(Rested)
    for paused, resumed in rested.spans:
        for token, claims in rested.claims.items():
            for claimed in claims:
                if paused < claimed < min(resumed, rested.ended):
                    yield f"{token} was claimed at {claimed}, although its queue was paused from {paused} to {resumed}"
