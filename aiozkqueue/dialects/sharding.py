"""What Curator's ``QueueSharder`` calls its queues: ``queue-<uuid>``, children of one znode.

Its leader draws a random uuid. Ours are drawn from the path and a number, so that several who add a shard at the same
time add the same one, and need no leader.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_OID, uuid5

if TYPE_CHECKING:
    from collections.abc import Collection

_PREFIX: Final = "queue-"


def is_shard(name: str) -> bool:
    """Tell whether a child of the sharder's znode is a queue of its."""
    return name.startswith(_PREFIX)


def first_shard(path: str) -> str:
    """Return the name of the queue to begin with."""
    return another_shard(path, ())


def another_shard(path: str, there: Collection[str]) -> str:
    """Return the name of a further queue: the same for all who see the same ones there."""
    names = (f"{_PREFIX}{uuid5(NAMESPACE_OID, f'{path} {number}')}" for number in count())
    return next(name for name in names if name not in there)
