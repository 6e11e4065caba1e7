"""Priorities and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.tiers import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def nothing_is_handed_over_before_it_is_due(history: History) -> Iterator[str]:
    dues = history.part(Order).dues
    for unit in history.units:
        for one in unit.takes:
            if one.at < dues.get(one.token, 0.0):
                yield f"{one.token} was handed over at {one.at}, and is due at {dues[one.token]}"


@rule
def who_is_alone_takes_the_most_urgent_first(history: History) -> Iterator[str]:
    for taken in history.part(Order).drained:
        priorities = [priority for priority, _ in taken]
        if priorities != sorted(priorities):
            yield f"taken in the order {taken}"
