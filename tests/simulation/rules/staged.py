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
        for delivery in unit.takes:
            if delivery.at < opened.get(delivery.token, 0.0):
                yield (
                    f"{delivery.token} was delivered to {delivery.client} at {delivery.at}, and its batch was"
                    f" incomplete before {opened[delivery.token]}"
                )
