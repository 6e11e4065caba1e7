"""One clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.runtime.clock import Clock
from aiozkqueue.testing.clock import TestClock, TestTimer
from tests.simulation.mutations import mutation
from tests.simulation.stories.clock import a_clock_is_moved_while_messages_wait_for_their_time as story

if TYPE_CHECKING:
    import pytest


@mutation(story)
def a_clock_that_is_moved_and_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TestTimer, "move", lambda *_: None)


@mutation(story)
def a_move_that_zookeepers_time_does_not_know_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("aiozkqueue.queue.runtime.clock.ServerClock.local", lambda self: self._clock.monotonic() * 1000)


@mutation(story)
def a_wait_that_goes_by_another_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TestClock, "call_later", Clock.call_later)
