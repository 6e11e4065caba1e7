"""Claims: who holds what, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.queue import unit_of_work
from aiozkqueue.queue.claim import claimer
from aiozkqueue.testing.simulator import SimulatedClient
from aiozkqueue.zookeeper import Check, Create, Delete, Operation, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_due, is_item, is_lock, leave_out, replace_where
from tests.simulation.stories.claims import (
    claims_are_forced_open_by_who_sees_them_late,
    claims_are_forced_open_while_they_are_committed,
    many_want_the_same,
)

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Versioned


@mutation(claims_are_forced_open_while_they_are_committed)
def commit_without_the_items_version(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch, lambda one: is_item(one) and isinstance(one, Delete | Check), lambda one: one._replace(version=-1)
    )


@mutation(claims_are_forced_open_while_they_are_committed)
def take_over_without_raising_the_items_version(patch: pytest.MonkeyPatch) -> None:
    # Whoever holds a claim only commits here: what sets an item takes its lock away.
    replace_where(
        patch, lambda one: is_item(one) and isinstance(one, SetData), lambda one: Check(one.path, one.version)
    )


@mutation(many_want_the_same)
def item_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    lock_and_read = claimer.Claimer.lock_and_read

    async def early(
        self: claimer.Claimer, operations: list[Operation], reads: list[str], generation: int, **options: Any
    ) -> list[Versioned | None]:
        before = await self._zookeeper.read_versioned(reads, generation=generation)
        after = await lock_and_read(self, operations, reads, generation, **options)
        pairs = zip(reads, before, after, strict=True)
        return [new if "/locks/" in path else old for path, old, new in pairs]

    patch.setattr(claimer.Claimer, "lock_and_read", early)


@mutation()
def claims_of_a_lost_reply_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claimer, "_any_ours", lambda *_: False)


@mutation()
def locks_that_outlive_their_session(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch, lambda one: is_lock(one) and isinstance(one, Create), lambda one: one._replace(ephemeral=False)
    )


@mutation()
def rollback_forgets_its_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unit_of_work.UnitOfWork, "_release_claims", lambda *_: None)


@mutation()
def commit_leaves_its_locks(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        lambda one: is_lock(one) and isinstance(one, Delete),
        lambda operations: any(is_item(one) and isinstance(one, Delete) for one in operations),
    )


@mutation()
def backoff_without_an_end(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: is_due(one) and isinstance(one, Create))


@mutation()
def ended_locks_left(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        is_lock,
        lambda operations: any(is_due(one) and isinstance(one, Delete) for one in operations),
    )


@mutation(claims_are_forced_open_by_who_sees_them_late)
def claims_forced_open_without_a_look_at_the_leader(patch: pytest.MonkeyPatch) -> None:
    async def no_sync(*_: object) -> None: ...

    patch.setattr(SimulatedClient, "sync", no_sync)


@mutation()
def a_registration_that_outlives_its_session(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda one: isinstance(one, Create) and "/consumers/" in one.path,
        lambda one: one._replace(ephemeral=False),
    )
