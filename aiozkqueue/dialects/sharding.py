"""Curator's ``QueueSharder``: its queues are named ``queue-<uuid>`` and are the children of one znode.

Its leader chooses a random uuid. Our uuids are derived from the path and a number, so that clients that add a shard at
the same time add the same one and need no leader.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_OID, uuid5

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Collection

_PREFIX: Final = "queue-"
_DRAWN: Final = re.compile(r"queue-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_shard(name: str) -> bool:
    """Return whether a child of the sharder's znode is a queue."""
    return name.startswith(_PREFIX)


def first_shard(path: str) -> str:
    """Return the name of the first queue."""
    return another_shard(path, ())


def another_shard(path: str, existing: Collection[str]) -> str:
    """Return the name of a further queue. It is the same for all clients that see the same queues."""
    names = (f"{_PREFIX}{uuid5(NAMESPACE_OID, f'{path} {number}')}" for number in count())
    return next(name for name in names if name not in existing)


def check_shard_locks(shard: str, lock_path: str | None, sharder: str | None = None) -> None:
    """Refuse a lock path that a ``QueueSharder`` would use as one of its queues.

    ``sharder`` is the parent znode of the shard. If it is None, the parent is a sharder's if the shard is named like a
    sharder's queue.

    Raises: InvalidOptionError.
    """
    above, _, name = shard.rpartition("/")
    if lock_path is None or (sharder is None and not _DRAWN.fullmatch(name)):
        return
    if f"{lock_path}/".startswith(f"{above}/") and not lock_path.startswith(f"{shard}/"):
        msg = (
            f"queue {shard!r}: lock_path={lock_path!r}: Curator's QueueSharder uses every child of {above!r} as a "
            "queue. It would put messages among the locks, create locks for those in turn, and add queues forever; "
            f"put the locks elsewhere, for example at {f'{above}-locks/{name}'!r}, on the Java side, too"
        )
        raise InvalidOptionError(msg)
