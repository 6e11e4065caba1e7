"""Groups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import item_id
from aiozkqueue.queue.candidates import groups
from aiozkqueue.zookeeper import Check, Create, Delete
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out, send_instead
from tests.simulation.stories.claims import a_group_is_forced_open_while_one_far_away_looks_under_its_lock
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from aiozkqueue.zookeeper import Operation

of_groups = partial(run, feature="groups")


def is_group_lock(operation: Operation) -> bool:
    return "/locks/lock-g" in operation.path and len(operation.path.rpartition("-")[2]) == len(groups.ORDERED)


@mutation(of_groups)
def the_lock_of_a_group_dropped_while_it_is_held_on_to(patch: pytest.MonkeyPatch) -> None:
    send_instead(
        patch,
        lambda operations: [
            Delete(one.path) if isinstance(one, Check) and is_group_lock(one) else one for one in operations
        ],
    )


@mutation(of_groups)
def a_retry_that_lets_its_group_go_on(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Create) and not one.ephemeral and is_group_lock(one))


@mutation(of_groups)
def a_head_that_is_only_the_next_one_heard_of(patch: pytest.MonkeyPatch) -> None:
    def newest(self: groups.GroupIndex, group: str) -> Iterator[str]:
        lanes = self._groups.get(group, {})
        return iter([place for lane in lanes.values() for place in reversed(lane)])

    patch.setattr(groups.GroupIndex, "_places", newest)


@mutation(of_groups)
def items_locked_one_by_one_whatever_their_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "lock_id", lambda _, name: item_id(name))


@mutation(a_group_is_forced_open_while_one_far_away_looks_under_its_lock)
def an_empty_groups_lock_removed_whoever_has_it_by_now(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda one: isinstance(one, Check) and one.path.endswith("/locks"))
