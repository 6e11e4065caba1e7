"""The checker is worth something: it finds every deliberate defect."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.simulation.checker import check
from tests.simulation.mutations import Mutation, mutations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 1_500
ENOUGH = 3


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutation", mutations(), ids=lambda one: one.name)
def test_a_deliberate_defect_is_found(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    mutation.apply(monkeypatch)
    found, broken = 0, dict[str, int]()
    for number in range(1, MOST + 1):
        violations = check(mutation.history(f"{mutation.name} {number}"))
        found += bool(violations)
        for rule in {violation.partition(":")[0] for violation in violations}:
            broken[rule] = broken.get(rule, 0) + 1
        if found >= ENOUGH:
            break
    record_property("figures", f"{mutation.name}: found in {found} of {number} histories, by {broken}")
    assert found
