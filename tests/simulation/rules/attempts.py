"""Attempts: the policy of a queue limits the deliveries of a message, and decides when it becomes a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_message_is_delivered_more_often_than_its_policy_allows(history: History) -> Iterator[str]:
    for token, deliveries in history.deliveries().items():
        limit = history.limits.get(deliveries[0].queue)
        if limit is not None and len(deliveries) > limit * (1 + history.redriven[deliveries[0].queue]):
            yield f"{token} was delivered {len(deliveries)} times, and its policy allows {limit}"


@rule
def messages_become_dead_letters_exactly_when_the_policy_says(history: History) -> Iterator[str]:
    deliveries = history.deliveries()
    rejected = {token for unit in history.units if unit.status is not Status.NOT_COMMITTED for token in unit.rejects}
    dead = {token for tokens in history.final.dead.values() for token in tokens}
    for queue, tokens in history.final.dead.items():
        for token in tokens:
            if token not in rejected and not history.exhausted(queue, len(deliveries.get(token, ()))):
                yield (
                    f"{token} of {queue!r} is a dead letter after {len(deliveries.get(token, ()))} deliveries; its"
                    f" policy allows {history.limits[queue]}"
                )
    for unit in history.units:
        if unit.status is Status.COMMITTED:
            for token in sorted(unit.rejects - dead):
                if history.redriven[next(delivery.queue for delivery in unit.takes if delivery.token == token)]:
                    continue
                yield f"{token} was rejected by {unit.client}, and is not a dead letter"
