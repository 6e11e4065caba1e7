"""ZooKeeper's time for what operators see: states, figures and ages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import ClientPaths

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.runtime import Runtime


async def shown_time(runtime: Runtime) -> int:
    """Return ZooKeeper's time in milliseconds; if this user may not write below the root, this machine's clock decides.

    A session that has written nothing for ten minutes writes once: ZooKeeper states its time only for a write.
    """
    return await runtime.server_clock.shown(ClientPaths(runtime.root, "-").clients)
