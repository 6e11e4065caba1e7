"""Refusals: a session that is told no does not ask the same again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def nothing_is_refused_twice_alike(history: History) -> Iterator[str]:
    for one in history.part(Refusals).again:
        yield f"{one.atomic_write} was refused twice by {one.error} at {one.operation}, and nothing had changed"
