"""Streams: a retried batch is unchanged, its messages go to no other consumer, and only messages that were read end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.streamed import STREAMED, Batches
from tests.simulation.programs.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_retried_batch_has_the_same_messages(history: History) -> Iterator[str]:
    yield from history.part(Streams).differed


@rule
def messages_held_by_a_stream_are_not_delivered_to_others(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    deliveries, batches = history.deliveries(), history.part(Batches)
    sunk = history.part(Streams).sunk
    own = {id(take) for batch in sunk for take in batch.unit.takes}  # another checkpoint may read the rest
    for written in sunk:
        if written.number in batches.given_back:
            continue
        for delivery in written.unit.takes:
            for other in deliveries[delivery.token]:
                if id(other) not in own and other.at >= delivery.at and not history.shown_after_session_end(other):
                    yield f"{delivery.token} of batch {written.number} was also delivered to {other.client}"


@rule
def a_batch_is_not_redelivered_after_its_acknowledgement_began(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    batches, deliveries = history.part(Batches), history.deliveries()
    yield from batches.returned
    for number, begun in batches.begun.items():
        for token in batches.held[number]:
            for delivery in deliveries.get(token, ()):
                if delivery.at > begun and not history.shown_after_session_end(delivery):
                    yield (
                        f"{token} of batch {number} was delivered to {delivery.client} after its acknowledgement began"
                    )


@rule
def no_unread_message_is_acknowledged(history: History) -> Iterator[str]:
    if _forced_open(history):
        return
    batches = history.part(Batches)
    for number, gone in batches.gone.items():
        streams = {stream for asked, stream in batches.asked if asked >= number}
        if gone and not any(gone <= batches.read.get(stream, set()) for stream in streams):
            yield f"{sorted(gone)} of batch {number} ended, and no stream that acknowledged it had read them"


def _forced_open(history: History) -> bool:
    return any(opened.queue == STREAMED for opened in history.opened)
