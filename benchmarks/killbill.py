"""Events at a fixed rate to an empty handler, as in killbill-queue's own figure: 150 a second on one node.

Open loop: each event is put when it is due, even if earlier ones are still unanswered.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel

from aiozkqueue.bus import Bus

from . import ours
from .latency import percentiles
from .measure import Case, Sample, Stopwatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    import aiozkqueue as zq

    from .measure import Server

    Opened: TypeAlias = "Callable[[Server], AbstractAsyncContextManager[Node]]"

PACES = (150, 300, 700)
#: The size of an event's payload, bytes.
WEIGHT = 540
SECONDS = 60
#: The duration of a quick run's measurement.
LEAST_SECONDS = 10
#: The saturated cases.
SATURATED = 60_000
#: Events handled before the measurement.
WARMING = 500
#: Time for the last event to be handled, seconds.
PATIENCE = 30.0
CONCURRENCY = 30
#: Maximum events put and not yet handled in the saturated cases.
AHEAD = 1_000
#: The number of digits of an event's number, which is at the start of its payload.
_DIGITS = 8


class Happened(BaseModel):
    """An event for a bus; its JSON has the same size."""

    number: int
    text: str


class Node:
    """A node that both puts and handles events."""

    def __init__(self, put: Callable[[int], Awaitable[object]]) -> None:
        self._put = put
        self._handled: dict[int, float] = {}
        self._missing = 0
        self._all = asyncio.Event()
        self._room = asyncio.Semaphore(AHEAD)

    def handle(self, number: int) -> None:
        """Handle an event: record the time."""
        self._handled[number] = time.perf_counter()
        self._missing -= 1
        self._room.release()
        if self._missing == 0:
            self._all.set()

    def expect(self, messages: int) -> None:
        """Reset the records."""
        self._handled.clear()
        self._missing = messages
        self._all.clear()
        self._room = asyncio.Semaphore(AHEAD)

    async def at(self, pace: float, messages: int) -> dict[str, float]:
        """Put this many events a second, and return percentiles of the time from put to handler."""
        self.expect(messages)
        due_at, acknowledged = [0.0] * messages, [0.0] * messages

        async def put(number: int) -> None:
            await self._put(number)
            acknowledged[number] = time.perf_counter()

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(messages):
                due_at[number] = begun + number / pace
                if (early := due_at[number] - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                group.create_task(put(number))
        async with asyncio.timeout(PATIENCE):
            await self._all.wait()
        waited = [1000 * max(0.0, self._handled[number] - at) for number, at in enumerate(acknowledged)]
        whole = percentiles([1000 * (self._handled[number] - at) for number, at in enumerate(due_at)])
        return percentiles(waited) | {"from_due_p50_ms": whole["p50_ms"], "from_due_p99_ms": whole["p99_ms"]}

    async def saturated(self, messages: int) -> None:
        """Put from many tasks, never far ahead of the handler, and return when all events have been handled."""
        self.expect(messages)
        numbers = iter(range(messages))

        async def put_next() -> None:
            await self._room.acquire()
            await self._put(next(numbers))

        await ours.spread(ours.TASKS, messages, put_next)
        async with asyncio.timeout(PATIENCE):
            await self._all.wait()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[Node]:
    """Open a node with a queue and a listener."""
    async with AsyncExitStack() as stack:
        session, queue = await stack.enter_async_context(ours.opened(server))
        filler = bytes(WEIGHT - _DIGITS)
        node = Node(lambda number: queue.put(b"%0*d" % (_DIGITS, number) + filler))

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            node.handle(int(delivery.body[:_DIGITS]))

        await stack.enter_async_context(session.listener(queue, handler, concurrency=CONCURRENCY))
        yield node


@asynccontextmanager
async def on_a_bus(server: Server) -> AsyncIterator[Node]:
    """Open a node with a bus and a subscriber."""
    async with AsyncExitStack() as stack:
        session, _ = await stack.enter_async_context(ours.opened(server))
        bus = Bus(session, "killbill", Happened)
        text = "x" * (WEIGHT - len(Happened(number=10**_DIGITS, text="").model_dump_json()))
        node = Node(lambda number: bus.post(Happened(number=number, text=text)))

        async def subscriber(event: Happened) -> None:
            node.handle(event.number)

        bus.subscribe(Happened, subscriber)
        await stack.enter_async_context(bus.listener(concurrency=CONCURRENCY))
        yield node


def paced(server: Server, messages: int, *, pace: int, opened: Opened) -> Sample:
    """Put at a fixed rate, and record when each event is handled."""
    messages = max(messages, pace * LEAST_SECONDS)

    async def main() -> Sample:
        async with opened(server) as node:
            await node.saturated(WARMING)
            with Stopwatch(server) as watch:
                figures = await node.at(pace, messages)
            return watch.sample(messages, **figures)

    return asyncio.run(main())


def saturated(server: Server, messages: int, *, opened: Opened) -> Sample:
    """Put and handle as many events as possible in the time."""

    async def main() -> Sample:
        async with opened(server) as node:
            await node.saturated(WARMING)
            with Stopwatch(server) as watch:
                await node.saturated(messages)
            return watch.sample(messages)

    return asyncio.run(main())


def name_of(pace: int) -> str:
    """Return the name of the case with this fixed rate."""
    return f"event → handler, {pace} a second"


SATURATION = "events put and handled, as many as can be"

CASES = [
    *(
        Case(name_of(pace), "killbill", pace * SECONDS, partial(paced, pace=pace, opened=listening), rounds=1)
        for pace in PACES
    ),
    Case(SATURATION, "killbill", SATURATED, partial(saturated, opened=listening), rounds=1),
    Case(
        f"bus: {name_of(PACES[0])}",
        "killbill",
        PACES[0] * SECONDS,
        partial(paced, pace=PACES[0], opened=on_a_bus),
        rounds=1,
    ),
    Case(f"bus: {SATURATION}", "killbill", SATURATED // 2, partial(saturated, opened=on_a_bus), rounds=1),
]
