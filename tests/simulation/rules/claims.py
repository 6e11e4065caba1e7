"""Claims: a message has at most one holder at a time, and each claim ends."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import Delivery, History


@rule
def a_held_message_is_not_delivered_to_another_client(history: History) -> Iterator[str]:
    for token, deliveries in history.deliveries().items():
        for before, after in itertools.pairwise(deliveries):
            if before.until is not None and before.until <= after.at:
                continue
            if history.sessions_over.get(before.session, float("inf")) <= after.at:
                continue
            if history.forced_out(before) or history.forced_out(after) or _opened_between(history, before, after):
                continue
            if history.shown_after_session_end(after):
                continue
            yield f"{token} was delivered to {after.client} while {before.client} held it"


@rule
def a_holder_whose_claim_was_released_by_force_cannot_commit(history: History) -> Iterator[str]:
    for unit in history.units:
        for delivery in unit.takes if unit.status is Status.COMMITTED else ():
            for opened in history.opened:
                if (
                    opened.queue == delivery.queue
                    and delivery.at <= opened.began
                    and opened.ended <= (delivery.until or 0)
                ):
                    yield (
                        f"{delivery.token} was committed by {unit.client}, although its claim had been"
                        " released by force"
                    )


@rule
def no_lock_outlives_its_holder(history: History) -> Iterator[str]:
    yield from history.final.leftovers
    for queue, tokens in history.final.items.items():
        for token in tokens:
            yield f"{token} is still in {queue!r}, and no consumer could take it"


@rule
def an_ended_session_is_not_registered(history: History) -> Iterator[str]:
    for path in history.final.strangers:
        yield f"{path} still exists, although its session has ended"


@rule
def a_session_without_claims_counts_only_its_entries(history: History) -> Iterator[str]:
    """A session whose count is too high can take fewer messages, and at last none."""
    yield from history.miscounted


def _opened_between(history: History, before: Delivery, after: Delivery) -> bool:
    return any(
        opened.queue == before.queue and opened.began <= after.at and before.at <= opened.ended
        for opened in history.opened
    )
