"""Sticky queues: a reaper takes nothing out of anybody's hands."""

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
    """Whether this is a history in which reapers alone could cost anybody a claim."""

    alone: bool = False


@rule
def a_reaper_takes_nothing_out_of_anybodys_hands(history: History) -> Iterator[str]:
    for unit in history.units if history.part(Reaped).alone else ():
        if unit.status is Status.NOT_COMMITTED and "ClaimLostError" in unit.why:
            yield f"{unit.client} lost its claim: {unit.why}"


@rule
def what_is_for_one_node_goes_to_no_other_before_it_is_late(history: History) -> Iterator[str]:
    puts = history.part(Bound).puts
    for unit in history.units:
        for one in unit.takes:
            node, late = puts.get(one.token, (one.client, 0))
            if one.client != node and one.at < late:
                yield f"{one.token} of {node} was given to {one.client} at {one.at}, it is late from {late} on"
