"""The demo's run: server, processes, the kill, the drain, the account."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

import aiozkqueue as zq
from aiozkqueue.cli import bars
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.demo import processes
from aiozkqueue.cli.demo.account import Account, Victim
from aiozkqueue.cli.demo.records import Line, Result
from aiozkqueue.cli.demo.report import print_account
from aiozkqueue.cli.exits import Exit
from aiozkqueue.errors import NotFoundError
from aiozkqueue.testing import EmbeddedZooKeeper

_WORKERS: Final = ("worker-1", "worker-2", "worker-3")
# The session timeout, seconds: the shortest that a server with ZooKeeper's default tick of 2 s allows. A death is
# noticed after this time.
_SESSION_TIMEOUT: Final = 4.0
# The number of session timeouts without a result after which no more results are expected.
_IDLE_TIMEOUTS: Final = 5
_BATCH: Final = 200
# The time that the deletion of the queues may take, seconds, also after an interruption.
_DELETION: Final = 10
# The victim is killed in the delivery with this number, or in an earlier one if the text is short.
_HOLD_AT: Final = 20


@connected
async def demo(
    connection: Connection,
    context: typer.Context,
    text: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", exists=True, dir_okay=False, help="A text to process instead of the built-in one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Process a text through two queues, kill a worker, and account for every line.

    Three processes take lines from one queue and put the processed lines into
    another queue, each pair in one transaction. One process is killed with
    SIGKILL in the middle of a transaction.

    Starts its own ZooKeeper (extra [bold]embedded[/bold]) unless you give --hosts. It ignores the variable
    AIOZKQUEUE_HOSTS. The two queues are deleted at the end.

    Exit status 1: a line was lost or duplicated.

    Examples:
    [dim]$ aiozkqueue demo
    $ aiozkqueue demo --input /usr/share/dict/words --json[/dim]
    """
    lines = _read(text)
    settings = dataclasses.replace(connection, session_timeout=connection.session_timeout or _SESSION_TIMEOUT)
    async with nullcontext() if _names_hosts(context) else EmbeddedZooKeeper() as server:
        account = await _run(settings if server is None else settings.at(server.hosts), lines)
    print_account(account, as_json=as_json)
    return Exit.OK if account.balanced else Exit.NOTHING


def _names_hosts(context: typer.Context) -> bool:
    """Whether --hosts is an argument: a variable may name servers that a demo should not touch."""
    source = context.get_parameter_source("hosts")
    return source is not None and source.name == "COMMANDLINE"


def _read(text: Path | None) -> list[str]:
    source = text or files("aiozkqueue.cli.demo").joinpath("constitution.txt")
    lines = source.read_bytes().decode(errors="replace").splitlines()
    if not lines:
        message = f"{text} has no lines"
        raise typer.BadParameter(message)
    return lines


async def _run(connection: Connection, lines: Sequence[str]) -> Account:
    account = Account(lines)
    run = f"demo-{secrets.token_hex(4)}"
    async with connection.open() as session:
        source, sink = session.queue(f"{run}-lines", Line), session.queue(f"{run}-results", Result)
        try:
            await _process(source, sink, account, connection)
        finally:
            with anyio.move_on_after(_DELETION, shield=True):
                for queue in (source, sink):
                    with suppress(NotFoundError):  # it was interrupted before the first put
                        await queue.admin.delete(force=True)
    return account


async def _process(source: zq.Queue[Line], sink: zq.Queue[Result], account: Account, connection: Connection) -> None:
    lines = account.lines
    await _send(lines, source)
    hold_at = min(_HOLD_AT, 1 + len(lines) // 100)
    names = {"lines": source.name, "results": sink.name}
    async with processes.started(_WORKERS, connection, **names, hold_at=hold_at) as workers:
        for worker in workers:
            await worker.reported("ready")
        start = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_kill_worker, workers, source, account)
            await _drain(sink, account, connection)
            account.seconds = time.monotonic() - start
            tasks.cancel_scope.cancel()
        for worker in workers[1:]:
            await worker.end()
    async with sink.consume(until_idle=0) as rest:
        async for delivery in rest:
            async with delivery:
                account.results.append(delivery.value)
    account.left = await source.size() + await sink.size()
    account.dead_letters = await source.dead_letters.size() + await sink.dead_letters.size()


async def _send(lines: Sequence[str], source: zq.Queue[Line]) -> None:
    with bars.progress("putting", len(lines)) as bar:
        for start in range(0, len(lines), _BATCH):
            batch = [Line(number=start + i, text=text) for i, text in enumerate(lines[start : start + _BATCH])]
            await source.put_many(batch)
            bar.advance(len(batch))


async def _kill_worker(workers: Sequence[processes.Worker], source: zq.Queue[Line], account: Account) -> None:
    victim, *survivors = workers
    # The victim begins alone; otherwise, a short text would be finished before its first delivery.
    victim.begin()
    await victim.reported("started")
    for worker in survivors:
        worker.begin()
    held = await victim.reported("holding")
    claims = await source.claimed()
    killed_at = time.monotonic()
    status = await victim.kill()
    account.victim = Victim(victim.name, victim.process.pid, int(held["number"]), claims, killed_at, status)


async def _drain(sink: zq.Queue[Result], account: Account, connection: Connection) -> None:
    until_idle = _IDLE_TIMEOUTS * (connection.session_timeout or _SESSION_TIMEOUT)
    out: set[int] = set()
    with bars.progress("processing", len(account.lines)) as bar:
        async with sink.consume(until_idle=until_idle) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    result = delivery.value
                account.results.append(result)
                out.add(result.number)
                bar.advance()
                if len(out) == len(account.lines):
                    return
