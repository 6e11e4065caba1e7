"""Defects in pending batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.batches import staging
from aiozkqueue.layout import batch_field, bundle_prefix
from aiozkqueue.operations import bundles
from aiozkqueue.queue.candidates.batches import BatchVisibility
from aiozkqueue.queue.commit import bundle_puts
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
    patch.setattr(staging.Fence, "checks", lambda self: (Check(self.path),))


@mutation(of_batches)
def completed_batch_stays_locked(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> list[object]:
        return []

    patch.setattr(staging, "unlocking", nothing)


in_bundles = partial(run, feature="staged_bundles")


@mutation(in_bundles)
def batch_left_out_of_the_name_of_its_bundle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bundle_puts, "bundle_prefix", lambda own, ids, _: bundle_prefix(own, ids))


@mutation(in_bundles)
def batch_bundled_with_other_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bundle_puts, "batch_field", lambda name: AnyBatch(known) if (known := batch_field(name)) else known)


class AnyBatch(str):
    """A field that is equal to the field of every other put."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash("")

    def __eq__(self, _: object) -> bool:
        return True


@mutation(in_bundles)
def pending_bundles_dissolved(patch: pytest.MonkeyPatch) -> None:
    async def all_of_them(_: object, names: list[str]) -> list[str]:
        return names

    patch.setattr(bundles, "seen", all_of_them)
