"""Defects in attempts and dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import AttemptRecord
from aiozkqueue.queue.claim import deliver
from aiozkqueue.testing.simulator import SimulatedClient
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from aiozkqueue.zookeeper import Node


@mutation()
def attempt_recorded_after_delivery(patch: pytest.MonkeyPatch) -> None:
    record = deliver._record
    tasks: set[asyncio.Task[Any]] = set()

    async def later(runtime: Any, dispatcher: Any, claims: list[Any], limit: float | None) -> list[Any]:
        task = asyncio.ensure_future(record(runtime, dispatcher, claims, limit))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return claims

    patch.setattr(deliver, "_record", later)


@mutation()
def stored_attempts_ignored(patch: pytest.MonkeyPatch) -> None:
    read_many = SimulatedClient.read_many

    async def blind(self: SimulatedClient, paths: Sequence[str], *, generation: int | None = None) -> list[Node | None]:
        nodes = await read_many(self, paths, generation=generation)
        return [
            node._replace(data=AttemptRecord(0).encode()) if node is not None and "/meta/" in path else node
            for path, node in zip(paths, nodes, strict=True)
        ]

    patch.setattr(SimulatedClient, "read_many", blind)


@mutation()
def attempts_not_recorded(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: "/meta/" in operation.path)


@mutation()
def dead_letters_dropped(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: "/dlq/" in operation.path)
