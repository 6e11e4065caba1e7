"""Ends a worker that has nothing to do, as for a job that is started when there is work."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.session.internals import activity_of, core_of
from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.session.background import Service
    from aiozkqueue.session.listener import Listener
    from aiozkqueue.session.session import QueueSession

log: Final = logging.getLogger(__name__)

#: The longest pause between two checks, seconds.
PAUSE: Final = 1.0


class UntilIdle:
    """A service that stops the services of a session when no listener has had a message for some time.

    Time without a connection to ZooKeeper does not count: there may be messages.
    """

    def __init__(
        self, session: QueueSession, seconds: float, listeners: Sequence[Listener[Any]], services: Sequence[Service]
    ) -> None:
        self._zookeeper = core_of(session).zookeeper
        self._seconds = seconds
        self._listeners = listeners
        self._services = services
        self._stopped = asyncio.Event()

    def __str__(self) -> str:
        return "end of an idle worker"

    async def run(self) -> None:
        """See `Service`."""
        loop = asyncio.get_running_loop()
        handled, since = self._handled(), loop.time()
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(PAUSE, self._seconds / 4)):
                    await self._stopped.wait()
            before, handled = handled, self._handled()
            if self._zookeeper.state is not State.CONNECTED or handled is None or handled != before:
                since = loop.time()
            elif loop.time() - since >= self._seconds:
                log.info("no listener has had a message for %g s: stopping", self._seconds)
                for service in self._services:
                    service.stop()
                return

    def stop(self) -> None:
        """See `Service`."""
        self._stopped.set()

    def abort(self) -> None:
        """See `Service`."""
        self._stopped.set()

    def _handled(self) -> int | None:
        """Return how many calls of handlers have ended; None if one runs."""
        activities = [activity_of(listener) for listener in self._listeners]
        return None if any(running for running, _ in activities) else sum(ended for _, ended in activities)
