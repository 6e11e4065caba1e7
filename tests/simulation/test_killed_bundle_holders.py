"""The messages of a process that is killed while it works on a bundle are each delivered to one other consumer."""

from __future__ import annotations

import pytest

from tests.simulation.bundle_holders import killed
from tests.simulation.killing import When


@pytest.mark.parametrize("when", When)
def test_a_holder_killed_at_any_request_leaves_its_messages_to_others_one_by_one(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed(number, when)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 10
