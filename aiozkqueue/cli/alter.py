"""`aiozkqueue cancel` and `aiozkqueue update`: remove or replace waiting messages."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import aiozkqueue as zq
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson, QueueName
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit

_ByKey = Annotated[bool, typer.Option("--key", "-k", help="ID is a key: apply to all waiting messages with this key.")]


@connected
async def cancel(
    connection: Connection,
    queue: QueueName,
    message: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    by_key: _ByKey = False,
    running: Annotated[
        bool, typer.Option("--running", help="Also remove messages in flight, and cancel their handlers.")
    ] = False,
    as_json: AsJson = False,
) -> Exit:
    """Remove a message, by default only if it is not in flight.

    Exit status 1: the message is in flight or does not exist.

    Examples:
    [dim]$ aiozkqueue cancel orders gx8YSxIzUYf8000002
    $ aiozkqueue cancel orders gx8YSxIzUYf8000002 --running
    $ aiozkqueue cancel reminders --key invoice-7[/dim]
    """
    async with connection.open_queue(queue) as target:
        outcome = await (
            target.cancel(key=message, running=running) if by_key else target.cancel(id=message, running=running)
        )
    if outcome is zq.Alteration.HELD and not running:
        output.note("a consumer holds it; --running also removes a message in flight, and cancels its handler")
    return _report(queue, message, "cancelled", outcome, by_key=by_key, as_json=as_json)


@connected
async def update(
    connection: Connection,
    queue: QueueName,
    message: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="The new payload.")],
    by_key: _ByKey = False,
    as_json: AsJson = False,
) -> Exit:
    """Replace the payload of a message that is not in flight.

    Exit status 1: the message is in flight or does not exist.

    Example:
    [dim]$ aiozkqueue update orders gx8YSxIzUYf8000002 '{"id": 2}'[/dim]
    """
    async with connection.open_queue(queue) as target:
        data = os.fsencode(body)
        outcome = await (target.update(data, key=message) if by_key else target.update(data, id=message))
    return _report(queue, message, "updated", outcome, by_key=by_key, as_json=as_json)


def _report(queue: str, message: str, done: str, outcome: zq.Alteration, *, by_key: bool, as_json: bool) -> Exit:
    if as_json:
        output.print_json({"queue": queue, "key" if by_key else "id": message, "outcome": outcome.value})
        return Exit.OK if outcome else Exit.NOTHING
    named = f"message with key {message!r}" if by_key else f"message {message}"
    if outcome is zq.Alteration.NOT_FOUND:
        output.note(f"no {named} is in queue {queue!r}" if by_key else f"{named} is not in queue {queue!r}")
    else:
        output.note(f"{named} of queue {queue!r}: {done if outcome else outcome.value}")
    return Exit.OK if outcome else Exit.NOTHING
