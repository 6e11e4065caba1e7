"""`aiozkqueue bus`: the buses and their groups."""

from __future__ import annotations

from typing import Annotated

import typer

from aiozkqueue.admin import QueueStats
from aiozkqueue.bus import Buses
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the buses and the number of their groups.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue bus list[/dim]
    """
    async with connection.open() as session:
        known, found, unread = Buses(session), list[tuple[str, list[str | None]]](), output.Unread()
        for name in await known.list():
            with unread.kept():
                found.append((name, list(await known.queues(name))[1:]))
    if as_json:
        for name, joined in found:
            output.print_json({"bus": name, "groups": list(joined)})
    elif found:
        output.print_table(["bus", "groups"], [(name, ", ".join(map(str, joined))) for name, joined in found])
    unread.report()
    return output.status_of_list(found, f"there are no buses below {connection.root}")


@connected
async def groups(
    connection: Connection,
    bus: Annotated[str, typer.Argument(metavar="BUS", help="The name of the bus.")],
    as_json: AsJson = False,
) -> Exit:
    """List the events that wait for each group of a bus.

    Exit status 1: the bus does not exist.

    Example:
    [dim]$ aiozkqueue bus groups orders[/dim]
    """
    async with connection.open() as session:
        found, unread = list[tuple[str | None, QueueStats]](), output.Unread()
        for group, queue in (await Buses(session).queues(bus)).items():
            with unread.kept():
                found.append((group, await session.queue(queue).stats()))
    if as_json:
        for group, s in found:
            output.print_json(
                {
                    "group": group,
                    "queue": s.queue,
                    "size": s.size,
                    "waiting": s.waiting,
                    "in_flight": s.in_flight,
                    "delayed": s.delayed,
                    "dead_letters": s.dead_letters,
                    "consumers": s.consumers,
                }
            )
    else:
        output.print_table(
            ["group", "queue", "size", "waiting", "in flight", "delayed", "dead letters", "consumers"],
            [
                (group or "", s.queue, s.size, s.waiting, s.in_flight, s.delayed, s.dead_letters, s.consumers)
                for group, s in found
            ],
        )
    unread.report()
    return Exit.OK
