"""`aiozkqueue dlq`: the dead letters of a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, Yes
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit

_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids (default: all).")]


@connected
@asks_queue
async def list_(
    connection: Connection,
    queue: AskedQueue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number.")] = 10,
    as_json: AsJson = False,
) -> Exit:
    """List dead letters and the reason for each.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue dlq list orders --limit 100[/dim]
    """
    async with connection.look_at(queue) as target:
        letters = await target.dead_letters.peek(limit)
    if as_json:
        for letter in letters:
            record = output.message_record(letter)
            output.print_json({**record, "attempt": letter.attempts, "reason": letter.reason})
    elif letters:
        output.print_table(
            ["id", "attempts", "enqueued", "reason", "payload"],
            [(d.id, d.attempts, output.when(d.enqueued_at), d.reason, output.preview(d.body)) for d in letters],
        )
    return Exit.OK if letters else Exit.NOTHING


@connected
@asks_queue
async def redrive(
    connection: Connection,
    queue: AskedQueue,
    ids: _Ids = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="The maximum number.")] = None,
    as_json: AsJson = False,
) -> Exit:
    """Put dead letters back into their queue, starting again at attempt 1.

    Exit status 1: there were none.

    Example:
    [dim]$ aiozkqueue dlq redrive orders --limit 1[/dim]
    """
    async with connection.look_at(queue) as target:
        moved = await target.dead_letters.redrive(ids or None, limit=limit)
    output.print_count("redriven", moved, queue.name, as_json=as_json)
    return Exit.OK if moved else Exit.NOTHING


@connected
@asks_queue
async def purge(
    connection: Connection,
    queue: AskedQueue,
    ids: _Ids = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Delete dead letters permanently.

    Example:
    [dim]$ aiozkqueue dlq purge orders --yes[/dim]
    """
    async with connection.look_at(queue) as target:
        letters = target.dead_letters
        if not yes:
            count = len(ids) if ids else await letters.size()
            output.confirm(f"Delete {count} dead letters of {queue.name}?", yes=yes)
        purged = await letters.purge(ids or None)
    output.print_count("purged", purged, queue.name, as_json=as_json)
    return Exit.OK
