"""Priorities and delays: no message is delivered early, and the most urgent one comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.tiers import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_message_is_delivered_before_it_is_due(history: History) -> Iterator[str]:
    dues = history.part(Order).dues
    for unit in history.units:
        for delivery in unit.takes:
            if delivery.at < dues.get(delivery.token, 0.0):
                yield f"{delivery.token} was delivered at {delivery.at}, and was due at {dues[delivery.token]}"


@rule
def a_single_consumer_receives_the_most_urgent_message_first(history: History) -> Iterator[str]:
    for taken in history.part(Order).drained:
        priorities = [priority for priority, _ in taken]
        if priorities != sorted(priorities):
            yield f"a single consumer received the messages in the order {taken}"
