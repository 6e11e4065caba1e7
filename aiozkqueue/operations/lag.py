"""The figures that a stream reports as its lag: read from stats, and rarely from listings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import HOUR, hour_at

from .bundles import count_bundled
from .stats import configuration, count, stat_lanes, znodes_of

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime

#: Seconds between two readings.
SPACING: Final = 1.0
#: How many times longer than a reading the pause after it is, so that listings of deep queues stay rare.
SPARING: Final = 50


class Lag:
    """Reads how much a queue still holds. Frequent calls get the last figures."""

    def __init__(self, handle: QueueHandle[Runtime]) -> None:
        self._handle = handle
        self._figures: dict[str, int] = {}
        self._next = float("-inf")

    async def figures(self) -> dict[str, int]:
        """Return the numbers of waiting, held, delayed and dead messages, at most some seconds old.

        Messages of the current hour that are not due yet are found by a listing only, so they count as delayed until
        the hour has passed. A reading lists the names of a queue's lanes if it has had bundles, and nothing otherwise.

        Raises: AccessDeniedError, PayloadError.
        """
        clock = self._handle.runtime.clock
        start = clock.monotonic()
        if start >= self._next:
            self._figures = await self._read()
            end = clock.monotonic()
            self._next = end + max(SPACING, SPARING * (end - start))
        return self._figures

    async def _read(self) -> dict[str, int]:
        handle, paths = self._handle, self._handle.paths
        now = await handle.runtime.server_clock.learned(paths.due)
        locks, due, dead = await asyncio.gather(*(count(handle, path) for path in (paths.locks, paths.due, paths.dlq)))
        config = await configuration(handle)
        folders = await stat_lanes(handle)
        size = scheduled = 0
        for folder, stat in folders.items():
            hour = hour_at(paths.place_of(folder))
            if hour is not None and (hour + 1) * HOUR > now:
                scheduled += stat.num_children
            else:
                size += stat.num_children
        held = locks - due
        if config is not None and config.bundled:
            bundled = await count_bundled(handle, znodes_of(folders))
            size += sum(bundled.more.values())
            held += bundled.in_flight
        return {
            "waiting": max(0, size - held - due),
            "in_flight": max(0, held),
            "delayed": scheduled + due,
            "dead_letters": dead,
        }
