"""`aiozkqueue pause` and `resume`: whether messages of a queue are handed out."""

from __future__ import annotations

from typing import Annotated

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit

Queues = Annotated[list[str], typer.Argument(metavar="QUEUE", help="The names of the queues.")]


@connected
async def pause(connection: Connection, queues: Queues) -> Exit:
    """Stop delivering messages of these queues until they are resumed.

    Messages in flight are finished, and puts continue.

    Example:
    [dim]$ aiozkqueue pause orders invoices[/dim]
    """
    return await _set(connection, queues, paused=True)


@connected
async def resume(connection: Connection, queues: Queues) -> Exit:
    """Deliver messages of these queues again.

    Example:
    [dim]$ aiozkqueue resume orders[/dim]
    """
    return await _set(connection, queues, paused=False)


async def _set(connection: Connection, queues: list[str], *, paused: bool) -> Exit:
    async with connection.open() as session:
        for name in queues:
            queue = session.queue(name)
            new = "" if await queue.exists() else "; it is new"
            await connection.note_new(session, name)
            await queue.configure(zq.QueueConfig(paused=paused))
            output.note(f"queue {name!r} is {'paused' if paused else 'resumed'}{new}")
    return Exit.OK
