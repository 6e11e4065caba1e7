"""The amount of fuzzing: a few fixed examples in every run, and more with ``make fuzz``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: Examples per test in `make fuzz`; 0 in a run of all tests.
LONG = int(os.environ.get("AIOZKQUEUE_FUZZ", "0"))

FUZZ = settings(
    max_examples=LONG or 25,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
