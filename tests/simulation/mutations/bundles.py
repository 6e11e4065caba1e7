"""Defects in the protocol of bundles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import BundleRecord
from aiozkqueue.queue.claim import bundles as claim_bundles
from aiozkqueue.queue.commit import group_commit
from aiozkqueue.queue.redelivery import bundles as redelivery_bundles
from aiozkqueue.queue.state import bundle_hold
from aiozkqueue.zookeeper import Check, Create, Delete, Operation, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import replace_where
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Versioned

bundled = partial(run, feature="bundles")
bundled_rough = partial(run, feature="bundles", rough=True)


def is_record(one: Operation) -> bool:
    return "/meta/bundle-" in one.path


@mutation(bundled_rough)
def record_written_at_any_version(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch, lambda one: is_record(one) and isinstance(one, SetData | Delete), lambda one: one._replace(version=-1)
    )


@mutation(bundled_rough)
def refused_member_left_among_the_ended(patch: pytest.MonkeyPatch) -> None:
    begin = bundle_hold.BundleHold.begin

    def kept(self: bundle_hold.BundleHold) -> None:
        ending = self._ending
        begin(self)
        self._ending = ending & ~self.done

    patch.setattr(bundle_hold.BundleHold, "begin", kept)


@mutation(bundled)
def several_multis_of_one_bundle_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_commit.GroupCommitter, "_must_park", lambda *_: False)
    replace_where(
        patch, lambda one: is_record(one) and isinstance(one, SetData | Delete), lambda one: one._replace(version=-1)
    )


@mutation(bundled_rough)
def dissolve_ignores_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    decode = BundleRecord.decode.__func__  # type: ignore[attr-defined]  # of a class method

    def undone(cls: type[BundleRecord], data: bytes) -> BundleRecord:
        record: BundleRecord = decode(cls, data)
        return BundleRecord(record.claim, 0, record.attempts)

    patch.setattr(BundleRecord, "decode", classmethod(undone))


@mutation(bundled_rough)
def dissolve_without_the_lock(patch: pytest.MonkeyPatch) -> None:
    messages = redelivery_bundles.read_bundle

    async def unlocked(*args: Any, **options: Any) -> redelivery_bundles.BundleState | None:
        state = await messages(*args, **options)
        return None if state is None else state._replace(lock=None)

    patch.setattr(redelivery_bundles, "read_bundle", unlocked)
    patch.setattr(redelivery_bundles, "Create", _without_lock)


def _without_lock(path: str, data: bytes = b"", *, ephemeral: bool = False) -> Operation:
    return Check(path.rpartition("/")[0], -1) if ephemeral else Create(path, data)


@mutation(bundled_rough)
def dissolve_forgets_attempts(patch: pytest.MonkeyPatch) -> None:
    single = redelivery_bundles._single

    def fresh(paths: Any, path: str, message: Any, attempts: int, created: int) -> list[Operation]:
        del attempts
        return single(paths, path, message, 0, created)

    patch.setattr(redelivery_bundles, "_single", fresh)


@mutation(bundled)
def rest_kept_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim_bundles.HeldBundles, "_return", lambda *_: [])


@mutation(bundled_rough)
def tenure_of_another_believed(patch: pytest.MonkeyPatch) -> None:
    """A bundle with a record is claimed as if it had none."""
    is_ours = claim_bundles._is_ours

    def any_record(record: Versioned | None, claim_id: str) -> bool:
        return record is not None or is_ours(record, claim_id)

    patch.setattr(claim_bundles, "_is_ours", any_record)
    replace_where(
        patch,
        lambda one: is_record(one) and isinstance(one, Create),
        lambda one: Check(one.path.rpartition("/")[0], -1),
    )
