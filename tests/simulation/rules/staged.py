"""Batches that are seen as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.staged import Batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def nothing_of_a_batch_is_seen_before_it_is_complete(history: History) -> Iterator[str]:
    opened = history.part(Batches).opened
    for unit in history.units:
        for one in unit.takes:
            if one.at < opened.get(one.token, 0.0):
                yield f"{one.token} was given to {one.client} at {one.at}, and its batch opened at {opened[one.token]}"
