"""Deliberate defects that the checker must find. A defect that it does not find is a gap in the checker.

Most of them change requests (`sending`), so that they depend on the protocol and not on its code. A feature that makes
a promise adds a module here with the defects that break it. A defect is a function of a `pytest.MonkeyPatch` that is
registered by `@mutation`. Its name is part of the seeds, so a renamed defect has other histories.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.joining import load
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.simulation.history import History


@dataclass(frozen=True)
class Mutation:
    """A defect, and the histories that show it."""

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    history: Callable[[str], History]


_registered: list[Mutation] = []

rough = partial(run, rough=True)


def mutation(
    history: Callable[[str], History] = run,
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Register a defect; ``history`` makes the histories that must show it from seeds.

    It is `run`, ``partial(run, feature="…")`` if only the programs of a feature show the defect, or a story.
    """

    def register(function: Callable[[pytest.MonkeyPatch], None]) -> None:
        _registered.append(Mutation(function.__name__, function, history))

    return register


def mutations() -> list[Mutation]:
    """Return all defects."""
    load("tests.simulation.mutations")
    return _registered
