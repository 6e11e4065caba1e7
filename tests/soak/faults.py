"""The faults of the servers and the clients, in an order that a seed determines."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Opened
from tests.soak.plan import CONNECT_TIMEOUT, LIMIT, ROOT, SESSION_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aiozkqueue.testing import EmbeddedEnsemble
    from tests.soak.fleet import Fleet, Member

SHORT, LONG = 0.25 * SESSION_TIMEOUT, 1.5 * SESSION_TIMEOUT


@dataclass(slots=True, eq=False)
class InjectedFault:
    """One fault, with the times when it began and ended."""

    kind: str
    victim: str
    at: float
    ended: float = float("inf")


async def finish_in_thread(act: Callable[[], object]) -> None:
    """Run this in a thread.

    Wait until the thread has ended, even after a cancellation: `heal` must not run at the same time.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        await asyncio.shield(doing)
    finally:
        await asyncio.wait((doing,))


class Driver:
    """Injects faults until it is cancelled; `heal` repairs all of them."""

    def __init__(self, ensemble: EmbeddedEnsemble, fleet: Fleet, seed: int) -> None:
        self._ensemble = ensemble
        self._fleet = fleet
        self._servers = random.Random(f"{seed} servers")
        self._clients = random.Random(f"{seed} clients")
        self._claims = random.Random(f"{seed} claims")
        self.injected: list[InjectedFault] = []
        self.opened: list[Opened] = []

    @contextmanager
    def _recorded(self, kind: str, victim: object) -> Iterator[None]:
        fault = InjectedFault(kind, str(victim), time.monotonic())
        self.injected.append(fault)
        try:
            yield
        finally:
            fault.ended = time.monotonic()

    # Servers

    async def break_servers(self) -> None:
        """Break one server at a time, so that a majority runs, except in the one fault that stops all servers."""
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill_leader,
            self._kill_follower,
            self._pause_leader,
            self._pause_follower,
            self._restart_everything,
        ]
        while True:
            for fault in self._servers.sample(faults, len(faults)):
                await asyncio.sleep(self._servers.uniform(3, 9))
                await fault()

    async def _leader(self) -> int:
        leader = await asyncio.to_thread(self._ensemble.leader)
        return self._ensemble.nodes.index(leader)

    async def _follower(self) -> int:
        leader = await self._leader()
        return self._servers.choice([index for index in range(len(self._ensemble.nodes)) if index != leader])

    async def _kill(self, index: int, kind: str) -> None:
        node = self._ensemble.nodes[index]
        with self._recorded(kind, f"server {index}"):
            await finish_in_thread(node.kill)
            await asyncio.sleep(self._servers.uniform(0, 4))
            await finish_in_thread(node.start)

    async def _pause(self, index: int, kind: str) -> None:
        node = self._ensemble.nodes[index]
        with self._recorded(kind, f"server {index}"):
            await asyncio.to_thread(node.pause)
            await asyncio.sleep(self._servers.choice([SHORT, LONG, 2 * LONG]))
            node.resume()
            await asyncio.to_thread(node.wait_serving)

    async def _kill_leader(self) -> None:
        await self._kill(await self._leader(), "leader killed")

    async def _kill_follower(self) -> None:
        await self._kill(await self._follower(), "follower killed")

    async def _pause_leader(self) -> None:
        await self._pause(await self._leader(), "leader paused")

    async def _pause_follower(self) -> None:
        await self._pause(await self._follower(), "follower paused")

    async def _restart_everything(self) -> None:
        with self._recorded("everything restarted", "all servers"):
            for node in self._ensemble.nodes:
                await finish_in_thread(node.kill)
            await asyncio.sleep(self._servers.uniform(0, LONG))
            for node in self._ensemble.nodes:
                await finish_in_thread(node.launch)
            for node in self._ensemble.nodes:
                await asyncio.to_thread(node.wait_serving, 60.0)

    # Clients

    async def break_clients(self) -> None:
        """Break up to three clients at once, each by one fault."""
        faults: list[tuple[str, Callable[[Member, random.Random], Awaitable[None]]]] = [
            ("client killed", self._kill_client),
            ("client stopped", self._stop_client),
            ("client stopped", self._stop_client),
            ("connections reset", self._reset_client),
            ("replies lost", self._lose_replies),
            ("blackout", self._black_out),
            ("blackout", self._black_out),
        ]
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._clients.uniform(0.5, 4))
                free = [member for member in self._fleet.members if not member.busy]
                kind, fault = self._clients.choice(faults)
                chance, member = random.Random(self._clients.random()), self._clients.choice(self._fleet.members)
                if member in free and len(free) > len(self._fleet.members) - 3:
                    member.busy = True
                    tasks.create_task(self._inject(member, kind, fault(member, chance)))

    async def _inject(self, member: Member, kind: str, fault: Awaitable[None]) -> None:
        try:
            with self._recorded(kind, member.name):
                await fault
        finally:
            member.busy = False

    async def _kill_client(self, member: Member, chance: random.Random) -> None:
        member.kill()
        await asyncio.sleep(chance.choice([0, SHORT, LONG]))
        member.start()

    async def _stop_client(self, member: Member, chance: random.Random) -> None:
        member.signal(signal.SIGSTOP)
        await asyncio.sleep(chance.choice([SHORT, LONG, 2 * LONG]))
        member.signal(signal.SIGCONT)

    async def _reset_client(self, member: Member, chance: random.Random) -> None:
        for _ in range(chance.choice([1, 3, 10])):
            member.reset()
            await asyncio.sleep(chance.uniform(0, 0.3))

    async def _lose_replies(self, member: Member, chance: random.Random) -> None:
        member.lose_replies()
        await asyncio.sleep(chance.choice([0.05, SHORT]))
        await member.heal()

    async def _black_out(self, member: Member, chance: random.Random) -> None:
        chance.choice([member.silence, member.refuse])()
        await asyncio.sleep(chance.choice([SHORT, LONG, 2 * LONG]))
        await member.heal()

    # Claims

    async def break_claims(self) -> None:
        """Release all claims on a queue by force, from time to time."""
        async with zq.connect(self._ensemble.hosts, root=ROOT, connect_timeout=CONNECT_TIMEOUT) as session:
            while True:
                await asyncio.sleep(self._claims.uniform(3, 15))
                opened = Opened(self._claims.choice(list(LIMIT)), time.monotonic())
                self.opened.append(opened)
                with self._recorded("claims forced open", opened.queue):
                    await session.queue(opened.queue).admin.release_claims()
                opened.ended = time.monotonic()

    # Afterwards

    async def heal(self) -> None:
        """Restart and resume all servers and clients."""
        for node in self._ensemble.nodes:
            if node.running:
                node.resume()
            await asyncio.to_thread(node.launch)
        for node in self._ensemble.nodes:
            await asyncio.to_thread(node.wait_serving, 60.0)
        for member in self._fleet.members:
            await member.heal()
            member.signal(signal.SIGCONT)
            if member.code() is not None and member.code() == -signal.SIGKILL:
                member.start()
