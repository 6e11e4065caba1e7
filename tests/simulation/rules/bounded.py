"""A queue with a size holds no more than that, and one session's credits for each that puts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.put.capacity import credits_of
from tests.simulation.checker import rule
from tests.simulation.programs.bounded import NARROW, SIZE, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History

CREDITS = credits_of(SIZE)  # as it is meant to be, whatever a mutation makes of it


@rule
def a_bounded_queue_exceeds_its_size_by_less_than_its_sessions_credits(history: History) -> Iterator[str]:
    most = history.part(Sizes).most
    producers = {unit.client for unit in history.units if NARROW in unit.puts.values()}
    bound = SIZE + max(0, len(producers) - 1) * CREDITS
    if most > bound:
        yield f"{most} messages were in a queue for {SIZE}, put by {len(producers)} sessions: {bound} are allowed"
