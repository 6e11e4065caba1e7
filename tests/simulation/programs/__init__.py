"""What the processes of a history do. A feature adds a module of its own here: a `Feature`, given to `join`.

One history in two has one feature in it, so that a feature changes nothing in the others.
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

#: The queues of every history. Those that a feature makes by `Recorder.configure` come to them.
QUEUES = ("a", "b")

#: Run in a process, given its name and its session. It writes down what it is told in the recorder's history.
Program = Callable[["Recorder", str, "zq.QueueSession"], Awaitable[None]]
#: Run before all programs, on a calm ensemble.
Preparation = Callable[["Recorder", "zq.QueueSession"], Awaitable[None]]


@dataclass(frozen=True)
class Feature:
    """What a feature adds to a history."""

    name: str
    prepare: Preparation
    """Makes its queues."""
    programs: Sequence[Program]
    """Each process runs one of them at least."""
    finish: Callable[[Recorder, Mapping[str, Znode]], None] | None = None
    """Looks at what is left on the servers at the end: the znodes by their paths."""
    relax: Preparation | None = None
    """Run when all is calm again, before what is left is taken: makes its queues such that anybody can take it."""


features: dict[str, Feature] = {}


def join(feature: Feature) -> None:
    """Let a feature take part in the histories made by chance."""
    features[feature.name] = feature


def feature_of(seed: int) -> str | None:
    """The feature that the history of a seed has in it; None in half of them."""
    load("tests.simulation.programs")
    names = sorted(features)
    return names[seed // 8 % len(names)] if seed // 4 % 2 and names else None
