"""Batches: one commit ends the messages that have not failed and stores the puts, and no failed message is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.batch_handlers import BATCHED, STORED, Calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import Delivery, History


@rule
def a_batch_is_not_larger_than_its_listener_allows(history: History) -> Iterator[str]:
    for call in history.part(Calls).calls:
        if not 0 < len(call.tokens) <= call.limit or len(set(call.tokens)) < len(call.tokens):
            yield f"a handler of {call.work.client} got {call.tokens}, and its batches have up to {call.limit} messages"


@rule
def the_puts_of_a_batch_are_stored_exactly_when_its_messages_end(history: History) -> Iterator[str]:
    """This also holds if the client does not know the outcome of the commit, or was killed."""
    stored = {*history.final.copies(), *history.deliveries()}
    for call in history.part(Calls).calls:
        if not all(token in stored for token, queue in call.work.puts.items() if queue == STORED):
            continue
        for delivery in call.work.takes if call.work.puts else ():
            if _is_back(history, delivery):
                yield f"{delivery.token} was delivered again or kept, although the puts of its batch are stored"


@rule
def a_rejected_message_of_a_batch_is_not_lost(history: History) -> Iterator[str]:
    """The message becomes a dead letter, or is delivered again if its rejection was not applied."""
    if any(purge.queue == BATCHED for purge in history.purged):
        return
    rejected, ends, stored = history.part(Calls).rejected, history.ends(), history.final.copies()
    undecided = {
        delivery.token
        for unit in history.units
        if unit not in rejected and unit.status in (Status.UNKNOWN, Status.PENDING)
        for delivery in unit.takes
    }
    for unit in rejected:
        for token in unit.rejects:
            if not (ends[token] or stored[token] or token in undecided):
                yield f"{token}, which {unit.client} has rejected, is lost"


def _is_back(history: History, delivery: Delivery) -> bool:
    """Whether a message still exists after this delivery."""
    if history.final.copies()[delivery.token] or any(
        delivery.token in tokens for tokens in history.final.dead.values()
    ):
        return True
    return any(
        again.at > delivery.at and not history.shown_after_session_end(again) and not history.forced_out(again)
        for again in history.deliveries()[delivery.token]
    )
