"""`aiozkqueue notifications`: notification queues, and their events as bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import CommandFailedError, Exit
from aiozkqueue.cli.times import parse_moment
from aiozkqueue.errors import NotFoundError
from aiozkqueue.schedule import Notification, NotificationQueue, Notifications

if TYPE_CHECKING:
    from aiozkqueue import QueueSession

_Service = Annotated[str, typer.Argument(metavar="SERVICE", help="The service of the notification queue.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the notification queue.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the entry.")]
_Event = Annotated[
    str, typer.Argument(metavar="EVENT", help="The payload, in the format that the queue's programs use.")
]
_Key1 = Annotated[str | None, typer.Option("--key1", metavar="TEXT", help="The first search key; needs the second.")]
_Key2 = Annotated[str | None, typer.Option("--key2", metavar="TEXT", help="The second search key.")]


@connected
async def list_(connection: Connection, as_json: AsJson = False) -> Exit:
    """List the notification queues and the number of their entries.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue notifications list[/dim]
    """
    async with connection.open() as session:
        known, rows, unread = Notifications(session), list[tuple[str, str, str, int, int]](), output.Unread()
        for service, name in await known.list():
            with suppress(NotFoundError), unread.kept():  # it has just been deleted
                made = await known.get(service, name, bytes)
                rows.append((service, name, made.queue.name, await made.queue.size(), await made.ready()))
    if as_json:
        for service, name, queue, size, ready in rows:
            output.print_json({"service": service, "name": name, "queue": queue, "size": size, "ready": ready})
    elif rows:
        output.print_table(["service", "name", "queue", "size", "ready"], rows)
    unread.report()
    return output.status_of_list(rows, f"there are no notification queues below {connection.root}")


@connected
async def ready(
    connection: Connection,
    service: _Service,
    name: _Name,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=parse_moment, metavar="WHEN", help="An ISO 8601 time with a zone (default: now)."),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Count the entries that are due at a date and not in flight.

    Example:
    [dim]$ aiozkqueue notifications ready billing reminders --at 2026-04-01T00:00Z[/dim]
    """
    async with connection.open() as session:
        queue = await _existing(session, service, name)
        count = await queue.ready(at)
    output.print_count("ready", count, queue.queue.name, as_json=as_json)
    return Exit.OK


@connected
async def schedule(
    connection: Connection,
    service: _Service,
    name: _Name,
    event: _Event,
    at: Annotated[
        datetime, typer.Option("--at", parser=parse_moment, metavar="WHEN", help="An ISO 8601 time with a zone.")
    ],
    key1: _Key1 = None,
    key2: _Key2 = None,
    token: Annotated[str | None, typer.Option("--token", metavar="TEXT", help="The user token.")] = None,
    as_json: AsJson = False,
) -> Exit:
    """Schedule an event for a date and print its id.

    The queue must exist.

    Example:
    [dim]$ aiozkqueue notifications schedule billing reminders '{"account": 7}' --at 2026-04-01T00:00Z --key2 t1[/dim]
    """
    async with connection.open() as session:
        queue = await _existing(session, service, name)
        notification_id = await queue.schedule(
            os.fsencode(event), at, search_key1=key1, search_key2=key2, user_token=token
        )
    if as_json:
        output.print_json({"id": notification_id, "queue": queue.queue.name})
    else:
        typer.echo(notification_id)
    return Exit.OK


@connected
async def find(
    connection: Connection,
    service: _Service,
    name: _Name,
    key1: _Key1 = None,
    key2: _Key2 = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            "--until", parser=parse_moment, metavar="WHEN", help="Only entries due by this ISO 8601 time with a zone."
        ),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """List the entries of a queue, all or by their search keys, the earliest first.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue notifications find billing reminders --key2 tenant-1[/dim]
    """
    async with connection.open() as session:
        queue = await _existing(session, service, name)
        found = await queue.find(key2, search_key1=key1, until=until)
    if as_json:
        for notification in found:
            output.print_json(_record(notification))
    elif found:
        output.print_table(
            ["id", "date", "status", "attempts", "key1", "key2", "token", "event"],
            [
                (
                    notification.id,
                    output.when(notification.effective_date),
                    notification.status,
                    notification.attempt,
                    notification.search_key1 or "",
                    notification.search_key2 or "",
                    notification.user_token or "",
                    output.preview(notification.event),
                )
                for notification in found
            ],
        )
    which = "no entries" if key1 is None and key2 is None and until is None else "no matching entries"
    return output.status_of_list(found, f"notification queue {name!r} of service {service!r} has {which}")


@connected
async def update(
    connection: Connection,
    service: _Service,
    name: _Name,
    id: _Id,
    event: _Event,
    key1: _Key1 = None,
    key2: _Key2 = None,
    as_json: AsJson = False,
) -> Exit:
    """Replace the event of an entry that is waiting.

    Exit status 1: the entry is in flight, does not exist or has other keys.

    Example:
    [dim]$ aiozkqueue notifications update billing reminders gx8YSxIzUYf8000002 '{"account": 8}'[/dim]
    """
    async with connection.open() as session:
        queue = await _existing(session, service, name)
        done = await queue.update(id, os.fsencode(event), search_key1=key1, search_key2=key2)
    return _report(
        id, "updated", done=done, as_json=as_json, otherwise="it is being handled, not there, or has other keys"
    )


@connected
async def remove(connection: Connection, service: _Service, name: _Name, id: _Id, as_json: AsJson = False) -> Exit:
    """Remove an entry that is waiting.

    Exit status 1: the entry is in flight or does not exist.

    Example:
    [dim]$ aiozkqueue notifications remove billing reminders gx8YSxIzUYf8000002[/dim]
    """
    async with connection.open() as session:
        queue = await _existing(session, service, name)
        done = await queue.remove(id)
    return _report(id, "removed", done=done, as_json=as_json)


def _report(
    id: str, what: str, *, done: bool, as_json: bool, otherwise: str = "it is being handled, or not there"
) -> Exit:
    if as_json:
        output.print_json({"id": id, what: done})
    else:
        output.note(f"{id}: {what if done else otherwise}")
    return Exit.OK if done else Exit.NOTHING


def _record(notification: Notification[bytes]) -> dict[str, output.Json]:
    return {
        "id": notification.id,
        "date": notification.effective_date.isoformat(),
        "status": notification.status,
        "attempt": notification.attempt,
        "search_key1": notification.search_key1,
        "search_key2": notification.search_key2,
        "user_token": notification.user_token,
        "event": notification.event.decode(errors="backslashreplace"),
    }


async def _existing(session: QueueSession, service: str, name: str) -> NotificationQueue[bytes]:
    """Return a notification queue. Raises: CommandFailedError: it does not exist, and no command creates it."""
    try:
        return await Notifications(session).get(service, name, bytes)
    except NotFoundError as error:
        message = (
            f"service {service!r} has no notification queue {name!r}; create it in a program with "
            "Notifications(session).create(...)"
        )
        raise CommandFailedError(message) from error
