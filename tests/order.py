"""The order in which workers receive tests: slow tests first, so that they do not all run at the end on one worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

SPARK = "tests/spark/"
#: The modules that take more than half a minute of processor time, the longest first.
LONG = (
    "faults/test_cancellation.py",
    "http/test_browser.py",
    "docs/test_pages.py",
    "cli/test_worker.py",
)


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # the base class is published without types
    """A scheduler that assigns whole modules, and all Spark tests to one worker, which starts the only Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


def with_slow_tests(items: list[pytest.Item]) -> set[Path]:
    """Return the modules that have a slow test, whether the run includes it or not."""
    return {item.path for item in items if item.get_closest_marker("slow") is not None}


def slowest_first(items: list[pytest.Item], slow: set[Path]) -> None:
    """Put the Spark tests first, then the modules of `LONG`, then the other modules with a slow test."""
    root = Path(__file__).parent
    long = {root / module: place for place, module in enumerate(LONG, 1)}
    rest = len(LONG) + 1
    places = {path: long.get(path, rest if path in slow else rest + 1) for path in {item.path for item in items}}
    places |= dict.fromkeys((path for path in places if root / "spark" in path.parents), 0)
    items.sort(key=lambda item: places[item.path])
