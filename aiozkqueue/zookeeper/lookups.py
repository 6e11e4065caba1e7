"""Lookups of host names, which last longer than the attempts that need them.

If a name server does not answer, the system asks the next one after five seconds. An attempt to reach a server is often
shorter. A lookup cannot be interrupted either: it occupies a thread to its end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import handshake

if TYPE_CHECKING:
    from aiozkqueue.zookeeper.hosts import Server

NO_ANSWER: Final = "the lookup of its name has no answer yet"


class Lookups:
    """At most one lookup for each server. A lookup continues if its caller is cancelled, and serves the next caller."""

    def __init__(self) -> None:
        self._running: dict[Server, asyncio.Task[list[str]]] = {}
        self.used: str = ""
        """The address of the last connection."""

    @property
    def running(self) -> list[Server]:
        """The servers whose addresses are not known yet."""
        return [server for server, lookup in self._running.items() if not lookup.done()]

    async def addresses(self, server: Server) -> list[str]:
        """Return the addresses behind a host name.

        Raises:
            OSError: there are no addresses.
        """
        lookup = self._running.get(server)
        if lookup is None:
            lookup = self._running[server] = asyncio.create_task(handshake.resolve(server), name=f"lookup of {server}")
            lookup.add_done_callback(_retrieve)
        await asyncio.wait([lookup])
        self._running.pop(server, None)
        return lookup.result()

    def clear(self) -> None:
        """Forget all lookups: their answers may be outdated when addresses are needed again."""
        for lookup in self._running.values():
            lookup.cancel()
        self._running.clear()


def _retrieve(lookup: asyncio.Task[list[str]]) -> None:
    if not lookup.cancelled():
        lookup.exception()  # prevents asyncio's warning about an exception never retrieved
