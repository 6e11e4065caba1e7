"""Streams: a batch is the same whenever it is tried, and what it holds is offered to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.streams import STREAMED, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_batch_of_a_stream_is_the_same_whenever_it_is_tried(history: History) -> Iterator[str]:
    yield from history.part(Checkpoint).differed


@rule
def what_a_stream_holds_is_offered_to_nobody(history: History) -> Iterator[str]:
    if any(one.queue == STREAMED for one in history.opened):
        return
    handed = history.handed()
    for number, unit in history.part(Checkpoint).sink.items():
        for one in unit.takes:
            for other in handed[one.token]:
                if other is not one and other.at >= one.at and not history.stood_still(other):
                    yield f"{one.token} of batch {number} was given to {other.client}, too"
