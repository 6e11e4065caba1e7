"""Defects in sticky queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.operations import affinity
from aiozkqueue.queue.put import queue_defaults
from aiozkqueue.zookeeper import Delete, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock
from tests.simulation.stories.sticky import several_nodes_reap_while_the_owner_takes
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import Operation


def _without(patch: pytest.MonkeyPatch, where: Callable[[Operation], bool]) -> None:
    make = affinity._reassignment

    async def defective(handle: QueueHandle[SessionCore], found: ItemSnapshot) -> Change:
        change = await make(handle, found)
        return change._replace(operations=[operation for operation in change.operations if not where(operation)])

    patch.setattr(affinity, "_reassignment", defective)


@mutation(several_nodes_reap_while_the_owner_takes)
def reap_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    _without(patch, is_lock)


@mutation(several_nodes_reap_while_the_owner_takes)
def reap_keeps_the_old_item(patch: pytest.MonkeyPatch) -> None:
    _without(patch, lambda operation: is_item(operation) and isinstance(operation, Delete))


@mutation(several_nodes_reap_while_the_owner_takes)
def reap_creates_no_new_item(patch: pytest.MonkeyPatch) -> None:
    _without(
        patch,
        lambda operation: (
            (is_item(operation) and not isinstance(operation, Delete | SetData)) or isinstance(operation, SetData)
        ),
    )


@mutation(partial(run, feature="sticky"))
def sticky_messages_taken_by_any_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_defaults, "chooser", lambda *_: None)


@mutation(partial(run, feature="sticky"))
def reap_keeps_the_old_item_under_faults(patch: pytest.MonkeyPatch) -> None:
    _without(patch, lambda operation: is_item(operation) and isinstance(operation, Delete))
