"""The programs that the processes of a history run. A feature adds a module here and passes a `Feature` to `join`.

Half of the histories contain one feature, so that a feature does not change the other half.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.joining import load

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

#: The queues of every history. A feature adds its own with `Recorder.configure`.
QUEUES = ("a", "b")

#: Runs in a process, with the name of the process and its session. It records its results in the recorder's history.
Program = Callable[["Recorder", str, "zq.QueueSession"], Awaitable[None]]
#: Runs before all programs, on an ensemble without faults.
Preparation = Callable[["Recorder", "zq.QueueSession"], Awaitable[None]]


@dataclass(frozen=True)
class Feature:
    """The parts of a history that a feature contributes."""

    name: str
    prepare: Preparation
    """Creates its queues."""
    programs: Sequence[Program]
    """Each process runs at least one of them."""
    finish: Callable[[Recorder, Mapping[str, Znode]], None] | None = None
    """Examines the znodes that are left on the servers at the end, by their paths."""
    relax: Preparation | None = None
    """Runs after the faults: makes each remaining message available to the last consumer."""
    apart: bool = False
    """Whether the feature changes the queues of every program, and therefore has separate histories."""


features: dict[str, Feature] = {}


def join(feature: Feature) -> None:
    """Add a feature to the random histories."""
    features[feature.name] = feature


def feature_of(seed: int) -> str | None:
    """Return the feature of the history with this seed; None in half of the histories."""
    load("tests.simulation.programs")
    names = sorted(name for name, feature in features.items() if not feature.apart)
    return names[seed // 8 % len(names)] if seed // 4 % 2 and names else None
