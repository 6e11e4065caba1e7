"""`aiozkqueue put`: messages from the command line, a file or stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

import typer
from anyio import to_thread

import aiozkqueue as zq
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.filters import parse_pairs, parse_tags
from aiozkqueue.cli.times import TIME, parse_duration, parse_moment
from aiozkqueue.wording import counted

# The number of bytes that are read and stored at a time.
_CHUNK: Final = 64 * 1024


@connected
@asks_queue
async def put(
    connection: Connection,
    queue: AskedQueue,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The payload (default: --file or stdin).")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read the payload from a file.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Put each line as a message.")] = False,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            "-p",
            help="-128 (most urgent) to 127. [dim]\\[default: 0; in kazoo 100][/dim]",
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar=TIME, help="Delay before delivery: 90, 90s, 15m, 2h, 1d."),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=parse_moment, metavar="WHEN", help="Delivery time, as 2030-01-31T08:00+01:00."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Messages of a group are delivered in turn.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="The search key, and the key of --unique.")
    ] = None,
    unique: Annotated[
        Literal["raise", "ignore"] | None,
        typer.Option(help="If the key or payload is queued: fail, or skip."),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar=TIME, help="The lifetime of the messages; inf: unlimited."),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG=VALUE", help="A tag that consumers filter by; repeatable."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=TEXT", help="A header of the message; repeatable."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(parser=parse_duration, metavar=TIME, help="How long to wait for capacity in a full queue."),
    ] = 0,
    as_json: AsJson = False,
) -> Exit:
    """Put messages into a queue and print their ids.

    Examples:
    [dim]$ aiozkqueue put orders '{"id": 1}'
    $ aiozkqueue put orders '{"id": 2}' --priority -5 --header source=shop
    $ aiozkqueue put reminders 'call back' --delay 15m
    $ aiozkqueue put payments '{"id": 3}' --group 'customer 7'
    $ aiozkqueue put reminders 'pay up' --key invoice-7 --unique ignore --ttl 1h
    $ aiozkqueue put renders --tag performance_class=standard scene.blend
    $ tail -f orders.jsonl | aiozkqueue put orders --lines --timeout 60[/dim]
    """
    if body is not None and (file is not None or lines):
        message = "BODY cannot be combined with --file and --lines"
        raise typer.BadParameter(message)
    options = zq.PutOptions(
        delay=delay,
        at=at,
        key=key,
        unique=unique or False,
        ttl=ttl,
        tags=parse_tags(tags or ()),
        headers=parse_pairs("--header", headers or (), "NAME=TEXT") or None,
        group=group,
    )
    if priority is not None:
        options["priority"] = priority
    async with connection.open() as session:
        target = queue.of(session)
        await connection.note_new(session, queue)
        if body is not None:
            _print(queue.name, [await target.put(os.fsencode(body), timeout=timeout, **options)], as_json=as_json)
        elif file is not None:
            with file.open("rb") as source:
                putting = _Putting(target, timeout, options, as_json=as_json)
                await _put_from(source, putting, lines=lines, size=file.stat().st_size)
        else:
            if sys.stdin.isatty():
                what = "each line is a message" if lines else "the payload"
                output.note(f"reading from the terminal ({what}); press Ctrl-D at the start of a line to end it")
            putting = _Putting(target, timeout, options, as_json=as_json)
            await _put_from(sys.stdin.buffer, putting, lines=lines, size=None)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Putting:
    """The target queue of messages, and the options of their puts."""

    target: zq.Queue[bytes]
    timeout: float
    options: zq.PutOptions
    as_json: bool

    async def put(self, bodies: list[bytes]) -> int:
        """Put messages, print their ids, and return their number."""
        ids = await self.target.put_many(bodies, timeout=self.timeout, **self.options)
        _print(self.target.name, ids, as_json=self.as_json)
        return len(ids)


async def _put_from(source: BinaryIO, putting: _Putting, *, lines: bool, size: int | None) -> None:
    if not lines:
        body = await to_thread.run_sync(source.read)
        if not body and source is sys.stdin.buffer:
            cause = "nothing was typed" if source.isatty() else "stdin is empty"
            message = f"{cause}, so no message is put; to put an empty one, give '' as the BODY"
            raise typer.BadParameter(message)
        await putting.put([body])
        return
    stored = 0
    try:
        with bars.progress(f"put {putting.target.name}", size) as bar:
            async for batch in _lines(source):
                stored += await putting.put(batch)
                bar.advance(sum(map(len, batch)) + len(batch))
    except BaseException:
        if stored:
            output.note(f"{counted(stored, 'message')} had been stored before; stdout has the ids")
        raise


async def _lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield the lines that have arrived without waiting for more, so that lines of a slow source are put at once."""
    rest = b""
    while chunk := await to_thread.run_sync(os.read, source.fileno(), _CHUNK, abandon_on_cancel=True):
        *complete, rest = (rest + chunk).split(b"\n")
        if complete:
            yield complete
    if rest:
        yield [rest]


def _print(queue: str, ids: list[str], *, as_json: bool) -> None:
    for message_id in ids:
        if as_json:
            output.print_json({"id": message_id, "queue": queue})
        else:
            sys.stdout.write(f"{message_id}\n")
    sys.stdout.flush()
