"""`aiozkqueue bus` and `aiozkqueue notifications`: the subscribers of a bus, and the entries of notification queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aiozkqueue.bus import Buses
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.cli.put import parse_moment
from aiozkqueue.errors import NotFoundError
from aiozkqueue.schedule import NotificationQueue, Notifications

if TYPE_CHECKING:
    from aiozkqueue import QueueSession


async def existing(session: QueueSession, service: str, name: str) -> NotificationQueue[bytes]:
    """Return a notification queue. Raises: CommandFailedError: it does not exist, and no command creates it."""
    try:
        return await Notifications(session).get(service, name, bytes)
    except NotFoundError as error:
        message = (
            f"service {service!r} has no notification queue {name!r}; create it in a program with "
            "Notifications(session).create(...)"
        )
        raise CommandFailedError(message) from error


@connected
async def buses(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the buses and the number of their groups.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue bus list[/dim]
    """
    async with connection.open() as session:
        known = Buses(session)
        found = [(name, list(await known.queues(name))[1:]) for name in await known.list()]
    if as_json:
        for name, joined in found:
            output.print_json({"bus": name, "groups": list(joined)})
    elif found:
        output.print_table(["bus", "groups"], [(name, ", ".join(map(str, joined))) for name, joined in found])
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
        queues = await Buses(session).queues(bus)
        found = [(group, await session.queue(queue).stats()) for group, queue in queues.items()]
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
    return Exit.OK


@connected
async def notifications(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the notification queues and the number of their entries.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue notifications list[/dim]
    """
    async with connection.open() as session:
        known = Notifications(session)
        rows = [
            (service, name, made.queue.name, await made.queue.size(), await made.ready())
            for service, name in await known.list()
            for made in [await known.get(service, name, bytes)]
        ]
    if as_json:
        for service, name, queue, size, ready in rows:
            output.print_json({"service": service, "name": name, "queue": queue, "size": size, "ready": ready})
    elif rows:
        output.print_table(["service", "name", "queue", "size", "ready"], rows)
    return output.status_of_list(rows, f"there are no notification queues below {connection.root}")


@connected
async def ready(
    connection: Connection,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service of the notification queue.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the notification queue.")],
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="An ISO 8601 time with a zone (default: now).")
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Count the entries that are due at a date and not in flight.

    Example:
    [dim]$ aiozkqueue notifications ready billing reminders --at 2026-04-01T00:00Z[/dim]
    """
    async with connection.open() as session:
        queue = await existing(session, service, name)
        count = await queue.ready(parse_moment(at))
    output.print_count("ready", count, queue.queue.name, as_json=as_json)
    return Exit.OK
