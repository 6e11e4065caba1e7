"""`aiozkqueue ledgers`: the messages that Spark holds or has put in part, and how to release or discard them."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, QueueName, Yes
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit


@connected
async def list_(connection: Connection, queue: QueueName, as_json: AsJson = False) -> Exit:
    """List the messages that each stream holds, and the incomplete batches of writers.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue ledgers list orders[/dim]
    """
    async with connection.open_queue(queue) as target:
        found, unfinished = await target.admin.ledgers(), await target.admin.unfinished()
    if as_json:
        for ledger in found:
            output.print_json(output.record_of(ledger))
        for writer in unfinished:
            output.print_json(output.record_of(writer))
    elif found:
        output.print_table(
            ["group", "batches", "messages", "client", "host", "pid", "changed"],
            [(o.group, o.batches, o.messages, o.client, o.host, o.pid, output.when(o.changed)) for o in found],
        )
    if unfinished and not as_json:
        output.print_table(
            ["writer", "name", "batch", "messages", "client", "changed"],
            [(o.writer, o.name, o.batch, o.messages, o.client, output.when(o.changed)) for o in unfinished],
        )
    return output.status_of_list(
        [*found, *unfinished], f"Spark holds no messages of queue {queue!r}, and no batch of a writer is incomplete"
    )


@connected
async def release(
    connection: Connection,
    queue: QueueName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group of the stream.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Release the messages that a stream holds, so that others can take them.

    A running stream fails at its next change. It continues from its checkpoint only with failOnDataLoss=false. Messages
    of an unfinished batch may be delivered again.

    Example:
    [dim]$ aiozkqueue ledgers release orders spark --yes[/dim]
    """
    output.confirm(f"Release all that the stream {group!r} holds of {queue!r}?", yes=yes)
    async with connection.open() as session:
        released = await session.queue(queue).admin.release_ledger(group)
    output.print_count("released", released, queue, as_json=as_json)
    return Exit.OK


@connected
async def discard(
    connection: Connection,
    queue: QueueName,
    writer: Annotated[str, typer.Argument(metavar="WRITER", help="The writer, as `ledgers list` shows it.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Delete the messages of an incomplete batch, which no consumer has seen.

    A query that still writes the batch fails, and starts the batch again after a restart.

    Example:
    [dim]$ aiozkqueue ledgers discard orders krdrqa6w4nlwk5k7b3wq7nyt2y5zcp4e --yes[/dim]
    """
    output.confirm(f"Remove all that the writer {writer!r} has put into {queue!r} for a batch?", yes=yes)
    async with connection.open() as session:
        removed = await session.queue(queue).admin.discard_unfinished(writer)
    output.print_count("removed", removed, queue, as_json=as_json)
    return Exit.OK
