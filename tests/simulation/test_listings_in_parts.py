"""A listing that is examined name by name, while all other tasks run in between, breaks no guarantee."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.queue.claim import collapse, lane_reader
from aiozkqueue.runtime import strings
from tests.simulation.checker import check
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator

HISTORIES = 25


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("feature", ["groups", "filters", "staged", "keys"])
def test_listings_examined_name_by_name_break_no_guarantee(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_reader, "EXAMINED", 1)
    monkeypatch.setattr(collapse, "_EXAMINED", 1)
    monkeypatch.setattr(strings, "_PART", 1)
    for number in range(HISTORIES):
        violations = check(run(f"in parts {number}", feature=feature))
        assert not violations, f"{feature} {number}"
