"""Checks whether another program's clients may read the messages that this session puts into their queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import NoAuthError, NoNodeError, ServerError
from aiozkqueue.zookeeper.auth import OPEN, Permission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeper
    from aiozkqueue.zookeeper.auth import Acl

log: Final = logging.getLogger(__name__)


async def warn_if_hidden(zookeeper: ZooKeeper, queue: str, items: str, ours: str) -> None:
    """Log a warning if users of the znode ``items`` may not read znodes like ``ours``, which our sessions create."""
    if zookeeper.makes_open:
        return
    try:
        theirs, own = await zookeeper.acl(items), await zookeeper.acl(ours)
    except (NoAuthError, NoNodeError, ServerError):
        return  # using the queue reports it
    left_out = excluded(theirs, own)
    if left_out:
        log.warning(
            "queue %r: %s may use it, but may not read the messages that this session puts there: their znodes are "
            "readable by %s. Connect with an `acl=` that names both",
            queue,
            ", ".join(left_out),
            ", ".join(f"{entry.scheme}:{entry.id.partition(':')[0]}" for entry in own),
            extra={"queue": queue},
        )


def excluded(theirs: Sequence[Acl], ours: Sequence[Acl]) -> list[str]:
    """Return the users who may read by one list, but not by the other."""
    allowed = {(entry.scheme, entry.id) for entry in ours if entry.permissions & Permission.READ}
    if (OPEN[0].scheme, OPEN[0].id) in allowed:
        return []
    readers = {(entry.scheme, entry.id) for entry in theirs if entry.permissions & Permission.READ}
    return sorted(f"{scheme}:{user.partition(':')[0]}" for scheme, user in readers - allowed)
