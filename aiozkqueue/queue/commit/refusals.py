"""Refusals that apply to several operations of one multi. ZooKeeper names only the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import is_in_hour
from aiozkqueue.zookeeper import Create, NodeExistsError, NoNodeError, parent_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import Operation, ZooKeeperError


def refused_alike(operations: Sequence[Operation], index: int, error: ZooKeeperError) -> list[int]:
    """Return the indexes of the operations that the cause of a refusal concerns, in order.

    A missing folder refuses each create in it, and an existing znode each create of it. If this multi itself creates
    the folder or the znode first, the cause may end with its order: a create of the folder leaves only the refused
    operation, and the first create of a znode is not refused.
    """
    refused = operations[index]
    creates = [(each, operation) for each, operation in enumerate(operations) if isinstance(operation, Create)]
    if isinstance(refused, Create) and isinstance(error, NoNodeError):
        folder = parent_of(refused.path)
        if all(operation.path != folder for _, operation in creates):
            return [each for each, operation in creates if parent_of(operation.path) == folder]
    elif isinstance(refused, Create) and isinstance(error, NodeExistsError) and not refused.sequential:
        same = [each for each, operation in creates if operation.path == refused.path]
        return same if same[0] == index else same[1:]
    return [index]


def hours_like(operations: Sequence[Operation], index: int, error: ZooKeeperError) -> list[int]:
    """Return the indexes of the first creates in further hours after one whose hour is missing; empty: it is not.

    The znode of an hour is created when it is first needed, so if one is missing, others may be too.
    """
    hours: dict[str, int] = {}
    for each, operation in enumerate(operations[index:] if isinstance(error, NoNodeError) else (), index):
        if isinstance(operation, Create) and is_in_hour(operation.path):
            hours.setdefault(parent_of(operation.path), each)
        elif not hours:
            break
    return list(hours.values())[1:]
