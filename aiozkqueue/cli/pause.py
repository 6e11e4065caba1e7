"""`aiozkqueue pause` and `resume`: whether messages of a queue are delivered."""

from __future__ import annotations

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, QueueNames
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.errors import NotFoundError


@connected
async def pause(connection: Connection, queues: QueueNames, as_json: AsJson = False) -> Exit:
    """Stop delivering messages of these queues until they are resumed.

    Messages in flight are finished, and puts continue.

    Exit status 1: a queue does not exist; the others are paused.

    Example:
    [dim]$ aiozkqueue pause orders invoices[/dim]
    """
    return await _set(connection, queues, paused=True, as_json=as_json)


@connected
async def resume(connection: Connection, queues: QueueNames, as_json: AsJson = False) -> Exit:
    """Deliver messages of these queues again.

    Exit status 1: a queue does not exist; the others are resumed.

    Example:
    [dim]$ aiozkqueue resume orders[/dim]
    """
    return await _set(connection, queues, paused=False, as_json=as_json)


async def _set(connection: Connection, queues: list[str], *, paused: bool, as_json: bool) -> Exit:
    status = Exit.OK
    async with connection.open() as session:
        for name in queues:
            try:
                await session.queue(name).configure(zq.QueueConfig(paused=paused))
            except NotFoundError as absent:
                output.note(str(absent))
                status = Exit.NOTHING
                continue
            if as_json:
                output.print_json({"queue": name, "paused": paused})
            else:
                output.note(f"queue {name!r} is {'paused' if paused else 'resumed'}")
    return status
