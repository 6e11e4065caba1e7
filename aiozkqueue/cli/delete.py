"""`aiozkqueue delete`: a queue and all its data."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, QueueName, Yes
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.errors import QueueInUseError
from aiozkqueue.wording import counted


@connected
async def delete(
    connection: Connection,
    queue: QueueName,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if it has messages, dead letters, consumers or streams.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Exit:
    """Delete a queue with all its data.

    A later put creates a new queue of this name. A queue with messages, dead letters, consumers or Spark streams is
    deleted only with --force.

    Exit status 1: the queue does not exist. Exit status 5: it is in use, and nothing was deleted.

    Examples:
    [dim]$ aiozkqueue delete orders-old --yes
    $ aiozkqueue delete orders --force[/dim]
    """
    async with connection.open_queue(queue) as target:
        if not yes:
            lost = f" and {counted(await target.size(), 'message')}" if force else ""
            output.confirm(f"Delete queue {queue}{lost}?", yes=yes)
        try:
            with bars.waiting(f"delete {queue}"):
                await target.admin.delete(force=force)
        except QueueInUseError as error:
            output.note(
                f"queue {queue!r} has {error.uses}; nothing was deleted. Empty it first with "
                f"`aiozkqueue purge {queue}` and `aiozkqueue dlq purge {queue}`, or use --force"
            )
            return Exit.CONFLICT
    if as_json:
        output.print_json({"queue": queue, "deleted": True})
    else:
        output.note(f"deleted queue {queue!r}")
    return Exit.OK
