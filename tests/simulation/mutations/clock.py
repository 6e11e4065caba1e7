"""Defects in the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.runtime.clock import Clock
from aiozkqueue.testing.clock import TestClock, TestTimer
from tests.simulation.mutations import mutation
from tests.simulation.stories.clock import a_test_clock_moves_past_delays_and_timeouts as story

if TYPE_CHECKING:
    import pytest


@mutation(story)
def clock_move_fires_no_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TestTimer, "move", lambda *_: None)


@mutation(story)
def clock_move_not_applied_to_server_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("aiozkqueue.runtime.clock.ServerClock.local", lambda self: self._clock.monotonic() * 1000)


@mutation(story)
def timers_set_on_the_system_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TestClock, "call_later", Clock.call_later)
