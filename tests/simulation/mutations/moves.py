"""Moves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.admin import mover
from aiozkqueue.queue.commit.unclaimed import find_pages
from aiozkqueue.zookeeper import Check, Create, Delete
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock, leave_out
from tests.simulation.stories.moves import what_is_moved_is_taken_at_the_same_time
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import pytest

    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Operation


def _is_move(operations: list[Operation]) -> bool:
    """Whether an item is put to one queue and removed from another."""
    return any(
        isinstance(one, Create) and one.sequential and ("/b/items/" in one.path or "/to/items/" in one.path)
        for one in operations
    ) and any(isinstance(one, Delete) and ("/a/items/" in one.path or "/from/items/" in one.path) for one in operations)


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_and_left_where_it_was(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Delete) and is_item(one), when=_is_move)


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_and_not_put_again(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Create) and is_item(one), when=_is_move)


@mutation(what_is_moved_is_taken_at_the_same_time)
def moved_out_of_somebodys_hands(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: is_lock(one) and not isinstance(one, Check), when=_is_move)


@mutation(partial(run, feature="moves"))
def moved_and_left_where_it_was_under_faults(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Delete) and is_item(one), when=_is_move)


@mutation(partial(run, feature="moves"))
def what_is_held_is_not_waited_for_by_a_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mover, "find_pages", _free_ones(find_pages))


def _free_ones(
    find_pages: Callable[..., AsyncIterator[list[ItemSnapshot]]],
) -> Callable[..., AsyncIterator[list[ItemSnapshot]]]:
    async def found(*arguments: object) -> AsyncIterator[list[ItemSnapshot]]:
        async for page in find_pages(*arguments):
            yield [one for one in page if not one.in_flight]

    return found
