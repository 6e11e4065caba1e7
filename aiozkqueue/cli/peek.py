"""`aiozkqueue peek`: the messages of a queue, with their status and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer

from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.filters import parse_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import aiozkqueue as zq

Status = Literal["waiting", "in flight", "retrying", "scheduled"]
#: Delayed messages are retrying or scheduled.
WantedStatus = Literal[Status, "delayed"]

#: The number of the oldest messages that filters examine.
EXAMINED: Final = 1_000


@connected
@asks_queue
async def peek(
    connection: Connection,
    queue: AskedQueue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of messages.")] = 10,
    status: Annotated[
        WantedStatus | None,
        typer.Option(
            metavar="STATUS",
            help="Only messages that are waiting, in flight, retrying, scheduled, or delayed: retrying or scheduled.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Only messages with this key.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only messages of this group.")] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG=VALUE", help="Only messages with this tag; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Show the oldest messages without taking them.

    Filters examine the 1,000 oldest messages. Exit status 1: no message is shown.

    Examples:
    [dim]$ aiozkqueue peek orders --json | jq -r .body
    $ aiozkqueue peek orders --status retrying --group 'customer 7'[/dim]
    """
    wanted = {"key": key, "group": group}
    filters = {name: value for name, value in wanted.items() if value is not None}
    accepted = _accepted(status)
    with_tags = parse_tags(tags or ()) or {}
    filtered = bool(filters or with_tags or status)
    async with connection.open_queue(queue) as target:
        messages = await target.peek(max(limit, EXAMINED) if filtered else limit)
        held = {message for consumer in await target.admin.consumers() for message in consumer.messages}
    statuses = _statuses(messages, held)
    matching = [message for message in messages if _matches(message, filters, with_tags)]
    shown = [message for message in matching if statuses[message.id] in accepted][:limit]
    if as_json:
        _print_json(shown, statuses)
    elif shown:
        _print_table(shown, statuses)
    if filtered and len(messages) >= EXAMINED:
        output.note(f"the filters examined only the {EXAMINED} oldest messages of queue {queue.name!r}")
    which = "no matching messages" if filtered else "no messages"
    return output.status_of_list(shown, f"queue {queue.name!r} has {which}")


def _accepted(status: WantedStatus | None) -> tuple[Status, ...]:
    """Return the statuses of the messages to show."""
    if status is None:
        return get_args(Status)
    return ("retrying", "scheduled") if status == "delayed" else (status,)


def _statuses(messages: Sequence[zq.Message[bytes]], held: Collection[str]) -> dict[str, Status]:
    """Return the status of each message by its id, given the ids of the messages that consumers hold."""
    statuses: dict[str, Status] = {}
    for message in messages:
        if message.id in held:
            statuses[message.id] = "in flight"
        elif message.due is None:
            statuses[message.id] = "waiting"
        else:
            statuses[message.id] = "retrying" if message.attempt else "scheduled"
    return statuses


def _matches(message: zq.Message[bytes], filters: Mapping[str, str], tags: Mapping[str, str | int]) -> bool:
    known = {"key": message.key, "group": message.group}
    return all(known[name] == value for name, value in filters.items()) and tags.items() <= message.tags.items()


#: The columns of a message's options; each is shown if a message has it.
_OPTIONS: Final[Mapping[str, Callable[[zq.Message[bytes]], object]]] = {
    "attempts": lambda message: message.attempt or "",
    "priority": lambda message: message.priority or "",
    "key": lambda message: message.key or "",
    "group": lambda message: message.group or "",
    "tags": lambda message: " ".join(f"{name}={value}" for name, value in message.tags.items()),
    "due": lambda message: output.when(message.due),
    "last error": lambda message: output.shortened(message.error or ""),
}


def _print_json(messages: Sequence[zq.Message[bytes]], statuses: Mapping[str, Status]) -> None:
    for message in messages:
        output.print_json(
            {
                **output.message_record(message),
                "status": statuses[message.id],
                "error": message.error,
                "due": message.due.isoformat() if message.due else None,
            }
        )


def _print_table(messages: Sequence[zq.Message[bytes]], statuses: Mapping[str, Status]) -> None:
    """Print a table; options have a column if a message has them."""
    options = {name: list(map(cell, messages)) for name, cell in _OPTIONS.items()}
    columns: dict[str, Sequence[object]] = {
        "id": [message.id for message in messages],
        "status": [statuses[message.id] for message in messages],
        "put": [output.when(message.enqueued_at) for message in messages],
        **{name: cells for name, cells in options.items() if any(cells)},
        "bytes": [len(message.body) for message in messages],
        "payload": [output.preview(message.body) for message in messages],
    }
    output.print_table(list(columns), zip(*columns.values(), strict=True), frame=False)
