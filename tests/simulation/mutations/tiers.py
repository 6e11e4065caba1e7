"""Defects in priorities and delays."""

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
def scheduled_messages_claimed_early(patch: pytest.MonkeyPatch) -> None:
    due = DelayedIndex.due
    patch.setattr(DelayedIndex, "due", lambda self, now: due(self, now + 200))


@mutation(of_tiers)
def scheduled_messages_stored_as_past(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedPlace, "_is_past", lambda *_: True)


@mutation(of_tiers)
def priorities_reversed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(priorities.PriorityIndex, "__iter__", lambda self: reversed(self._levels))


@mutation(of_tiers)
def scheduled_messages_stored_in_the_wrong_hour(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delay, "later_of", lambda due: later_of(due + 1000 * HOUR))
