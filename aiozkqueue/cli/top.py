"""`aiozkqueue top`: a live view of the queues' figures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

import aiozkqueue as zq
from aiozkqueue.admin import QueueStats
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, SomeQueues
from aiozkqueue.cli.connection import DEFAULT_HOSTS, Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.keyboard import keys
from aiozkqueue.cli.output import Json
from aiozkqueue.cli.signals import drain_on_signals
from aiozkqueue.cli.times import TIME, duration_from
from aiozkqueue.cli.top_screen import Figures, Screen
from aiozkqueue.operations.similar import absence
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import State

#: Seconds after which the partial figures of one queue are shown.
_READ_TIMEOUT = 5.0


@connected
async def top(
    connection: Connection,
    queues: SomeQueues = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", parser=duration_from(0.1), metavar=TIME, help="The interval between two refreshes."
        ),
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Read twice, show the result and exit.")] = False,
    as_json: AsJson = False,
) -> Exit:
    """Show all queues live; q or Ctrl-C ends it.

    Keys: s sorts by another column, / filters by name, p freezes the figures. Rates include all producers and
    consumers, as ZooKeeper counts them. In a pipe, it prints one table and exits. Each refresh
    lists the queues, which costs the servers time for deep queues; name the queues you need.

    Exit status 1: with --once or in a pipe, there are no queues, or a named one does not exist or cannot be read.

    Examples:
    [dim]$ aiozkqueue top
    $ aiozkqueue top orders --once --json[/dim]
    """
    ends = asyncio.Event()
    rows: list[dict[str, Json]] | None = None
    async with connection.open() as session:
        figures = _Figures(session, queues)
        drain_on_signals(ends.set)
        if as_json and not once:
            while not ends.is_set():
                _print(await figures.read(), as_json=True)
                await _wait(ends, interval)
        elif once or not sys.stdout.isatty():
            if await figures.read():
                await _wait(ends, interval)
            rows = await figures.read()
        else:
            servers = connection.hosts or DEFAULT_HOSTS
            header = f"aiozkqueue top   {servers}   {connection.root}   every {interval:g} s"
            await _live(figures, header, interval, ends)
    if rows is None:
        return Exit.OK
    if not rows:
        return output.status_of_list(rows, f"there are no queues below {connection.root}")
    _print(rows, as_json=as_json)  # without the session: a table of thousands of queues takes seconds
    return Exit.NOTHING if queues and any("unreadable" in row for row in rows) else Exit.OK


def _print(rows: Sequence[Mapping[str, Json]], *, as_json: bool) -> None:
    if not as_json:
        output.console_of_stdout().print(Figures(rows))
        return
    for row in rows:
        output.print_json(row)


async def _live(figures: _Figures, header: str, interval: float, ends: asyncio.Event) -> None:
    """Refresh the screen at each interval, and after each key."""
    pressed = asyncio.Event()
    screen = Screen(header, ends.set, pressed.set)
    with Live(console=Console(), auto_refresh=False) as live, keys(screen.press):
        while not ends.is_set():
            if not screen.held:
                screen.show(await figures.read(), datetime.now().astimezone().strftime("%H:%M:%S"))
            refresh = time.monotonic() + interval
            while not ends.is_set():
                live.update(screen.render(), refresh=True)
                if not await _wait(pressed, max(0.0, refresh - time.monotonic())):
                    break
                pressed.clear()


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, up to this time; return whether it has happened."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


class _Figures:
    """Reads the figures of queues, with the rates since the last time."""

    def __init__(self, session: zq.QueueSession, queues: Sequence[str] | None) -> None:
        self._session = session
        self._queues = queues
        self._before: Mapping[str, QueueStats | str] = {}
        self._read_at = time.monotonic()

    async def read(self) -> list[dict[str, Json]]:
        found = await _read_stats(self._session, self._queues)
        now = time.monotonic()
        rows = [_row(name, stats, self._before.get(name), now - self._read_at) for name, stats in found.items()]
        self._before, self._read_at = found, now
        return rows


async def _read_stats(session: zq.QueueSession, queues: Sequence[str] | None) -> dict[str, QueueStats | str]:
    """Return the figures of each queue, or the reason why it cannot be read."""
    found: dict[str, QueueStats | str] = {}
    for name in queues or await session.queues():
        try:
            async with asyncio.timeout(2 * _READ_TIMEOUT):
                queue = session.queue(name)
                if queues and not await queue.exists():
                    found[name] = await absence(core_of(session), name)
                    continue
                figures = await queue.stats(budget=_READ_TIMEOUT)
                if queues or figures.size or await queue.exists():  # otherwise it was deleted since it was listed
                    found[name] = figures
        except (zq.AccessDeniedError, zq.PayloadError) as error:
            found[name] = str(error)
        except TimeoutError:
            if core_of(session).zookeeper.state is not State.CONNECTED:
                raise
            found[name] = f"queue {name!r} could not be read within {2 * _READ_TIMEOUT:g} s"
    return found


def _row(name: str, now: QueueStats | str, before: QueueStats | str | None, seconds: float) -> dict[str, Json]:
    if isinstance(now, str):
        return {"queue": name, "unreadable": now}
    if isinstance(before, str):
        before = None
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
        "oldest_age": None if now.oldest_age is None else round(now.oldest_age, 1),
        "dead_letters": now.dead_letters,
        "consumers": now.consumers,
        "incomplete": [*now.incomplete, *(figure for figure in now.unreadable if figure not in now.incomplete)],
    }
