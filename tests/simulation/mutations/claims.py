"""Defects in claims: the holder of a message, and the end of the hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.queue.claim import claimer
from aiozkqueue.session import unit_of_work
from aiozkqueue.testing.simulator import SimulatedClient
from aiozkqueue.zookeeper import Check, Create, Delete, Operation, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_due, is_item, is_lock, leave_out, replace_where
from tests.simulation.stories.claims import (
    an_operator_on_a_lagging_server_releases_claims,
    an_operator_releases_claims_during_commits,
    several_consumers_compete_for_one_message,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from aiozkqueue.zookeeper import Versioned


@mutation(an_operator_releases_claims_during_commits)
def commit_without_its_fence(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: is_item(operation) and isinstance(operation, Delete | Check),
        lambda operation: operation._replace(version=-1),
    )


@mutation(an_operator_releases_claims_during_commits)
def takeover_leaves_the_fence_unchanged(patch: pytest.MonkeyPatch) -> None:
    # In this story, holders only commit, so each write to an item is a forced release.
    replace_where(
        patch,
        lambda operation: is_item(operation) and isinstance(operation, SetData),
        lambda operation: Check(operation.path, operation.version),
    )


@mutation(several_consumers_compete_for_one_message)
def item_read_before_its_lock(patch: pytest.MonkeyPatch) -> None:
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
def claims_with_a_lost_reply_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claimer, "_any_ours", lambda *_: False)


@mutation()
def locks_not_ephemeral(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: is_lock(operation) and isinstance(operation, Create),
        lambda operation: operation._replace(ephemeral=False),
    )


@mutation()
def locks_of_refused_claims_counted(patch: pytest.MonkeyPatch) -> None:
    claim = claimer.Claimer.claim

    async def counted(self: claimer.Claimer, places: Sequence[str], *arguments: Any) -> claimer.ClaimResult:
        try:
            return await claim(self, places, *arguments)
        except claimer.ContendedError:
            self.reserve(self.item_lock_size * len(places), self._zookeeper.generation)
            raise

    patch.setattr(claimer.Claimer, "claim", counted)


@mutation()
def rollback_keeps_its_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unit_of_work.UnitOfWork, "_release_claims", lambda *_: None)


@mutation()
def commit_keeps_its_locks(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        lambda operation: is_lock(operation) and isinstance(operation, Delete),
        lambda operations: any(is_item(operation) and isinstance(operation, Delete) for operation in operations),
    )


@mutation()
def backoff_without_a_due_node(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: is_due(operation) and isinstance(operation, Create))


@mutation()
def ended_timed_locks_kept(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        is_lock,
        lambda operations: any(is_due(operation) and isinstance(operation, Delete) for operation in operations),
    )


@mutation(an_operator_on_a_lagging_server_releases_claims)
def forced_release_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    async def no_sync(*_: object) -> None: ...

    patch.setattr(SimulatedClient, "sync", no_sync)


@mutation()
def registrations_not_ephemeral(patch: pytest.MonkeyPatch) -> None:
    replace_where(
        patch,
        lambda operation: isinstance(operation, Create) and "/consumers/" in operation.path,
        lambda operation: operation._replace(ephemeral=False),
    )
