"""Queues of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.dialects import ForeignPaths
from aiozkqueue.queue.claims.sightings import Sightings
from tests.simulation.mutations import mutation
from tests.simulation.stories.dialects import (
    a_peer_lets_go_of_what_one_of_ours_asks_for,
    a_peer_takes_from_a_curator_queue_too,
)

if TYPE_CHECKING:
    import pytest


@mutation(a_peer_takes_from_a_curator_queue_too)
def locks_where_no_peer_looks_for_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ForeignPaths, "lock", lambda self, item: f"{self.due}/{item}")
    patch.setattr(ForeignPaths, "lock_of", lambda self, name: None)  # noqa: ARG005 - it does not know theirs either


@mutation(a_peer_lets_go_of_what_one_of_ours_asks_for)
def a_refusal_is_believed_whatever_has_been_heard_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sightings, "contended", lambda self, lock: self._levels.lock(lock))
