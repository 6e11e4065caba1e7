"""`aiozkqueue ledgers`: what streams hold, and how that of a stream that is gone for good is given back."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.output import AsJson, Yes

_Queue = Annotated[str, typer.Argument(metavar="QUEUE")]


@connected
async def list_(connection: Connection, queue: _Queue, as_json: AsJson = False) -> Exit:
    """List the ledgers of a queue: whose stream holds how many messages. Fails with 1 when there are none.

    [dim]aiozkqueue ledgers list orders[/dim]
    """
    async with connection.open() as session:
        found = await session.queue(queue).ledgers()
    if as_json:
        for one in found:
            output.print_json(
                {
                    "group": one.group,
                    "batches": one.batches,
                    "messages": one.messages,
                    "client": one.client,
                    "host": one.host,
                    "pid": one.pid,
                    "changed": one.changed.isoformat(),
                }
            )
    elif found:
        output.print_table(
            ["group", "batches", "messages", "client", "host", "pid", "changed"],
            [(o.group, o.batches, o.messages, o.client, o.host, o.pid, output.when(o.changed)) for o in found],
        )
    return Exit.OK if found else Exit.NOTHING


@connected
async def release(
    connection: Connection,
    queue: _Queue,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Give back what a stream holds, for others to take. A stream that still runs fails at its next change.

    Its checkpoint is of no use any more: what was in a batch that was not done may come again.

    [dim]aiozkqueue ledgers release orders spark --yes[/dim]
    """
    output.confirm(f"Release all that the stream {group!r} holds of {queue!r}?", yes=yes)
    async with connection.open() as session:
        released = await session.queue(queue).release_ledger(group)
    output.print_count("released", released, queue, as_json=as_json)
    return Exit.OK
