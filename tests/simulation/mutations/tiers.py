"""Priorities and schedules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import HOUR, later_of
from aiozkqueue.queue.candidates import priorities
from aiozkqueue.queue.candidates.delay import DelayedIndex
from aiozkqueue.queue.put import delay
from aiozkqueue.queue.put.delay import DelayedPlace
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

of_tiers = partial(run, feature="tiers")


@mutation(of_tiers)
def what_is_scheduled_is_taken_a_little_early(patch: pytest.MonkeyPatch) -> None:
    due = DelayedIndex.due
    patch.setattr(DelayedIndex, "due", lambda self, now: due(self, now + 200))


@mutation(of_tiers)
def the_due_time_is_that_of_an_hour_in_the_past(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedPlace, "_is_past", lambda *_: True)


@mutation(of_tiers)
def the_least_urgent_comes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(priorities.PriorityIndex, "__iter__", lambda self: reversed(self._levels))


@mutation(of_tiers)
def what_is_scheduled_lies_in_the_folder_of_another_hour(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delay, "later_of", lambda due: later_of(due + 1000 * HOUR))
