"""Sticky queues: a held message is not reassigned, and other nodes receive only late messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.sticky import Bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@dataclass
class Reaped:
    """Whether only reassignments can cause the loss of a claim in this history."""

    alone: bool = False


@rule
def a_reaper_takes_no_held_message(history: History) -> Iterator[str]:
    for unit in history.units if history.part(Reaped).alone else ():
        if unit.status is Status.NOT_COMMITTED and "ClaimLostError" in unit.why:
            yield f"{unit.client} lost its claim to a reaper: {unit.why}"


@rule
def a_sticky_message_goes_to_another_node_only_when_it_is_late(history: History) -> Iterator[str]:
    puts = history.part(Bound).puts
    for unit in history.units:
        for delivery in unit.takes:
            node, late = puts.get(delivery.token, (delivery.client, 0))
            if delivery.client != node and delivery.at < late:
                yield (
                    f"{delivery.token} of {node} was delivered to {delivery.client} at {delivery.at}, and is"
                    f" late only from {late}"
                )
