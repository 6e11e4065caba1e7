"""Defects in groups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import item_id
from aiozkqueue.queue.candidates import groups
from aiozkqueue.zookeeper import Check, Create, Delete
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import leave_out, send_instead
from tests.simulation.stories.claims import a_slow_client_locks_an_empty_group_during_a_forced_release
from tests.simulation.workload import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from aiozkqueue.zookeeper import Operation

of_groups = partial(run, feature="groups")


def is_group_lock(operation: Operation) -> bool:
    return "/locks/lock-g" in operation.path and len(operation.path.rpartition("-")[2]) == len(groups.ORDERED)


@mutation(of_groups)
def group_lock_deleted_while_messages_are_held(patch: pytest.MonkeyPatch) -> None:
    send_instead(
        patch,
        lambda operations: [
            Delete(operation.path) if isinstance(operation, Check) and is_group_lock(operation) else operation
            for operation in operations
        ],
    )


@mutation(of_groups)
def retry_does_not_hold_its_group(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch, lambda operation: isinstance(operation, Create) and not operation.ephemeral and is_group_lock(operation)
    )


@mutation(of_groups)
def newest_message_of_a_group_first(patch: pytest.MonkeyPatch) -> None:
    def newest(self: groups.GroupIndex, group: str) -> Iterator[str]:
        lanes = self._lanes.items()
        return iter([f"{lane}/{name}" for lane, known in lanes for name in reversed(list(known.names(group)))])

    patch.setattr(groups.GroupIndex, "_places", newest)


@mutation(of_groups)
def group_members_locked_separately(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "lock_id", lambda _, name: item_id(name))


@mutation(a_slow_client_locks_an_empty_group_during_a_forced_release)
def empty_groups_lock_taken_from_its_next_holder(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Check) and operation.path.endswith("/locks"))
