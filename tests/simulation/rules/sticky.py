"""Sticky queues: a reaper takes nothing out of anybody's hands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

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
