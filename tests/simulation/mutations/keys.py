"""Defects in keys, lifetimes and cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.claim import claimer, collapse, deliver
from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
from aiozkqueue.queue.commit import alterations, unique_keys
from aiozkqueue.zookeeper import Check, Create, Delete, Operation
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_lock, leave_out, send_instead
from tests.simulation.stories.keys import (
    duplicates_are_put_while_others_are_taken,
    messages_are_cancelled_while_they_are_taken,
    messages_expire_while_others_are_taken,
    producers_compete_for_unique_keys,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

    from aiozkqueue.zookeeper import ZooKeeperError


def _is_key(operation: Operation) -> bool:
    return "/keys/" in operation.path


def _passing(operation: Operation, operations: list[Operation]) -> bool:
    """Whether the operation creates or deletes a lock that exists only within this multi."""
    return (
        is_lock(operation)
        and Delete(operation.path) in operations
        and any(
            isinstance(other, Create) and other.path == operation.path and not other.ephemeral for other in operations
        )
    )


def _without_passing_locks(patch: pytest.MonkeyPatch) -> None:
    send_instead(
        patch,
        lambda operations: [Check("/") if _passing(operation, operations) else operation for operation in operations],
    )


@mutation(messages_are_cancelled_while_they_are_taken)
def cancellation_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    _without_passing_locks(patch)


@mutation(messages_are_cancelled_while_they_are_taken)
def commit_without_its_alterations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alterations.TransactionalAlteration, "compose", lambda *_: None)


@mutation(duplicates_are_put_while_others_are_taken)
def held_duplicates_removed(patch: pytest.MonkeyPatch) -> None:
    _without_passing_locks(patch)


@mutation(duplicates_are_put_while_others_are_taken)
def oldest_duplicate_kept(patch: pytest.MonkeyPatch) -> None:
    """A consumer that keeps the oldest message of a set loses the last put."""
    in_order = collapse.Collapse._deliverable

    async def backwards(
        self: collapse.Collapse, lane: collapse._Lane, text: str, free: collapse._Free
    ) -> tuple[list[str], dict[str, int]]:
        members, restored = await in_order(self, lane, text, free)
        return members[::-1], restored

    patch.setattr(collapse.Collapse, "_deliverable", backwards)


@mutation(duplicates_are_put_while_others_are_taken)
def duplicates_since_the_listing_ignored(patch: pytest.MonkeyPatch) -> None:
    """Candidates are claimed without another listing, so duplicates put since the first one are delivered."""
    patch.setattr(
        ClaimDispatcher, "_collapse_and_launch", lambda self, places, generation, _: _at_once(self, places, generation)
    )


async def _at_once(dispatcher: ClaimDispatcher, places: list[str], generation: int) -> None:
    dispatcher._claim_batches.launch(places, generation)


@mutation(producers_compete_for_unique_keys)
def unique_key_checked_before_the_put(patch: pytest.MonkeyPatch) -> None:
    """The put first checks the key, and then writes it even if another put has taken it meanwhile."""
    prepare = unique_keys.UniqueKey.operation
    patch.setattr(
        unique_keys.UniqueKey,
        "operation",
        lambda self, item: Check("/") if self.holder == "seen" else prepare(self, item),
    )

    def overlook(
        self: unique_keys.UniqueKey, _: Operation, __: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        self.holder = "seen"
        return None

    patch.setattr(unique_keys.UniqueKey, "repair", overlook)


@mutation(producers_compete_for_unique_keys)
def unique_keys_not_removed(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: _is_key(operation) and isinstance(operation, Delete))


@mutation(messages_expire_while_others_are_taken)
def expired_messages_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claimer.Claimer, "examine_name", lambda *_: None)
    patch.setattr(deliver, "_check_expiry", lambda *_: True)
