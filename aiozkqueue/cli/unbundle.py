"""`aiozkqueue unbundle`: store each message of a queue in a separate znode again."""

from __future__ import annotations

from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, QueueNames
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.wording import counted


@connected
async def command(connection: Connection, queues: QueueNames, as_json: AsJson = False) -> Exit:
    """Turn bundles off, and store each message in a separate znode.

    Bundles that consumers or unfinished Spark writes hold are left: run it again when they have finished. Until then,
    the queue requires programs that support bundles.

    Exit status 1: a queue does not exist, or some of its bundles are held.

    Example:
    [dim]$ aiozkqueue unbundle orders[/dim]
    """
    status = Exit.OK
    async with connection.open() as session:
        for name in queues:
            queue = session.queue(name)
            if not await queue.exists():
                await connection.note_absent(session, name)
                status = Exit.NOTHING
                continue
            with bars.waiting(f"unbundle {name}"):
                held = await queue.admin.unbundle()
            if as_json:
                output.print_json({"queue": name, "held_bundles": held})
            if held:
                bundles = counted(held, "bundle")
                output.note(f"queue {name!r}: consumers or Spark writes hold {bundles}; run this again when they end")
                status = Exit.NOTHING
            elif not as_json:
                output.note(f"queue {name!r} has no bundles")
    return status
