"""The checker works: it finds every deliberate defect."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.simulation.checker import check
from tests.simulation.mutations import Mutation, mutations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 1_500


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.name)
def test_each_mutation_is_found(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    mutation.apply(monkeypatch)
    for number in range(1, MOST + 1):
        rules = {violation.partition(":")[0] for violation in check(mutation.history(f"{mutation.name} {number}"))}
        if rules:
            record_property("figures", f"{mutation.name}: found by the history {number}, by {', '.join(sorted(rules))}")
            return
    pytest.fail(f"no rule finds the defect {mutation.name} in {MOST} histories")
