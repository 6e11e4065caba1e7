"""Moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import Check, Create, Delete
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock, leave_out
from tests.simulation.stories.moves import what_is_moved_is_taken_at_the_same_time

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Operation


def _is_move(operations: list[Operation]) -> bool:
    """Whether an item is put to one queue and removed from another."""
    return any(isinstance(one, Create) and one.sequential and "/b/items/" in one.path for one in operations) and any(
        isinstance(one, Delete) and "/a/items/" in one.path for one in operations
    )


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_and_left_where_it_was(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Delete) and is_item(one), when=_is_move)


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_and_not_put_again(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Create) and is_item(one), when=_is_move)


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_out_of_somebodys_hands(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: is_lock(one) and not isinstance(one, Check), when=_is_move)
