"""The removal of the folders of past hours, which keeps the number of messages that were put into them.

The figure `put` of a queue is the sum of the counters of its folders, so the counter of a removed folder is added to
the number in the data of ``later``, in the same multi. The multi names the version of ``later``: if two sessions remove
hours at the same time, the second reads again. Only a message that is put and ends between the read and the
multi is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import HOUR, later_of, read_removed, write_removed
from aiozkqueue.zookeeper import (
    BadVersionError,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
    SetData,
    apply_until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Node, Operation, ZooKeeper


async def remove_hours(
    zookeeper: ZooKeeper, paths: QueuePaths, hours: Collection[int], generation: int | None = None
) -> set[int]:
    """Remove the folders of these hours that are empty; return the hours that have no folder afterwards.

    Raises: NoAuthError: an ACL forbids it; as `ZooKeeper.read_many`.
    """
    counts = True
    while True:
        later, *folders = await zookeeper.read_many(
            [paths.later, *(paths.at(later_of(hour * HOUR)) for hour in hours)], generation=generation
        )
        found = {hour: node for hour, node in zip(hours, folders, strict=True) if node is not None}
        empty = {hour: node for hour, node in found.items() if not node.stat.num_children}
        if later is None or not empty:
            return {*hours} - found.keys()
        operations: list[Operation] = [Delete(paths.at(later_of(hour * HOUR))) for hour in empty]
        if counts:
            operations.insert(0, _counting(paths, later, empty.values()))
        try:
            await apply_until_answered(zookeeper, operations, generation=generation)
        except MultiError as refusal:
            if isinstance(refusal.error, NoAuthError) and counts and not refusal.index:
                counts = False  # this user may remove the hours, but not write their parent
            elif not isinstance(refusal.error, BadVersionError | NoNodeError | NotEmptyError):
                raise refusal.error from refusal


def _counting(paths: QueuePaths, later: Node, folders: Collection[Node]) -> Operation:
    """Return the operation that keeps the number of messages put into these folders."""
    put = read_removed(later.data) + sum(node.stat.children_created for node in folders)
    return SetData(paths.later, write_removed(put), later.stat.version)
