"""`aiozkqueue state`, `history`, `consumers` and `clean`: records of messages and of their consumers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

import aiozkqueue as zq
from aiozkqueue.admin import Process
from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson, LocalMoment, QueueName, SomeQueues
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.cli.times import in_utc
from aiozkqueue.operations.story import name_process
from aiozkqueue.session.internals import clean_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.admin import Cleaned

#: The node of a session that is opened for an operator. It puts no messages, so none of them is its own.
_OPERATOR: Final = "/operator"


@connected
@asks_queue
async def state(
    connection: Connection,
    queue: AskedQueue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    as_json: AsJson = False,
) -> Exit:
    """Show the state of a message.

    Exit status 1: nothing is known about the message.

    Example:
    [dim]$ aiozkqueue state orders 3FqzK1TXnNzR0000Ab[/dim]
    """
    async with connection.open_queue(queue) as target:
        found = await target.state(message_id)
    record = output.record_of(found)
    if as_json:
        output.print_json(record)
    else:
        shown = record | {"put_by": _text(found.put_by), "claimed_by": _text(found.claimed_by)}
        rows = [(name, value) for name, value in shown.items() if value not in (None, "")]
        output.print_table(["what", "value"], [(name, str(value)) for name, value in rows])
    return Exit.NOTHING if found.status is zq.Status.UNKNOWN else Exit.OK


@connected
@asks_queue
async def history(
    connection: Connection,
    queue: AskedQueue,
    since: LocalMoment = None,
    until: LocalMoment = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of records.")] = 100,
    as_json: AsJson = False,
) -> Exit:
    """Show ended messages, the newest first.

    Exit status 1: there are none.

    A queue keeps a history if it is configured to: [dim]aiozkqueue configure orders --history 7d[/dim]

    Example:
    [dim]$ aiozkqueue history orders --since 2026-03-01 --json | jq -r .outcome[/dim]
    """
    async with connection.open_queue(queue) as target:
        history_records = target.history(since=in_utc(since), until=in_utc(until), limit=limit, newest_first=True)
        records = [record async for record in history_records]
        if not records:
            await note_nothing_ended(target, queue)
            return Exit.NOTHING
    if as_json:
        for record in records:
            output.print_json(
                {
                    "id": record.id,
                    "outcome": record.outcome.value,
                    "put_at": _iso(record.put_at),
                    "claimed_at": _iso(record.claimed_at),
                    "ended_at": _iso(record.ended_at),
                    "attempts": record.attempts,
                    "client": record.client,
                    "host": record.host,
                    "pid": record.pid,
                    "name": record.name,
                    "key": record.key,
                    "group": record.group,
                    "reason": record.reason,
                }
            )
    else:
        output.print_table(
            ["id", "outcome", "put", "ended", "attempts", "by", "reason"],
            [
                (
                    record.id,
                    record.outcome.value,
                    output.when(record.put_at),
                    output.when(record.ended_at),
                    record.attempts,
                    f"{record.name} {record.host}:{record.pid}".lstrip(),
                    output.shortened(record.reason),
                )
                for record in records
            ],
        )
    return Exit.OK


async def note_nothing_ended(target: zq.Queue[bytes], queue: AskedQueue) -> None:
    """Print why there are no records. Raises: as `Queue.configuration`."""
    if queue.program is not None:
        output.note(f"queue {queue.name!r}: no message ended in this time, or the queue keeps no history")
    elif (await target.configuration()).history is None:
        output.note(
            f"queue {queue.name!r} keeps no history; `aiozkqueue configure {queue.name} --history 7d` keeps records of "
            "the messages that end from now on"
        )
    else:
        output.note(f"queue {queue.name!r}: no message ended in this time")


@connected
@asks_queue
async def consumers(connection: Connection, queue: AskedQueue, as_json: AsJson = False) -> Exit:
    """Show the consumers of a queue and the messages they hold.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue consumers orders[/dim]
    """
    async with connection.open_queue(queue) as target:
        found = await target.admin.consumers()
    if as_json:
        for consumer in found:
            output.print_json(output.record_of(consumer))
    elif found:
        named = any(consumer.name for consumer in found)
        output.print_table(
            ["client", *(["name"] if named else []), "host", "pid", "since", "holds", "messages"],
            [
                (
                    consumer.client,
                    *([consumer.name] if named else []),
                    consumer.host,
                    consumer.pid,
                    output.when(consumer.since),
                    len(consumer.messages),
                    output.shortened(" ".join(consumer.messages)),
                )
                for consumer in found
            ],
        )
    return output.status_of_list(found, f"queue {queue.name!r} has no consumers")


@connected
async def clean(
    connection: Connection,
    queues: SomeQueues = None,
    as_json: AsJson = False,
) -> Exit:
    """Clean up now instead of waiting for the sessions to do it.

    Removes ended delays and leases, attempt records without a message, and history past its lifetime. Without a queue
    name, it also removes commit slots of programs that ended at least a day ago, and the remains of deleted queues.

    Exit status 1: a named queue does not exist.

    Example:
    [dim]$ aiozkqueue clean orders[/dim]
    """
    async with connection.open() as session:
        for queue in queues or ():
            await connection.existing(session, queue)
        with bars.waiting("cleaning up"):
            cleaned, failures = await clean_readable(session.admin, queues or ())
    if as_json:
        for cleanup in cleaned:
            output.print_json(output.record_of(cleanup))
    elif cleaned:
        _print_cleaned(cleaned)
    output.Unread(failures).report()
    return Exit.OK


def _print_cleaned(cleaned: Sequence[Cleaned]) -> None:
    """Print a table for which 80 columns suffice; rare counts have a column only if they are not 0."""
    columns: dict[str, Callable[[Cleaned], object]] = {
        "queue": lambda cleanup: "(clients)" if cleanup.queue is None else cleanup.queue,
        "ended claims": lambda cleanup: cleanup.claims,
        "attempts": lambda cleanup: cleanup.attempts,
        "history": lambda cleanup: cleanup.records,
        "hours": lambda cleanup: cleanup.hours,
        "clients": lambda cleanup: cleanup.clients,
    }
    rare: dict[str, Callable[[Cleaned], int]] = {
        "expired": lambda cleanup: cleanup.expired,
        "staged": lambda cleanup: cleanup.staged,
        "tags": lambda cleanup: cleanup.tags,
        "deleted queues": lambda cleanup: cleanup.deleted,
    }
    columns |= {name: count for name, count in rare.items() if any(map(count, cleaned))}
    columns["more to do"] = lambda cleanup: "yes" if cleanup.more else "no"
    output.print_table(list(columns), [[cell(cleanup) for cell in columns.values()] for cleanup in cleaned])


@connected
async def reap(
    connection: Connection,
    queue: QueueName,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=1000,
            help="The maximum number. [dim]\\[default: the queue's reap_limit, or 10][/dim]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Let all nodes take messages of a sticky queue that their own node has not taken in time.

    Includes the messages of this host. Running sessions do the same automatically for messages of other nodes.

    Exit status 1: there was nothing to release.

    Example:
    [dim]$ aiozkqueue reap invoices --limit 100[/dim]
    """
    async with connection.open_queue(queue, node=_OPERATOR) as target:
        reaped = await target.admin.reap(limit=limit)
    output.print_count("reaped", reaped, queue, as_json=as_json)
    return Exit.OK if reaped else Exit.NOTHING


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _text(process: Process | None) -> str | None:
    return None if process is None else name_process(process, "")
