"""Keys, lifetimes and cancelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.claim import claimer, collapse, deliver
from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
from aiozkqueue.queue.commit import alterations, unique_keys
from aiozkqueue.zookeeper import Check, Create, Delete, Operation
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_lock, leave_out, send_instead
from tests.simulation.stories.keys import (
    keys_collapse,
    lives_end_while_messages_are_taken,
    unique_keys_are_fought_for,
    what_is_taken_is_cancelled,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

    from aiozkqueue.layout.names import ItemName
    from aiozkqueue.zookeeper import ZooKeeperError


def _is_key(operation: Operation) -> bool:
    return "/keys/" in operation.path


def _passing(operation: Operation, operations: list[Operation]) -> bool:
    """Whether it is the lock of an item that its own multi takes off again."""
    return (
        is_lock(operation)
        and Delete(operation.path) in operations
        and any(isinstance(one, Create) and one.path == operation.path and not one.ephemeral for one in operations)
    )


def _without_passing_locks(patch: pytest.MonkeyPatch) -> None:
    send_instead(patch, lambda operations: [Check("/") if _passing(one, operations) else one for one in operations])


@mutation(what_is_taken_is_cancelled)
def cancelled_without_the_lock(patch: pytest.MonkeyPatch) -> None:
    _without_passing_locks(patch)


@mutation(what_is_taken_is_cancelled)
def a_commit_that_leaves_out_what_it_was_to_alter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alterations.TransactionalAlteration, "operations", lambda *_: iter(()))


@mutation(keys_collapse)
def a_duplicate_removed_whoever_holds_it(patch: pytest.MonkeyPatch) -> None:
    _without_passing_locks(patch)


@mutation(keys_collapse)
def the_newest_goes_in_the_place_of_the_oldest(patch: pytest.MonkeyPatch) -> None:
    """Who keeps the oldest of a set loses what was put last."""
    in_order = collapse._Lane.alike

    def backwards(self: collapse._Lane, name: ItemName) -> list[ItemName]:
        return in_order(self, name)[::-1]

    patch.setattr(collapse._Lane, "alike", backwards)


@mutation(keys_collapse)
def a_set_taken_as_it_was_listed_long_ago(patch: pytest.MonkeyPatch) -> None:
    """Candidates are claimed as they come: duplicates put since the listing are delivered too."""
    patch.setattr(
        ClaimDispatcher, "_collapse_and_launch", lambda self, places, generation, _: _at_once(self, places, generation)
    )


async def _at_once(dispatcher: ClaimDispatcher, places: list[str], generation: int) -> None:
    dispatcher._claim_batches.launch(places, generation)


@mutation(unique_keys_are_fought_for)
def a_unique_key_looked_up_before_the_put(patch: pytest.MonkeyPatch) -> None:
    """The key is looked for when the put is made, and written whoever has it by then."""
    prepare = unique_keys.UniqueKey.operation
    patch.setattr(
        unique_keys.UniqueKey, "operation", lambda self: Check("/") if self.holder == "seen" else prepare(self)
    )

    def overlook(
        self: unique_keys.UniqueKey, _: Operation, __: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        self.holder = "seen"
        return None

    patch.setattr(unique_keys.UniqueKey, "repair", overlook)


@mutation(unique_keys_are_fought_for)
def a_key_left_behind(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: _is_key(one) and isinstance(one, Delete))


@mutation(lives_end_while_messages_are_taken)
def an_ended_message_handed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claimer.Claimer, "examine_name", lambda *_: None)
    patch.setattr(deliver, "_in_time", lambda *_: True)
