"""Consumers of aiozkqueue and of Curator on one Curator queue: ``python -m benchmarks.beside_curator``.

Two processes of each, all at different speeds, drain one queue. All are killed and replaced twice. Then aiozkqueue's
two consumers do the same alone. The figures compare the two rates, and count the locks that aiozkqueue's consumers have
requested. A proxy counts them, so refused requests are included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import EmbeddedZooKeeper, ZooKeeperProxy

from .lock_creates import LockCreates
from .peers_curator import curator_driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeper

MESSAGES = 5000
#: For each of aiozkqueue's consumers: the seconds that a message takes, and the number of messages at a time.
OURS = ((0.02, 8), (0.04, 4))
#: For each of Curator's consumers: the milliseconds that a message takes.
CURATORS = (1, 20)
#: All consumers are killed when at most these shares of the messages are left.
KILLED_AT = (0.8, 0.6)
#: The session timeout of all consumers, seconds: the locks of a killed consumer remain for this time.
TIMEOUT = 2.0
#: Seconds between two checks of the queue.
LOOK = 0.02
#: Seconds within which a queue must be empty.
PATIENCE = 120.0
PATH = "/beside-curator/items"
LOCKS = "/beside-curator/locks"


class Figure(NamedTuple):
    """One result, with its lower or upper limit."""

    case: str
    measured: float
    bar: float
    at_least: bool

    @property
    def passed(self) -> bool:
        """Whether the result meets the limit."""
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar


class Drained(NamedTuple):
    """One drain of the queue."""

    seconds: float
    handled: int
    """The messages that aiozkqueue's consumers have handled."""
    creates: int
    """The locks that aiozkqueue's consumers have requested."""


class Consumer:
    """A consumer process that is started in advance, and consumes on command."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.handled = 0

    async def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        await self._line()

    def consume(self, command: str) -> None:
        """Command it to consume this queue."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        self._process.stdin.write(command.encode() + b"\n")

    async def kill(self) -> None:
        """Kill the process, and read the number of messages that it has handled."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        while line := await self._line():
            self.handled += line.startswith(b"+")

    async def _line(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - as above
        return await self._process.stdout.readline()


class Fleet:
    """The consumers of one drain, and their replacements, which are started in advance.

    ``curators`` has the milliseconds per message of Curator's consumers, and ``driver`` is the command that starts one.
    """

    def __init__(self, hosts: str, stack: AsyncExitStack, driver: Sequence[str], curators: Sequence[int]) -> None:
        ours = [sys.executable, "-m", "benchmarks.beside_curator", "--worker", hosts]
        theirs = [*driver, hosts, str(round(TIMEOUT * 1000))]
        self._stack = stack
        self._roles = [
            *((ours, f"{pause} {together}") for pause, together in OURS),
            *((theirs, f"serve {PATH} {LOCKS} {pause}") for pause in curators),
        ]
        self._spare: list[list[Consumer]] = []
        self._working: list[Consumer] = []
        self.all: list[Consumer] = []

    async def start(self) -> None:
        """Start all processes."""
        for _ in range(1 + len(KILLED_AT)):
            consumers = [Consumer(command) for command, _ in self._roles]
            for consumer in consumers:
                await consumer.start()
                self._stack.push_async_callback(consumer.kill)
            self._spare.append(consumers)
            self.all += consumers

    async def replace(self) -> None:
        """Kill the active consumers, and have the replacements continue."""
        for consumer in self._working:
            await consumer.kill()
        self._working = self._spare.pop()
        for consumer, (_, command) in zip(self._working, self._roles, strict=True):
            consumer.consume(command)


async def drain(server: str, driver: Sequence[str], curators: Sequence[int]) -> Drained:
    """Drain the queue with two consumers of aiozkqueue, and with these of Curator."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(zq.connect(server))
        proxy = await stack.enter_async_context(ZooKeeperProxy(server))
        await session.curator_queue(PATH, lock_path=LOCKS).put_many([b"%d" % number for number in range(MESSAGES)])
        creates = LockCreates(proxy, LOCKS)
        fleet = Fleet(proxy.hosts, stack, driver, curators)
        await fleet.start()
        zookeeper = core_of(session).zookeeper
        begun = time.monotonic()
        await fleet.replace()
        for share in KILLED_AT:
            await _until(zookeeper, PATH, int(share * MESSAGES))
            await fleet.replace()
        await _until(zookeeper, PATH, 0)
        await _until(zookeeper, LOCKS, 0)
        seconds = time.monotonic() - begun
    return Drained(seconds, sum(consumer.handled for consumer in fleet.all), creates.count)


async def _until(zookeeper: ZooKeeper, path: str, left: int) -> None:
    for _ in range(int(PATIENCE / LOOK)):
        stat = await zookeeper.exists(path)
        if stat is None or stat.num_children <= left:
            return
        await asyncio.sleep(LOOK)
    raise TimeoutError(f"{path} has more than {left} children after {PATIENCE} s")


def measure(rounds: int) -> list[Figure]:
    """Drain with and without Curator's consumers, on a separate server for each round."""
    driver = curator_driver()
    ratios, alone, together = list[float](), list[float](), list[Drained]()
    for _ in range(rounds):
        with EmbeddedZooKeeper() as server:
            ours = asyncio.run(drain(server.hosts, driver, ()))
            mixed = asyncio.run(drain(server.hosts, driver, CURATORS))
        ratios.append(ours.seconds / mixed.seconds)
        alone.append(MESSAGES / ours.seconds)
        together.append(mixed)
    return [
        Figure("ours alone, messages a second", median(alone), 0, at_least=True),
        Figure(
            "ours beside Curator's, messages a second",
            median(MESSAGES / drained.seconds for drained in together),
            0,
            at_least=True,
        ),
        Figure("rate of all, as a share of ours alone", median(ratios), 0.8, at_least=True),
        Figure(
            "locks that ours request, for each message that ours handle",
            median(drained.creates / max(1, drained.handled) for drained in together),
            1.1,
            at_least=False,
        ),
    ]


async def work(hosts: str) -> None:
    """Report that this process is ready, then handle messages on command until it is killed; report each."""
    print("ready", flush=True)
    pause, together = (await asyncio.to_thread(sys.stdin.readline)).split()

    async def handle(_: zq.Delivery[bytes]) -> None:
        await asyncio.sleep(float(pause))
        print("+", flush=True)

    async with zq.connect(hosts, session_timeout=TIMEOUT) as session:
        queue = session.curator_queue(PATH, lock_path=LOCKS)
        await session.listener(queue, handle, concurrency=int(together)).run()


def main() -> int:
    """Measure, and print the figures; return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="show the medians of this many rounds (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--worker", metavar="HOSTS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(options.worker))
        return 0
    figures = measure(options.rounds)
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures]))
    else:
        for figure in figures:
            sign = "at least" if figure.at_least else "at most"
            print(f"{figure.case:60} {figure.measured:8.3f}  ({sign} {figure.bar:g})")
    return int(not all(figure.passed for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
