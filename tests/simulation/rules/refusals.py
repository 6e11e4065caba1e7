"""Refusals: a session does not send a refused write again unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def no_refused_write_is_sent_again_unchanged(history: History) -> Iterator[str]:
    for refusal in history.part(Refusals).again:
        yield (
            f"{refusal.atomic_write} was refused twice with {refusal.error} at {refusal.operation}, and"
            " nothing had changed"
        )
