"""The order in which workers are given tests: what takes long first, so that none is left with it at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

SPARK = "tests/spark/"


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # published without types
    """A worker is given a module at a time, and all of Spark's as one: each worker would start a Spark of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


def slowest_first(items: list[pytest.Item]) -> None:
    """Put Spark's tests first, then the other modules in which a test is slow."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    spark = Path(__file__).parent / "spark"
    items.sort(key=lambda item: 0 if spark in item.path.parents else 1 if item.path in slow else 2)
