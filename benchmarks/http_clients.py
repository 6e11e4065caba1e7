"""The HTTP server alone: clients with persistent connections, and hostile bodies while other clients request `/ping`.

The clients write requests to sockets and read as little of the responses as possible, because an HTTP library takes
more CPU than the server. Each client uses one connection and waits for each response.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Self

from .latency import percentiles
from .measure import BODY, Case, Stopwatch
from .over_http import TOGETHER, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .measure import Sample, Server

    Drive = Callable[["Client", str], Awaitable[None]]

_names = (f"clients-{number}" for number in count())
_MESSAGE: Final = b'"' + b"x" * (len(BODY) - 2) + b'"'
_BATCH: Final = b"[" + b",".join([_MESSAGE] * TOGETHER) + b"]"
#: The number of connections that send hostile bodies, and the size of a body.
ENEMIES: Final = 8
_SIZE: Final = 1_000_000
_HOSTILE: Final = (
    b"[" * _SIZE,
    b"[" + b"[]," * (_SIZE // 3) + b"0]",
    b"[" + b"1e-300," * (_SIZE // 7) + b"0]",
    b"{" + b'"0":0,' * (_SIZE // 6) + b'"0":0}',
    b'["' + b'\\"' * (_SIZE // 2 - 4) + b'"]',
    b"[[" + b"0," * (_SIZE // 2 - 4) + b"0]]",
)


class Client:
    """One connection that sends one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, host: str, port: int) -> AsyncIterator[Self]:
        """Connect, and close at the end."""
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ask(self, line: str, body: bytes = b"") -> bytes:
        """Make a request, and return the response. Raises: RuntimeError: its status is not 200."""
        self._writer.write(_head(line, len(body)) + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"{line}: {head.decode()}{answer.decode()}")
        return answer


def _head(line: str, length: int) -> bytes:
    return f"{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


async def send(client: Client, queue: str) -> None:
    """Send one message."""
    await client.ask(f"POST /queue/1/{queue}/send", _MESSAGE)


async def send_batch(client: Client, queue: str) -> None:
    """Send a hundred messages."""
    await client.ask(f"POST /queue/1/{queue}/sendbatch", _BATCH)


async def take(client: Client, queue: str) -> None:
    """Poll up to a hundred messages, and acknowledge them."""
    polled = json.loads(await client.ask(f"GET /queue/1/{queue}/poll?ttl=600&limit={TOGETHER}"))
    await client.ask(f"POST /queue/1/{queue}/ack", json.dumps([message["id"] for message in polled]).encode())


def by_clients(server: Server, messages: int, *, drive: Drive, clients: int, each: int) -> Sample:
    """Run this many clients that make requests of ``each`` messages."""

    async def main() -> Sample:
        async with served(server) as (http, process), AsyncExitStack() as stack:
            host, port = http.base_url.host, http.base_url.port or 80
            name = next(_names)
            open_ones = [await stack.enter_async_context(Client.connected(host, port)) for _ in range(clients)]
            await send(open_ones[0], name)
            if drive is take:
                for _ in range(messages // TOGETHER):
                    await send_batch(open_ones[0], name)
            left = messages // each
            took: list[float] = []

            async def work(client: Client) -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    begun = time.perf_counter()
                    await drive(client, name)
                    took.append(1000 * (time.perf_counter() - begun))

            with Stopwatch(server, [process]) as watch:
                await asyncio.gather(*map(work, open_ones))
            return watch.sample(messages, **percentiles(took))

    return asyncio.run(main())


def ping(server: Server, messages: int, *, enemies: int) -> Sample:
    """Request `/ping` a hundred times a second while other connections send one hostile body after another."""

    async def main() -> Sample:
        async with served(server) as (http, process), AsyncExitStack() as stack:
            host, port = http.base_url.host, http.base_url.port or 80
            client = await stack.enter_async_context(Client.connected(host, port))
            if enemies:
                command = [sys.executable, "-m", "benchmarks.http_clients", host, str(port), str(enemies)]
                enemy = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
                stack.push_async_callback(enemy.wait)
                stack.callback(enemy.kill)
                assert enemy.stdout is not None  # noqa: S101 - it is piped
                await enemy.stdout.readline()
            took: list[float] = []
            with Stopwatch(server, [process]) as watch:
                for _ in range(messages):
                    begun = time.perf_counter()
                    await client.ask("GET /ping")
                    took.append(1000 * (time.perf_counter() - begun))
                    await asyncio.sleep(0.01)
            return watch.sample(messages, **percentiles(took))

    return asyncio.run(main())


def attack(host: str, port: int, enemies: int) -> None:
    """Send hostile bodies on this many connections, until the process is killed."""

    async def attack_repeatedly(number: int) -> None:
        loop = asyncio.get_running_loop()
        for turn in count(number):
            body = _HOSTILE[turn % len(_HOSTILE)]
            with socket.create_connection((host, port)) as connection:
                connection.setblocking(False)  # noqa: FBT003 - the method has only this form
                try:
                    await loop.sock_sendall(connection, _head("POST /queue/1/hostile/sendbatch", len(body)) + body)
                    answered = await loop.sock_recv(connection, 1000)
                except ConnectionError:
                    answered = b""
            if number == turn == 0:
                sys.stdout.write(f"{answered[:12]!r}\n")
                sys.stdout.flush()

    async def main() -> None:
        await asyncio.gather(*map(attack_repeatedly, range(enemies)))

    asyncio.run(main())


def _cases(title: str, messages: int, drive: Drive, each: int) -> list[Case]:
    return [
        Case(
            f"over HTTP: {title}, {clients} client{'s' if clients > 1 else ''}",
            "http",
            messages * clients // 4 if clients > 1 else messages // 4,
            partial(by_clients, drive=drive, clients=clients, each=each),
        )
        for clients in (1, 16)
    ]


CASES = [
    *_cases("send", 4_000, send, 1),
    *_cases("send 100s", 40_000, send_batch, TOGETHER),
    *_cases("poll and acknowledge 100s", 40_000, take, TOGETHER),
    Case("over HTTP: /ping", "http", 1_000, partial(ping, enemies=0)),
    Case(f"over HTTP: /ping beside {ENEMIES} hostile clients", "http", 1_000, partial(ping, enemies=ENEMIES)),
]

if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
