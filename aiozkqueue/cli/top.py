"""`aiozkqueue top`: a live view of the queues' figures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import aiozkqueue as zq
from aiozkqueue.admin import QueueStats
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.durations import TIME, duration_from
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.output import Json
from aiozkqueue.cli.signals import draining
from aiozkqueue.queue.admin.similar import absence
from aiozkqueue.queue.internals import core_of
from aiozkqueue.zookeeper import State

#: Seconds after which the partial figures of one queue are shown.
_PATIENCE = 5.0
_COLUMNS = (
    "queue",
    "size",
    "waiting",
    "in flight",
    "delayed",
    "retrying",
    "in/s",
    "out/s",
    "oldest",
    "dead letters",
    "consumers",
)


@connected
async def top(
    connection: Connection,
    queues: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Names (default: all).")] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", parser=duration_from(0.1), metavar=TIME, help="The interval between two refreshes."
        ),
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Read twice, show the result and exit.")] = False,
    as_json: AsJson = False,
) -> Exit:
    """Show all queues live; Ctrl-C ends it.

    Rates include all producers and consumers, as ZooKeeper counts them. In a pipe, it prints one table and exits.
    Each refresh lists the queues, which costs the servers time for deep queues; name the queues you need.

    Examples:
    [dim]$ aiozkqueue top
    $ aiozkqueue top orders --once --json[/dim]
    """
    ends = asyncio.Event()
    once = once or not (as_json or sys.stdout.isatty())
    async with connection.open() as session:
        with draining(ends.set), ExitStack() as stack:
            live = None if as_json or once else stack.enter_context(Live(console=Console(), auto_refresh=False))
            before: Mapping[str, QueueStats | str] = {}
            looked = time.monotonic()
            while not ends.is_set():
                found = await _look(session, queues)
                now = time.monotonic()
                rows = [_row(name, one, before.get(name), now - looked) for name, one in found.items()]
                first, before, looked = not before, found, now
                if not (once and first and found):
                    if live is not None:
                        live.update(_table(rows), refresh=True)
                    elif not as_json:
                        Console().print(_table(rows))
                    else:
                        for row in rows:
                            output.print_json(row)
                    if once:
                        break
                with suppress(TimeoutError):
                    await asyncio.wait_for(ends.wait(), interval)
    return Exit.OK


async def _look(session: zq.QueueSession, queues: Sequence[str] | None) -> dict[str, QueueStats | str]:
    """Return the figures of each queue, or the reason why it cannot be read."""
    found: dict[str, QueueStats | str] = {}
    for name in queues or await session.queues():
        try:
            async with asyncio.timeout(2 * _PATIENCE):
                queue = session.queue(name)
                if queues and not await queue.exists():
                    found[name] = await absence(core_of(session), name)
                else:
                    found[name] = await queue.stats(budget=_PATIENCE)
        except (zq.AccessDeniedError, zq.PayloadError) as error:
            found[name] = str(error)
        except TimeoutError:
            if core_of(session).zookeeper.state is not State.CONNECTED:
                raise
            found[name] = f"queue {name!r} could not be read within {2 * _PATIENCE:g} s"
    return found


def _row(name: str, now: QueueStats | str, before: QueueStats | str | None, seconds: float) -> dict[str, Json]:
    if isinstance(now, str):
        return {"queue": name, "unreadable": now}
    if isinstance(before, str):
        before = None
    age = None if now.oldest is None else max(0.0, (datetime.now(UTC) - now.oldest).total_seconds())
    return {
        "queue": now.queue,
        "paused": now.paused,
        "size": now.size,
        "waiting": now.waiting,
        "in_flight": now.in_flight,
        "delayed": now.delayed,
        "retrying": now.retrying,
        "in_rate": None if before is None else round(max(0, now.put - before.put) / seconds, 1),
        "out_rate": None if before is None else round(max(0, now.removed - before.removed) / seconds, 1),
        "oldest_age": None if age is None else round(age, 1),
        "dead_letters": now.dead_letters,
        "consumers": now.consumers,
        "incomplete": list(now.incomplete),
    }


def _table(rows: Sequence[Mapping[str, Json]]) -> Table:
    table = Table(*_COLUMNS)
    for row in rows:
        if (why := row.get("unreadable")) is not None:
            table.add_row(Text(output.visible(str(row["queue"]))), Text(output.visible(str(why)), style="red"))
            continue
        name = f"{row['queue']} (paused)" if row["paused"] else str(row["queue"])
        if row["incomplete"]:
            name += " (in part)"
        age = row["oldest_age"]
        cells = [
            row["size"],
            row["waiting"],
            row["in_flight"],
            row["delayed"],
            row["retrying"],
            row["in_rate"],
            row["out_rate"],
            _age(age) if isinstance(age, float) else None,
            row["dead_letters"],
            row["consumers"],
        ]
        style = "red" if row["dead_letters"] else ""
        shown = (Text("" if cell is None else str(cell), justify="right", style=style) for cell in cells)
        table.add_row(Text(output.visible(name)), *shown)
    return table


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
