"""The examples of common uses, each in its own process: mail, cron, an outbox, a bus, and a move from Curator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TextIO

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import assert_dead_lettered, assert_empty, assert_put
from tests.dialects.peers import Curator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Start = Callable[..., Awaitable[subprocess.Popen[str]]]

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 100.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def hosts(zookeeper: str, queue_root: str) -> str:
    """A chroot, because the examples use the default root."""
    return f"{zookeeper}{queue_root}"


@pytest.fixture
async def session(hosts: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(hosts) as session:
        yield session


@pytest.fixture
async def start(hosts: str) -> AsyncIterator[Start]:
    """Starts an example. It is killed before the loop ends, because the loop waits for threads that read its output."""
    environment = os.environ | {"AIOZKQUEUE_HOSTS": hosts, "PYTHONUNBUFFERED": "1"}
    with ExitStack() as stack:

        async def started(program: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
            command = [sys.executable, str(EXAMPLES / program), *arguments]
            process = await asyncio.to_thread(
                subprocess.Popen, command, env=environment | more, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started
        await asyncio.to_thread(stack.close)


async def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).rstrip("\n")


async def stop(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM, and check that the process ends without an error."""
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, PATIENCE) == 0


class MailServer:
    """A part of SMTP: it accepts a mail, or refuses it temporarily or permanently, depending on the recipient."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.mails: list[str] = []
        self._refused: set[str] = set()
        Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("r") as received:
                self._talk(connection, received)

    def _talk(self, connection: socket.socket, received: TextIO) -> None:
        def say(text: str) -> None:
            connection.sendall(f"{text}\r\n".encode())

        say("220 here")
        for command in received:
            match command.split(":")[0].split()[0].upper():
                case "RCPT" if "nobody@" in command:
                    say("550 no such user")
                case "RCPT" if "later@" in command and command not in self._refused:
                    self._refused.add(command)
                    say("450 come back later")
                case "DATA":
                    say("354 go on")
                    self.mails.append("".join(iter(received.readline, ".\n")))
                    say("250 taken")
                case "QUIT":
                    say("221 bye")
                    return
                case _:
                    say("250 OK")


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    server = MailServer()
    yield server
    server.close()


async def test_mail_is_sent_retried_or_dead_lettered_with_the_reply_of_the_server(
    start: Start, session: zq.QueueSession, mail_server: MailServer
) -> None:
    sender = await start("mail.py", SMTP=mail_server.address)
    mail = session.queue("mail")
    ids = {
        to: await mail.put(json.dumps({"to": f"{to}@example.com", "subject": "Hello", "text": "Tea?"}).encode())
        for to in ("ann", "later", "nobody")
    }
    assert {await line(sender) for _ in range(2)} == {
        "sent to ann@example.com, attempt 1",
        "sent to later@example.com, attempt 2",
    }
    dead = await assert_dead_lettered(mail, timeout=PATIENCE, reason="550 no such user")
    assert dead.id == ids["nobody"]
    assert sum(f"Message-ID: <{ids['ann']}@example.com>" in text for text in mail_server.mails) == 1
    await assert_empty(mail, timeout=PATIENCE)
    await stop(sender)


async def test_two_schedulers_put_each_occurrence_once(start: Start, session: zq.QueueSession) -> None:
    every_second = "* * * * * *"
    processes = [await start("cron.py", every_second) for _ in range(2)]
    reports: SimpleQueue[str] = SimpleQueue()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for report in process.stdout:
            reports.put(report)

    async with asyncio.TaskGroup() as group:
        for process in processes:
            group.create_task(asyncio.to_thread(read, process))
        seen = [await asyncio.to_thread(reports.get, timeout=PATIENCE) for _ in range(4)]
        async with asyncio.timeout(PATIENCE):  # a process that starts late has no signal handlers yet
            while (await session.queue("reports").stats()).consumers < len(processes):  # noqa: ASYNC110 - the processes do it
                await asyncio.sleep(0.05)
        for process in processes:
            await stop(process)
    seen += [reports.get() for _ in range(reports.qsize())]
    assert all(report.startswith("report of 20") for report in seen)
    assert len(seen) == len(set(seen))


def rows_in_the_outbox(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("select count(*) from outbox").fetchone()
    return int(count)


@pytest.mark.slow
async def test_each_row_of_the_outbox_is_put_once_although_a_relay_is_killed(
    start: Start, session: zq.QueueSession, tmp_path: Path
) -> None:
    database, orders = tmp_path / "shop.db", session.queue("orders")

    async def order(article: str) -> None:
        assert await asyncio.to_thread((await start("outbox.py", str(database), "order", article)).wait, PATIENCE) == 0

    await order("teapot")
    first = await start("outbox.py", str(database), "relay")
    assert await line(first) == "put up to row 1"
    second = await start("outbox.py", str(database), "relay")
    first.kill()  # it has put row 1 and not deleted it yet
    await order('a "fine" cup')
    assert await line(second) == "put up to row 2"
    await order("kettle")
    assert await line(second) == "put up to row 3"
    assert [json.loads(message.body) for message in await orders.peek()] == [
        {"id": 1, "article": "teapot"},
        {"id": 2, "article": 'a "fine" cup'},
        {"id": 3, "article": "kettle"},
    ]
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(rows_in_the_outbox, database):  # noqa: ASYNC110 - another process deletes them
            await asyncio.sleep(0.05)


async def test_each_group_handles_each_event_once_even_if_it_was_stopped_meanwhile(start: Start) -> None:
    async def post(number: str, article: str) -> None:
        posting = await start("events.py", "post", number, article)
        assert await asyncio.to_thread(posting.wait, PATIENCE) == 0

    billing, shipping = await start("events.py", "billing"), await start("events.py", "shipping")
    assert [await line(process) for process in (billing, shipping)] == ["billing: joined", "shipping: joined"]
    await post("1", "teapot")
    assert [await line(shipping) for _ in range(2)] == ["shipping: teapot for order 1", "shipping: OrderPlaced 1 noted"]
    await stop(shipping)
    await post("2", "kettle")
    assert [await line(billing) for _ in range(2)] == [f"billing: invoice for order {number}" for number in (1, 2)]
    shipping = await start("events.py", "shipping")
    assert [await line(shipping) for _ in range(3)] == [
        "shipping: joined",
        "shipping: kettle for order 2",
        "shipping: OrderPlaced 2 noted",
    ]
    await stop(billing)
    await stop(shipping)


async def test_orders_from_curator_are_handled_here_and_moved(
    start: Start, session: zq.QueueSession, hosts: str
) -> None:
    await core_of(session).zookeeper.ensure("/")  # the chroot, which Curator expects to exist
    java = await asyncio.to_thread(Curator, hosts)
    try:
        await java.ask("open", "q", "queue", "/app/orders", "/app/locks", 0)
        await java.ask("put", "q", b"order 1".hex())
        consumer = await start("from_curator.py", "consume")
        assert await line(consumer) == "handled order 1"
        await assert_put(session.queue("invoices"), b"invoice for order 1", timeout=PATIENCE)
        await stop(consumer)
        await java.ask("put", "q", b"order 2".hex())
        mover = await start("from_curator.py", "move")
        assert await line(mover) == "moved order 2"
        await assert_put(session.queue("orders"), b"order 2", timeout=PATIENCE)
        await stop(mover)
    finally:
        await asyncio.to_thread(java.kill)
