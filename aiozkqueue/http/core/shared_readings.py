"""Readings that all visitors share, so that fifty open browsers cost ZooKeeper as much as one.

A reading is kept for five seconds, the interval in which pages update themselves, or for twenty times as long as it
took. It never takes more than a twentieth of the time, whatever visitors do.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

#: Seconds for which a reading is kept. The pages update themselves as often.
FRESH: Final = 5.0
#: How many times as long as it took a reading is kept.
SHARE: Final = 20
#: Seconds for which a page waits for a reading before it shows the previous one, or that it is being made.
READING_TIMEOUT: Final = 0.3
#: The maximum number of readings that are kept.
KEPT: Final = 64
#: Seconds after which a reading is dropped if no visitor requests it.
UNUSED: Final = 60.0


class _Reading:
    """The last results of one reading, and the next one while it is made."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.value: Any = None
        self.has_value = False
        self.until = float("-inf")
        self.used = 0.0

    async def make(self, read: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Read, and keep the result."""
        start = time.monotonic()
        self.value = await read()
        self.has_value = True
        self.until = max(start + FRESH, time.monotonic() + SHARE * (time.monotonic() - start))


class SharedReadings:
    """The readings of one server, by key."""

    def __init__(self) -> None:
        self._readings: OrderedDict[tuple[Hashable, ...], _Reading] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readings)

    async def get(self, key: tuple[Hashable, ...], read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a reading, and wait until it is made. Raises: the errors of ``read``."""
        reading = self._begun(key, read)
        if reading.task is not None:
            await asyncio.shield(reading.task)
        return cast("T", reading.value)

    async def get_or_previous(self, key: tuple[Hashable, ...], read: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Wait up to `READING_TIMEOUT` for a reading, then return the previous one; None before the first.

        Raises: the errors of ``read``.
        """
        reading = self._begun(key, read)
        if reading.task is not None:
            task = reading.task
            await asyncio.wait([task], timeout=READING_TIMEOUT)
            if task.done():
                task.result()
        return cast("T", reading.value) if reading.has_value else None

    async def get_any(self, key: tuple[Hashable, ...], read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a reading as `get_or_previous` does, but wait for the first one. Raises: the errors of ``read``."""
        self._drop_unused(key)
        reading = self._readings.get(key)
        if reading is None or not reading.has_value:
            return await self.get(key, read)
        await self.get_or_previous(key, read)
        return cast("T", reading.value)

    def forget(self, queue: str) -> None:
        """Drop the readings of a queue, whose key has its name in the second place: it was changed."""
        for key in [key for key in self._readings if key[1:2] == (queue,)]:
            del self._readings[key]

    def drop(self, key: tuple[Hashable, ...]) -> None:
        """Drop one reading: it was changed."""
        self._readings.pop(key, None)

    async def close(self) -> None:
        """End all readings."""
        tasks = [reading.task for reading in self._readings.values() if reading.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begun(self, key: tuple[Hashable, ...], read: Callable[[], Coroutine[Any, Any, Any]]) -> _Reading:
        """Return a reading that is fresh, or is being made."""
        now = time.monotonic()
        self._drop_unused(key)
        reading = self._readings.pop(key, None) or _Reading()
        self._readings[key] = reading
        reading.used = now
        if reading.task is None and now >= reading.until:
            reading.task = asyncio.create_task(reading.make(read), name=f"dashboard: {key}")
            reading.task.add_done_callback(lambda task: self._made(reading, task))
        self._drop(now)
        return reading

    @staticmethod
    def _made(reading: _Reading, task: asyncio.Task[Any]) -> None:
        reading.task = None
        if not task.cancelled():
            task.exception()  # its visitors get it; without a read, asyncio would log it

    def _drop_unused(self, key: tuple[Hashable, ...]) -> None:
        """Drop an old reading that no visitor has requested for long: a page must not show it as the previous one."""
        reading, now = self._readings.get(key), time.monotonic()
        if reading is not None and reading.task is None and reading.until <= now and reading.used <= now - UNUSED:
            del self._readings[key]

    def _drop(self, now: float) -> None:
        for key, reading in list(self._readings.items()):
            if reading.used > now - UNUSED and len(self._readings) <= KEPT:
                return
            if reading.task is None:
                del self._readings[key]
