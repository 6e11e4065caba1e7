"""Defects in the protocol of bundles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.layout import BundleRecord, bundle_prefix, encode, is_bundle, is_bundle_at, item_id
from aiozkqueue.operations import bundles as operations_bundles
from aiozkqueue.operations import moves
from aiozkqueue.queue.candidates import backlog, groups
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.claim import bundle_claimer
from aiozkqueue.queue.claim import bundles as claim_bundles
from aiozkqueue.queue.claim.claim_batches import ClaimBatches
from aiozkqueue.queue.commit import bundle_puts
from aiozkqueue.queue.commit import bundles as commit_bundles
from aiozkqueue.queue.commit.multi import UnsentWrites
from aiozkqueue.queue.redelivery import bundles as redelivery_bundles
from aiozkqueue.queue.state import bundle_hold
from aiozkqueue.zookeeper import Check, Create, Delete, Operation, SetData
from tests.simulation.bundle_holders import killed_holders
from tests.simulation.faulty_calls import faulty_call
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import replace_where
from tests.simulation.stories.bundles import (
    a_queue_is_counted_while_a_bundle_ends,
    messages_of_a_bundle_are_redelivered_after_their_delay,
    messages_of_a_returned_bundle_keep_their_attempts,
)
from tests.simulation.stories.pausing import a_queue_is_paused_while_a_session_has_messages_of_a_bundle_at_hand
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.layout import AttemptRecord
    from aiozkqueue.zookeeper import Versioned

bundled = partial(run, feature="bundles")
bundled_rough = partial(run, feature="bundles", rough=True)
beside_groups = partial(run, feature="grouped_bundles")


def is_record(operation: Operation) -> bool:
    return "/meta/bundle-" in operation.path


@mutation(faulty_call("end_after_release"))
def record_written_at_any_version(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: is_record(operation) and isinstance(operation, SetData | Delete),
        lambda operation: operation._replace(version=-1),
    )


@mutation(faulty_call("end_beside_a_refused_one"))
def refused_member_left_among_the_ended(patch: pytest.MonkeyPatch) -> None:
    begin = bundle_hold.BundleHold.begin

    def kept(self: bundle_hold.BundleHold) -> None:
        ended = self._changes.ended
        begin(self)
        self._changes.ended = ended & ~self.done

    patch.setattr(bundle_hold.BundleHold, "begin", kept)


@mutation(bundled)
def several_multis_of_one_bundle_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnsentWrites, "_block_if_busy", lambda *_: False)
    replace_where(
        patch,
        lambda operation: is_record(operation) and isinstance(operation, SetData | Delete),
        lambda operation: operation._replace(version=-1),
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

    def fresh(paths: Any, path: str, message: Any, record: AttemptRecord, created: int) -> list[Operation]:
        return single(paths, path, message, replace(record, attempts=0), created)

    patch.setattr(redelivery_bundles, "_single", fresh)


@mutation(bundled)
def rest_kept_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim_bundles.HeldBundles, "_return", lambda *_: [])


@mutation(bundled_rough)
def tenure_of_another_believed(patch: pytest.MonkeyPatch) -> None:
    """A bundle with a record is claimed as if it had none."""
    is_ours = bundle_claimer._is_ours

    def any_record(record: Versioned | None, claim_id: str) -> bool:
        return record is not None or is_ours(record, claim_id)

    patch.setattr(bundle_claimer, "_is_ours", any_record)
    replace_where(
        patch,
        lambda operation: is_record(operation) and isinstance(operation, Create),
        lambda operation: Check(operation.path.rpartition("/")[0], -1),
    )


@mutation(messages_of_a_bundle_are_redelivered_after_their_delay)
def bundle_has_the_id_of_its_first_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bundle_puts, "bundle_prefix", lambda _, ids, batch: bundle_prefix(ids[0], ids, batch))


@mutation(faulty_call("put_around_another"))
def run_continued_behind_a_single_item(patch: pytest.MonkeyPatch) -> None:
    add, batch_field = bundle_puts.BundledPuts.add, vars(bundle_puts)["batch_field"]

    def passed_by(self: bundle_puts.BundledPuts, composition: Any, part: Any, puts: Any) -> None:
        for put in puts:
            if batch_field(put.prefix) is None:
                members = [(composition.write, part)]
                stored = bundle_puts._StoredPuts(members, range(1))
                self._create(composition, put.prefix, put.data, put.state, stored)
            else:
                add(self, composition, part, [put])

    patch.setattr(bundle_puts.BundledPuts, "add", passed_by)


@mutation(bundled)
def claim_without_the_existence_of_the_bundle(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: isinstance(operation, Check) and is_bundle_at(operation.path) and not is_record(operation),
        lambda operation: Check(operation.path.rpartition("/")[0], -1),
    )


@mutation(faulty_call("end_some"))
def partial_end_drops_the_lock(patch: pytest.MonkeyPatch) -> None:
    operations = bundle_hold.BundleHold.operations

    def unlocked(self: bundle_hold.BundleHold) -> Iterator[Operation]:
        for operation in operations(self):
            yield operation
            if isinstance(operation, SetData):
                yield Delete(self.lock)

    patch.setattr(bundle_hold.BundleHold, "operations", unlocked)


@mutation(messages_of_a_returned_bundle_keep_their_attempts)
def bundle_unlocked_after_it_was_written(patch: pytest.MonkeyPatch) -> None:
    """The record is deleted while the bundle stays, although attempts have been recorded."""
    patch.setattr(bundle_hold.BundleHold, "untouched", property(lambda self: not self._changes.any))


@mutation(faulty_call("end_beside_a_refused_one"))
def ends_adopted_before_they_are_applied(patch: pytest.MonkeyPatch) -> None:
    operations = bundle_hold.BundleHold.operations

    def adopted(self: bundle_hold.BundleHold) -> Iterator[Operation]:
        yield from operations(self)
        self.done |= self._changes.ended

    patch.setattr(bundle_hold.BundleHold, "operations", adopted)


@mutation(faulty_call("return_the_rest"))
def returned_messages_stay_in_the_bundle(patch: pytest.MonkeyPatch) -> None:
    compose = commit_bundles.ReturnUndelivered.compose

    def undecided(self: commit_bundles.ReturnUndelivered, composition: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(bundle_hold.BundleHold, "end", lambda *_: None)
            compose(self, composition)

    patch.setattr(commit_bundles.ReturnUndelivered, "compose", undecided)


@mutation(faulty_call("return_recorded"))
def attempt_of_a_returned_message_counts(patch: pytest.MonkeyPatch) -> None:
    compose = commit_bundles.ReturnUndelivered.compose

    def counted(self: commit_bundles.ReturnUndelivered, composition: Any) -> None:
        for claim in self._claims:
            claim.recorded = False
        compose(self, composition)

    patch.setattr(commit_bundles.ReturnUndelivered, "compose", counted)


@mutation(bundled)
def one_message_kept_without_a_taker(patch: pytest.MonkeyPatch) -> None:
    give = claim_bundles.HeldBundles._return
    patch.setattr(claim_bundles.HeldBundles, "_return", lambda self, number: give(self, number - 1))


@mutation(faulty_call("claim"))
def attempt_recorded_for_the_whole_bundle(patch: pytest.MonkeyPatch) -> None:
    count_attempt = bundle_hold.BundleHold.count_attempt

    def all_of_it(self: bundle_hold.BundleHold, position: int, attempts: int) -> None:
        count_attempt(self, position, attempts)
        for claim in self.at_hand:
            count_attempt(self, claim.position, claim.attempts + 1)

    patch.setattr(bundle_hold.BundleHold, "count_attempt", all_of_it)


@mutation(bundled)
def single_item_left_at_version_0(patch: pytest.MonkeyPatch) -> None:
    as_single_item = commit_bundles.as_single_item
    patch.setattr(
        commit_bundles,
        "as_single_item",
        lambda *args: [operation for operation in as_single_item(*args) if not isinstance(operation, SetData)],
    )


@mutation(faulty_call("release_later"))
def single_item_without_the_time_of_its_put(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit_bundles, "single_of", lambda header, body, _: encode(body, header))


@mutation(faulty_call("cancel_one"))
def messages_of_one_bundle_without_an_order(patch: pytest.MonkeyPatch) -> None:
    """Servers list children in any order."""
    patch.setattr(backlog, "_order_and_id", lambda name: (name[-10:], [-ord(digit) for digit in name]))


@mutation(faulty_call("move"))
def move_judges_messages_by_the_creation_of_their_items(patch: pytest.MonkeyPatch) -> None:
    async def no_counters(_: object) -> dict[str, object]:
        return {}

    patch.setattr(moves, "stat_lanes", no_counters)


@mutation(bundled)
def bundle_of_a_parked_write_reserved_for_ever(patch: pytest.MonkeyPatch) -> None:
    unpark = UnsentWrites._unblock

    def reserved(self: UnsentWrites) -> None:
        kept = self._reserved
        unpark(self)
        self._reserved = kept

    patch.setattr(UnsentWrites, "_unblock", reserved)


@mutation(a_queue_is_counted_while_a_bundle_ends)
def lanes_counted_before_the_records(patch: pytest.MonkeyPatch) -> None:
    """A bundle that has ended since its lane was listed counts whole."""
    claimed, collect = operations_bundles.claimed_bundles, vars(operations_bundles)["collect_children"]
    listed: dict[str, Any] = {}

    # Any: passed on unchanged
    async def lanes_first(handle: Any, unreadable: Any = None) -> dict[str, tuple[int, bool]]:
        listed[handle.paths.items] = await collect(handle, handle.paths.items, lambda: Matching(is_bundle))
        return await claimed(handle, unreadable)

    async def known(handle: Any, folder: str, make: Any) -> Any:
        return listed.pop(folder) if folder in listed else await collect(handle, folder, make)

    patch.setattr(operations_bundles, "claimed_bundles", lanes_first)
    patch.setattr(operations_bundles, "collect_children", known)


@mutation(a_queue_is_paused_while_a_session_has_messages_of_a_bundle_at_hand)
def messages_at_hand_survive_a_pause(patch: pytest.MonkeyPatch) -> None:
    async def unread(*_: object) -> None: ...

    patch.setattr(claim_bundles.HeldBundles, "_check_configuration", unread)


@mutation(killed_holders())
def bundle_of_a_dead_holder_claimed_whole(patch: pytest.MonkeyPatch) -> None:
    """Its record is removed instead of the bundle."""
    dissolve = redelivery_bundles.dissolve

    async def unmarked(
        zookeeper: Any, paths: Any, place: str, ids: Any, **options: Any
    ) -> redelivery_bundles.Dissolved:
        state = await redelivery_bundles.read_bundle(zookeeper, paths, place)
        if state is None or state.record is None or state.lock is not None or len(state.messages()) < state.name.size:
            return await dissolve(zookeeper, paths, place, ids, **options)
        await zookeeper.multi([Delete(paths.bundle_record(state.name.id), state.record.version)])
        return redelivery_bundles.Dissolved.DONE

    patch.setattr(bundle_claimer, "dissolve", unmarked)


@mutation(beside_groups)
def bundles_unknown_to_the_index_of_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "candidate_id", item_id)


@mutation(beside_groups)
def groups_beside_bundles_locked_by_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimBatches, "_launch_heads", lambda _self, places, *_: places)
