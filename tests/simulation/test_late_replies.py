"""Retries whose delay begins when a single, late reply has shown ZooKeeper's time."""

from __future__ import annotations

import pytest

from tests.simulation.checker import check
from tests.simulation.programs import feature_of
from tests.simulation.workload import run


# With the lower bound of the time, messages were redelivered 2.7 s early.
@pytest.mark.parametrize("seed", [323411])
def test_a_retry_keeps_its_delay_if_the_only_reply_was_late(seed: int) -> None:
    feature_of(0)  # joins all features
    assert check(run(f"grouped_bundles {seed}", rough=False, feature="grouped_bundles")) == []
