"""Changes to the operations of every multi that is sent, and predicates for operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.testing.simulator import SimulatedClient
from aiozkqueue.zookeeper import Check, Operation, Result

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    import pytest


def send_instead(patch: pytest.MonkeyPatch, change: Callable[[list[Operation]], list[Operation]]) -> None:
    """Change the operations of every multi. Their number must stay the same, so that the results keep their places."""
    multi = SimulatedClient.multi

    def changed(
        self: SimulatedClient,
        operations: Sequence[Operation],
        *,
        generation: int | None = None,
        results: int | None = None,
    ) -> asyncio.Future[list[Result]]:
        return multi(self, change(list(operations)), generation=generation, results=results)

    patch.setattr(SimulatedClient, "multi", changed)


def replace_where(
    patch: pytest.MonkeyPatch, where: Callable[[Operation], bool], by: Callable[[Any], Operation]
) -> None:
    send_instead(
        patch, lambda operations: [by(operation) if where(operation) else operation for operation in operations]
    )


def leave_out(
    patch: pytest.MonkeyPatch, where: Callable[[Operation], bool], when: Callable[[list[Operation]], bool] | None = None
) -> None:
    """Replace operations by checks without an effect."""

    def change(operations: list[Operation]) -> list[Operation]:
        if when is not None and not when(operations):
            return operations
        return [Check("/") if where(operation) else operation for operation in operations]

    send_instead(patch, change)


def is_slot(operation: Operation) -> bool:
    return "/slot-" in operation.path


def is_item(operation: Operation) -> bool:
    return "/item-" in operation.path and "/dlq/" not in operation.path


def is_lock(operation: Operation) -> bool:
    return "/lock-" in operation.path


def is_due(operation: Operation) -> bool:
    return "/due/" in operation.path
