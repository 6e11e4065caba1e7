"""Whether the other program's clients may use what this session puts into their queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import NoAuthError, NoNodeError
from aiozkqueue.zookeeper.auth import OPEN, Permission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeper
    from aiozkqueue.zookeeper.auth import Acl

log: Final = logging.getLogger(__name__)


async def warn_if_hidden(zookeeper: ZooKeeper, queue: str, items: str, ours: str) -> None:
    """Log a warning when users of the znode ``items`` may not read znodes such as ``ours``, made by our sessions."""
    if zookeeper.makes_open:
        return
    try:
        theirs, given = await zookeeper.acl(items), await zookeeper.acl(ours)
    except (NoAuthError, NoNodeError):
        return  # the use of the queue tells of it
    left_out = excluded(theirs, given)
    if left_out:
        log.warning(
            "queue %r: %s may use it, but may not read what this session puts there: its znodes are for %s. "
            "Connect with an `acl=` that names both sides",
            queue,
            ", ".join(left_out),
            ", ".join(f"{one.scheme}:{one.id.partition(':')[0]}" for one in given),
            extra={"queue": queue},
        )


def excluded(theirs: Sequence[Acl], ours: Sequence[Acl]) -> list[str]:
    """Name the users whom one list lets read and the other does not."""
    allowed = {(one.scheme, one.id) for one in ours if one.permissions & Permission.READ}
    if (OPEN[0].scheme, OPEN[0].id) in allowed:
        return []
    readers = {(one.scheme, one.id) for one in theirs if one.permissions & Permission.READ}
    return sorted(f"{scheme}:{user.partition(':')[0]}" for scheme, user in readers - allowed)
