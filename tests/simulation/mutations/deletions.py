"""Defects in the deletion of queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.operations import deletion
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation


@mutation(partial(run, feature="deletions"))
def deletion_that_does_not_assert_that_the_queue_is_empty(patch: pytest.MonkeyPatch) -> None:
    async def nothing(handle: QueueHandle[Runtime]) -> list[Operation]:
        del handle
        return []

    patch.setattr(deletion, "_assert_unused", nothing)
