"""Bounded queues: a queue exceeds its size only by the credits of the sessions that put to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.put.capacity import credits_of
from tests.simulation.checker import rule
from tests.simulation.programs.bounded import NARROW, SIZE, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History

CREDITS = credits_of(SIZE)  # read now, before a mutation changes it


@rule
def a_bounded_queue_exceeds_its_size_only_by_the_credits_of_its_sessions(history: History) -> Iterator[str]:
    most = history.part(Sizes).most
    producers = {unit.client for unit in history.units if NARROW in unit.puts.values()}
    bound = SIZE + max(0, len(producers) - 1) * CREDITS
    if most > bound:
        yield f"{len(producers)} sessions put {most} messages to a queue with the size {SIZE}; {bound} are allowed"
