"""Fairness on a queue with bundles, measured by the calls of handlers: ``python -m benchmarks.fairness``.

A bundle is claimed as a whole, so its messages could wait behind a slow handler while other workers are idle. Each case
shows the longest such wait in seconds, next to its limit. ``--bundle 1`` runs the same cases with one znode per
message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedZooKeeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SESSIONS = 16
#: Sessions of the fleets, which all begin at once and run in this process: each of them is notified of each put.
FLEETS = (2, 8, 32, 64, 128)
#: Seconds that a handler takes.
WORK = 1.0
#: Seconds that the slow handler takes.
SLOW = 10.0
#: The session timeout of workers that are killed, seconds.
TIMEOUT = 4.0
#: The number of times that the fatal message is delivered before it becomes a dead letter.
ATTEMPTS = 5
NEIGHBOURS = 64
#: Seconds between two checks of the calls.
LOOK = 0.01


class Figure(NamedTuple):
    """One result, with its upper limit."""

    case: str
    measured: float
    bar: float
    unit: str


class Call(NamedTuple):
    """One call of a handler."""

    session: int
    value: bytes
    begun: float
    ended: float


class Fleet:
    """Sessions with one listener each, and the calls of their handlers."""

    def __init__(self, hosts: str, name: str, bundle: int, work: Callable[[int, bytes], float]) -> None:
        self._hosts = hosts
        self._name = name
        self._bundle = bundle
        self._work = work  # seconds that the handler of a session takes for a message
        self._stack = AsyncExitStack()
        self.calls: list[Call] = []
        self.begun: dict[bytes, float] = {}

    async def start(self, sessions: int) -> zq.Queue[bytes]:
        """Open the sessions, start idle listeners, and return the queue of another session."""
        producer = await self._stack.enter_async_context(zq.connect(self._hosts))
        queue = producer.queue(self._name)
        await queue.configure(zq.QueueConfig(bundle=self._bundle))
        for number in range(sessions):
            session = await self._stack.enter_async_context(zq.connect(self._hosts))
            listener = session.listener(session.queue(self._name), self._handler(number))
            await self._stack.enter_async_context(listener)
        await asyncio.sleep(2)
        return queue

    async def stop(self) -> None:
        """Close all sessions."""
        await self._stack.aclose()

    def _handler(self, session: int) -> Callable[[zq.Delivery[bytes]], Awaitable[None]]:
        async def handle(delivery: zq.Delivery[bytes]) -> None:
            begun = time.monotonic()
            self.begun.setdefault(delivery.value, begun)
            await asyncio.sleep(self._work(session, delivery.value))
            self.calls.append(Call(session, delivery.value, begun, time.monotonic()))

        return handle


async def one_for_each(hosts: str, bundle: int) -> list[Figure]:
    """Put as many messages as there are idle sessions, as single items."""
    fleet = Fleet(hosts, "one", bundle, lambda *_: WORK)
    queue = await fleet.start(SESSIONS)
    await queue.put_many([b"%d" % number for number in range(SESSIONS)])
    await _until(lambda: len(fleet.begun) == SESSIONS)
    await fleet.stop()
    begun = fleet.begun.values()
    return [Figure("16 messages, 16 idle sessions: first to last begin", max(begun) - min(begun), 0.1, "s")]


async def in_fleets(hosts: str, bundle: int) -> list[Figure]:
    """Put as many messages as there are idle sessions, in fleets of several sizes."""
    figures: list[Figure] = []
    for sessions in FLEETS:
        fleet = Fleet(hosts, f"fleet-{sessions}", bundle, lambda *_: WORK)
        queue = await fleet.start(sessions)
        put = time.monotonic()
        await queue.put_many([b"%d" % number for number in range(sessions)])
        await _until(partial(_all_begun, fleet, sessions))
        await fleet.stop()
        case = f"{sessions} messages, {sessions} idle sessions: put to all begun"
        figures.append(Figure(case, max(fleet.begun.values()) - put, 0.15, "s"))
    return figures


async def many_for_each(hosts: str, bundle: int) -> list[Figure]:
    """Put forty messages for each session."""
    fleet = Fleet(hosts, "many", bundle, lambda *_: WORK)
    queue = await fleet.start(SESSIONS)
    put = time.monotonic()
    await queue.put_many([b"%d" % number for number in range(40 * SESSIONS)])
    await _until(lambda: len({call.session for call in fleet.calls}) == SESSIONS)
    await asyncio.sleep(10 * WORK)
    calls = list(fleet.calls)
    await fleet.stop()
    first = {session: min(call.begun for call in calls if call.session == session) for session in range(SESSIONS)}
    idle = 0.0
    for session in range(SESSIONS):
        own = sorted((call for call in calls if call.session == session), key=lambda call: call.begun)
        idle = max([idle, *(after.begun - before.ended for before, after in pairwise(own))])
    return [
        Figure("640 messages, 16 sessions: put to all busy", max(first.values()) - put, 0.3, "s"),
        Figure("640 messages, 16 sessions: longest idle time between two handlers", idle, 0.3, "s"),
    ]


async def beside_a_slow_one(hosts: str, bundle: int) -> list[Figure]:
    """Put one message that keeps its handler busy for a long time, and others that are quick."""
    fleet = Fleet(hosts, "slow", bundle, lambda _, value: SLOW if value == b"0" else 0.001)
    queue = await fleet.start(4)
    await queue.put_many([b"%d" % number for number in range(NEIGHBOURS)])
    await _until(lambda: len(fleet.begun) == NEIGHBOURS)
    waited = max(fleet.begun.values()) - fleet.begun[b"0"]
    await _until(lambda: len(fleet.calls) == NEIGHBOURS)
    await fleet.stop()
    return [Figure("longest wait beside a handler of 10 s", waited, 0.3, "s")]


async def beside_a_fatal_one(hosts: str, bundle: int) -> list[Figure]:
    """Put one message that kills each process that handles it."""
    async with zq.connect(hosts) as session:
        queue = session.queue("fatal")
        policy = zq.ConsumeTimes(ATTEMPTS, backoff=zq.Fixed(0))
        await queue.configure(zq.QueueConfig(bundle=bundle, policy=policy))
        await queue.put_many([b"fatal" if number == 0 else b"%d" % number for number in range(NEIGHBOURS)])
        deaths = 0
        while await queue.size() > 1 and deaths <= ATTEMPTS:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.fairness", "--worker", "--hosts", hosts
            )
            ended = asyncio.create_task(worker.wait())
            while await queue.size() > 1:
                dead, _ = await asyncio.wait({ended}, timeout=0.05)
                if dead:
                    deaths += 1
                    break
            else:
                worker.kill()
                await ended
        return [Figure("deaths by a fatal message until its neighbours are done", deaths, 2, "")]


async def worker(hosts: str) -> None:
    """Handle messages until the fatal one kills this process."""

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        if delivery.value == b"fatal":
            os.kill(os.getpid(), signal.SIGKILL)

    async with (
        zq.connect(hosts, session_timeout=TIMEOUT) as session,
        session.listener(session.queue("fatal"), handle),
    ):
        await asyncio.Event().wait()


def _all_begun(fleet: Fleet, messages: int) -> bool:
    return len(fleet.begun) == messages


async def _until(condition: Callable[[], bool], patience: float = 60) -> None:
    for _ in range(int(patience / LOOK)):
        if condition():
            return
        await asyncio.sleep(LOOK)


CASES = (one_for_each, in_fleets, many_for_each, beside_a_slow_one, beside_a_fatal_one)


async def measure(hosts: str, bundle: int) -> list[Figure]:
    """Run all cases."""
    return [figure for case in CASES for figure in await case(hosts, bundle)]


def main() -> int:
    """Run the cases on a separate server, and print their figures; return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bundle", type=int, default=64, help="messages that a znode may hold (default: 64)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--hosts", default="", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(worker(options.hosts))
        return 0
    with EmbeddedZooKeeper() as server:
        figures = asyncio.run(measure(server.hosts, options.bundle))
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures]))
    else:
        for figure in figures:
            print(f"{figure.case:70} {figure.measured:7.3f} {figure.unit:1}  (at most {figure.bar:g})")
    return int(any(figure.measured > figure.bar for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
