"""Streams: a batch is the same whenever it is tried, what it holds is offered to nobody else, and ends once read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.streamed import STREAMED, Batches
from tests.simulation.programs.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_batch_of_a_stream_is_the_same_whenever_it_is_tried(history: History) -> Iterator[str]:
    yield from history.part(Streams).differed


@rule
def what_a_stream_holds_is_offered_to_nobody(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    handed, batches = history.handed(), history.part(Batches)
    sunk = history.part(Streams).sunk
    own = {id(take) for one in sunk for take in one.unit.takes}  # another checkpoint may read what this one has not
    for written in sunk:
        if written.number in batches.given_back:
            continue
        for one in written.unit.takes:
            for other in handed[one.token]:
                if id(other) not in own and other.at >= one.at and not history.stood_still(other):
                    yield f"{one.token} of batch {written.number} was given to {other.client}, too"


@rule
def a_batch_whose_acknowledgement_has_begun_is_never_returned_again(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    batches, handed = history.part(Batches), history.handed()
    yield from batches.returned
    for number, begun in batches.begun.items():
        for token in batches.held[number].values():
            for one in handed.get(token, ()):
                if one.at > begun and not history.stood_still(one):
                    yield f"{token} of batch {number} was given to {one.client} after its acknowledgement had begun"


@rule
def what_no_task_has_read_is_never_ended_by_an_acknowledgement(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    batches = history.part(Batches)
    for number, gone in batches.gone.items():
        streams = {stream for asked, stream in batches.asked if asked >= number}
        if gone and not any(gone <= batches.read.get(stream, set()) for stream in streams):
            yield f"{sorted(gone)} of batch {number} have gone, and no stream that acknowledged it has read them"


def _forced_open(history: History) -> bool:
    return any(one.queue == STREAMED for one in history.opened)
