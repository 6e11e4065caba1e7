"""`aiozkqueue move` and `aiozkqueue moves`: move messages to another queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from aiozkqueue.cli import bars, output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue
from aiozkqueue.cli.between import asks_both_queues
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.operations.moves import FAILED
from aiozkqueue.operations.moves import log as failures
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    import logging

    from aiozkqueue import QueueSession
    from aiozkqueue.admin import MoveStatus

POLL = 0.2
"""Seconds between two reads of a move's progress."""
UNATTENDED = 3.0
"""Seconds without a session that works on a move, after which its end is not awaited any longer."""


@connected
@asks_both_queues
async def move(connection: Connection, source: AskedQueue, target: AskedQueue, as_json: AsJson = False) -> Exit:
    """Move the messages of a queue to another queue.

    If it is interrupted or killed, [bold]aiozkqueue moves --resume[/bold] continues the move. If the target's format
    cannot store an attribute of a message, nothing is moved.

    Exit status 1: the queue FROM does not exist.

    Examples:
    [dim]$ aiozkqueue move orders orders-old
    $ aiozkqueue move --from-curator /app/orders --from-lock-path /app/orders-locks orders[/dim]
    """
    failures.addFilter(_is_not_printed)
    async with connection.open() as session:
        ends = [queue.name if queue.program is None else queue.of(session) for queue in (source, target)]
        session.admin.moves.check(*ends)
        total = await (await connection.existing(session, source)).size()
        reference = await session.admin.moves.start(*ends)
        status = await _watched(session, reference, total)
    if as_json:
        output.print_json(_record(status))
    else:
        output.note(f"moved {counted(status.moved, 'message')} from {source.name} to {target.name}")
    if status.error:
        output.note(status.error)
    if status.state == "running":
        output.note(f"move {reference} has not ended; aiozkqueue moves --resume or aiozkqueue serve continues it")
    return Exit.OK if status.state == "done" else Exit.NOTHING


@connected
async def moves(
    connection: Connection,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the unfinished moves that no session works on, and wait until they end."
        ),
    ] = False,
    as_json: AsJson = False,
) -> Exit:
    """List the moves of the last week and their progress.

    Exit status 1: there are none.

    Example:
    [dim]$ aiozkqueue moves --json | jq -r 'select(.state == "running") | .reference'[/dim]
    """
    failures.addFilter(_is_not_printed)
    async with connection.open() as session:
        if resume:
            await session.admin.moves.resume()
            for status in await session.admin.moves.all():
                if status.state == "running":
                    # The path of another program's queue does not show its layout.
                    theirs = status.source.startswith("/")
                    total = 0 if theirs else await session.queue(status.source).size()
                    await _watched(session, status.reference, total)
        found = await session.admin.moves.all()
    if as_json:
        for status in found:
            output.print_json(_record(status))
    elif found:
        output.print_table(
            ["reference", "from", "to", "state", "moved", "started", "ended", "error"],
            [_row(progress) for progress in found],
        )
        for status in found:
            if status.unattended:
                output.note(
                    f"no session works on move {status.reference}; aiozkqueue moves --resume or a running "
                    "aiozkqueue serve continues it"
                )
    return output.status_of_list(found, f"there were no moves in the last week below {connection.root}")


def _is_not_printed(record: logging.LogRecord) -> bool:
    """Whether a line of the log is not the error of a move, which the command prints itself."""
    return record.msg != FAILED


async def _watched(session: QueueSession, reference: str, total: int) -> MoveStatus:
    """Wait until a move ends, or no session works on it."""
    shown, attended = 0, anyio.current_time()
    with bars.progress("moving", total or None) as bar:
        while (status := await session.admin.moves.status(reference)).state == "running":
            bar.advance(status.moved - shown)
            shown = status.moved
            if not status.unattended:
                attended = anyio.current_time()
            elif anyio.current_time() - attended > UNATTENDED:
                break
            await anyio.sleep(POLL)
    return status


def _row(status: MoveStatus) -> tuple[object, ...]:
    started, ended = output.when(status.started), output.when(status.ended)
    moved = (status.reference, status.source, status.target, status.state, status.moved)
    return (*moved, started, ended, status.error or "")


def _record(status: MoveStatus) -> dict[str, output.Json]:
    return {
        "reference": status.reference,
        "from": status.source,
        "to": status.target,
        "state": status.state,
        "moved": status.moved,
        "started": status.started.isoformat(),
        "ended": None if status.ended is None else status.ended.isoformat(),
        "error": status.error,
        "unattended": status.unattended,
    }
