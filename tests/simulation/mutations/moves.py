"""Defects in moves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiozkqueue.operations import mover
from aiozkqueue.zookeeper import Check, Create, Delete
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock, leave_out
from tests.simulation.stories.moves import two_moves_run_while_messages_are_taken
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Operation


def _is_move(operations: list[Operation]) -> bool:
    """Whether the multi creates an item in one queue and deletes one from another."""
    return any(
        isinstance(operation, Create)
        and operation.sequential
        and ("/b/items/" in operation.path or "/to/items/" in operation.path)
        for operation in operations
    ) and any(
        isinstance(operation, Delete) and ("/a/items/" in operation.path or "/from/items/" in operation.path)
        for operation in operations
    )


@mutation(two_moves_run_while_messages_are_taken)
def move_keeps_the_source_item(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Delete) and is_item(operation), when=_is_move)


@mutation(two_moves_run_while_messages_are_taken)
def move_creates_no_target_item(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Create) and is_item(operation), when=_is_move)


@mutation(two_moves_run_while_messages_are_taken)
def move_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: is_lock(operation) and not isinstance(operation, Check), when=_is_move)


@mutation(partial(run, feature="moves"))
def move_keeps_the_source_item_under_faults(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Delete) and is_item(operation), when=_is_move)


@mutation(partial(run, feature="moves"))
def move_does_not_wait_for_held_messages(patch: pytest.MonkeyPatch) -> None:
    move: Any = vars(mover.Mover)["_move"]  # it passes on all arguments unchanged

    async def leave_held(self: mover.Mover, *arguments: object) -> int:
        await move(self, *arguments)
        return 0

    patch.setattr(mover.Mover, "_move", leave_held)
