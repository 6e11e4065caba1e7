"""Sticky queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.admin import affinity
from aiozkqueue.queue.put import queue_defaults
from aiozkqueue.zookeeper import Delete, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock
from tests.simulation.stories.sticky import several_reap_what_a_node_still_takes
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.zookeeper import Operation


def _without(patch: pytest.MonkeyPatch, where: Callable[[Operation], bool]) -> None:
    make = affinity._handing_on

    async def defective(handle: QueueHandle[SessionCore], found: ItemSnapshot) -> Change:
        change = await make(handle, found)
        return change._replace(operations=[one for one in change.operations if not where(one)])

    patch.setattr(affinity, "_handing_on", defective)


@mutation(several_reap_what_a_node_still_takes)
def reaped_without_the_lock(patch: pytest.MonkeyPatch) -> None:
    _without(patch, is_lock)


@mutation(several_reap_what_a_node_still_takes)
def reaped_and_left_where_it_was(patch: pytest.MonkeyPatch) -> None:
    _without(patch, lambda one: is_item(one) and isinstance(one, Delete))


@mutation(several_reap_what_a_node_still_takes)
def reaped_and_not_put_again(patch: pytest.MonkeyPatch) -> None:
    _without(patch, lambda one: (is_item(one) and not isinstance(one, Delete | SetData)) or isinstance(one, SetData))


@mutation(partial(run, feature="sticky"))
def taken_by_whichever_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_defaults, "chooser", lambda *_: None)


@mutation(partial(run, feature="sticky"))
def reaped_twice_under_faults(patch: pytest.MonkeyPatch) -> None:
    _without(patch, lambda one: is_item(one) and isinstance(one, Delete))
