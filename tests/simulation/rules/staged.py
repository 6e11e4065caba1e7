"""Pending batches: no message is delivered before its whole batch is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.staged import Batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_message_of_a_pending_batch_is_delivered(history: History) -> Iterator[str]:
    opened = history.part(Batches).opened
    for unit in history.units:
        for one in unit.takes:
            if one.at < opened.get(one.token, 0.0):
                yield (
                    f"{one.token} was delivered to {one.client} at {one.at}, and its batch was incomplete before"
                    f" {opened[one.token]}"
                )
