"""Refusals that apply to several operations of one multi. ZooKeeper names only the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import is_in_hour, is_unique_key
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


def likely_refused(operations: Sequence[Operation], index: int, error: ZooKeeperError) -> list[int]:
    """Return the indexes of further operations that the same kind of cause is likely to refuse, each with its own.

    The znode of an hour is created when it is first needed: if one is missing, others may be too. And if one unique key
    is held, a message was probably put again together with others.
    """
    causes: dict[str, int] = {}
    for each, operation in enumerate(operations[index:], index):
        if (cause := _cause(operation, error)) is not None:
            causes.setdefault(cause, each)
        elif not causes:
            break
    return list(causes.values())[1:]


def _cause(operation: Operation, error: ZooKeeperError) -> str | None:
    """Return the hour's znode whose lack may refuse an operation, or the unique key whose holder may; None: neither."""
    path = operation.path
    if not isinstance(operation, Create):
        return None
    if isinstance(error, NoNodeError):
        return parent_of(path) if is_in_hour(path) else None
    return path if isinstance(error, NodeExistsError) and is_unique_key(path) else None
