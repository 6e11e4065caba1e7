"""Queues of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.dialects import ForeignPaths
from tests.simulation.mutations import mutation
from tests.simulation.stories.dialects import a_peer_takes_from_a_curator_queue_too

if TYPE_CHECKING:
    import pytest


@mutation(a_peer_takes_from_a_curator_queue_too)
def locks_where_no_peer_looks_for_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ForeignPaths, "lock", lambda self, item: f"{self.due}/{item}")
    patch.setattr(ForeignPaths, "lock_of", lambda self, name: None)  # noqa: ARG005 - it does not know theirs either
