"""A consumer with filters is handed what passes them, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.filters import CLASSES, Choices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_consumer_is_handed_only_what_passes_its_filter(history: History) -> Iterator[str]:
    choices = history.part(Choices)
    for token, own in choices.handed:
        asked = choices.classes[token]
        if asked is None or CLASSES.values.index(asked) > CLASSES.values.index(own):
            yield f"{token}, which asks for {asked}, was handed to a consumer of class {own}"
