"""Defects in pending batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.batches import staging
from aiozkqueue.queue.candidates.batches import BatchVisibility
from aiozkqueue.zookeeper import Check
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

of_batches = partial(run, feature="staged")


@mutation(of_batches)
def pending_batches_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchVisibility, "of_listing", lambda _self, names: names)


@mutation(of_batches)
def watched_batches_assumed_complete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchVisibility, "is_open", lambda *_: True)


@mutation(of_batches)
def batch_put_without_its_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staging.Fence, "check", lambda self: Check(self.path))


@mutation(of_batches)
def completed_batch_stays_locked(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> list[object]:
        return []

    patch.setattr(staging, "unlocking", nothing)
