"""The client processes, each behind its own proxies, and the faults that can be injected into them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aiozkqueue.testing import Direction, FaultProxy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

REPOSITORY = Path(__file__).parents[2]


class Member:
    """One of the clients; each start is a new incarnation with a separate journal."""

    def __init__(self, number: int, programs: str, proxies: Sequence[FaultProxy], folder: Path, seed: int) -> None:
        self.number = number
        self._programs = programs
        self.proxies = proxies
        self._folder = folder
        self._seed = seed
        self._incarnation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.busy = False
        """Whether a fault is active for it."""

    @property
    def name(self) -> str:
        return f"c{self.number}.{self._incarnation}"

    @property
    def journal(self) -> Path:
        return self._folder / f"{self.name}.jsonl"

    def start(self) -> None:
        self._incarnation += 1
        hosts = ",".join(proxy.hosts for proxy in self.proxies)
        arguments = [self.name, self._programs, hosts, str(self.journal), f"{self._seed}-{self.name}"]
        self.journal.touch()
        with (self._folder / f"{self.name}.log").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.client", *arguments],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the driver
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def code(self) -> int | None:
        """Return its exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    async def ended(self, within: float) -> int | None:
        """Wait until it has ended, and return its exit status; None if it has not ended in time."""
        deadline = asyncio.get_running_loop().time() + within
        while (code := self.code()) is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        return code

    # The network

    def reset(self) -> None:
        for proxy in self.proxies:
            proxy.reset_connections()

    def silence(self) -> None:
        """Forward nothing, without closing connections, so that neither side notices."""
        for proxy in self.proxies:
            proxy.stall()

    def refuse(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()
            proxy.reset_connections()

    def lose_replies(self) -> None:
        """Forward requests to the servers, but no replies to the client."""
        for proxy in self.proxies:
            proxy.drop(Direction.TO_CLIENT)

    async def heal(self) -> None:
        """Forward everything again, on new connections; data that was held back is lost."""
        for proxy in self.proxies:
            proxy.reset_connections()
            proxy.heal()
            await proxy.listen()


class Fleet:
    """All clients, as an ``async with`` block. They are killed at its end."""

    def __init__(self, programs: Sequence[str], hosts: Sequence[str], folder: Path, seed: int) -> None:
        self._programs = programs
        self._hosts = hosts
        self._folder = folder
        self._seed = seed
        self._stack = AsyncExitStack()
        self.members: list[Member] = []

    def journals(self) -> list[Path]:
        return sorted(self._folder.glob("c*.jsonl"))

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        for number, programs in enumerate(self._programs):
            proxies = [await self._stack.enter_async_context(FaultProxy(host)) for host in self._hosts]
            member = Member(number, programs, proxies, self._folder, self._seed)
            self._stack.callback(member.kill)
            self.members.append(member)
            member.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)
