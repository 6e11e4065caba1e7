"""Filters: a consumer receives only messages that pass its filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.filters import CLASSES, Choices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_consumer_receives_only_messages_that_pass_its_filter(history: History) -> Iterator[str]:
    choices = history.part(Choices)
    for token, own in choices.delivered:
        asked = choices.classes[token]
        if asked is None or CLASSES.values.index(asked) > CLASSES.values.index(own):
            yield f"{token}, which requires class {asked}, was delivered to a consumer of class {own}"
