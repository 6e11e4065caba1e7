"""Releases of several requests release everything in order despite faults, and leave no lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.queue.commit import release_claims
from tests.simulation.checker import check
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("feature", [None, "groups", "obstructed", "leases"])
def test_a_release_in_parts_breaks_no_guarantee(feature: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_claims, "PORTION", 1)  # each request releases one claim
    broken = [
        f"{seed}: {violation}"
        for seed in range(60)
        for violation in check(run(f"portions {seed}", rough=seed % 4 == 0, feature=feature))
    ]
    assert broken == []
