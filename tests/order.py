"""The order in which workers receive tests: slow tests first, so that they do not all run at the end on one worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

SPARK = "tests/spark/"


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # the base class is published without types
    """A scheduler that assigns whole modules, and all Spark tests to one worker, which starts the only Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


def slowest_first(items: list[pytest.Item]) -> None:
    """Put the Spark tests first, then the other modules with a slow test."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    spark = Path(__file__).parent / "spark"
    items.sort(key=lambda item: 0 if spark in item.path.parents else 1 if item.path in slow else 2)
