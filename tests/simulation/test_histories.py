"""Thousands of random programs with faults, which must not break a guarantee.

``HISTORIES=n`` sets their number (`make simulate`), ``FIRST=n`` the first seed, so that many histories can be run in
parts; ``SEED=n`` runs a failed seed alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
from tests.simulation.checker import check
from tests.simulation.joining import load
from tests.simulation.programs import feature_of
from tests.simulation.stories import Story, stories
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HISTORIES = int(os.environ.get("HISTORIES", "4000"))
FIRST = int(os.environ.get("FIRST", "0"))
ROUGH = 4  # one history in this many
SEED = os.environ.get("SEED")
#: Two classes, the second for `make test-slow`. Each has parts, which `make simulate` distributes among processes.
HALVES = 1 if SEED else 2
PARTS = 1 if SEED else 10


#: Parametrizes a test by all parts, of which `make test` runs the first.
in_parts = pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the turns of all claim dispatchers."""
    counts, serve = Counter[str](), ClaimDispatcher._serve

    async def counted(self: ClaimDispatcher) -> None:
        counts["turns"] += 1
        await serve(self)

    monkeypatch.setattr(ClaimDispatcher, "_serve", counted)
    return counts


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _seeds(start: int, number: int, step: int) -> range:
    return range(FIRST + start, FIRST + number, step)


class Histories:
    half: int

    @pytest.mark.timeout(0)
    @in_parts
    def test_no_history_breaks_a_guarantee(
        self, part: int, turns: Counter[str], record_property: Callable[[str, object], None]
    ) -> None:
        seeds = [int(SEED)] if SEED else _seeds(self.half + HALVES * part, HISTORIES, HALVES * PARTS)
        counts = Counter[str]()
        broken: list[str] = []
        began = time.process_time()
        for seed in seeds:
            trace: list[tuple[object, ...]] = []
            history = run(seed, rough=seed % ROUGH == 0, feature=feature_of(seed), trace=trace)
            counts["faults"] += sum(fault is not None for _, _, _, fault in trace)
            counts["requests"] += len(trace)
            counts["deliveries"] += sum(len(unit.takes) for unit in history.units)
            counts["ZooKeeper sessions ended"] += len(history.sessions_over)
            broken += [f"SEED={seed}: {violation}" for violation in check(history)]
            # A turn that neither sends nor waits is part of a busy loop.
            if (taken := turns.pop("turns", 0)) > len(trace):
                broken.append(f"SEED={seed}: the dispatchers took {taken} turns for {len(trace)} requests")
        rate = len(seeds) / (time.process_time() - began)
        record_property(
            "figures",
            f"{len(seeds)} histories, {rate:.0f} a second of processor time; {dict(counts)}; {len(broken)} violations",
        )
        assert not broken, f"{len(broken)} violations. `make simulate SEED=n` repeats one history.\n" + "\n".join(
            broken[:20]
        )


class TestOneHalf(Histories):
    half = 0


if not SEED:

    @pytest.mark.slow
    class TestTheOtherHalf(Histories):
        half = 1


@pytest.mark.timeout(0)
@in_parts
@pytest.mark.parametrize("feature", ["bundles", "grouped_bundles", "staged_bundles", "streamed_bundles"])
def test_no_history_with_bundles_breaks_a_guarantee(feature: str, part: int) -> None:
    feature_of(0)  # joins all features
    broken = [
        f"{feature} {seed}: {violation}"
        for seed in _seeds(part, HISTORIES // 8, PARTS)
        for violation in check(run(f"{feature} {seed}", rough=seed % ROUGH == 0, feature=feature))
    ]
    assert broken == []


load("tests.simulation.stories")


# The checker finds each defect that only a story shows within 28 of its histories, and most within 4.
@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 200), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("story", stories, ids=lambda story: story.__name__)
def test_no_story_breaks_a_guarantee(story: Story, seeds: range) -> None:
    for seed in seeds:
        assert check(story(seed)) == [], seed
