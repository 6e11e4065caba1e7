"""`aiozkqueue why`: the known events of one message."""

from __future__ import annotations

from typing import Annotated

import typer

import aiozkqueue as zq
from aiozkqueue.admin import MessageState, Process, QueueStats
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit
from aiozkqueue.operations.history import records_of
from aiozkqueue.operations.story import events_of, name_process
from aiozkqueue.session.internals import handle_of
from aiozkqueue.wording import counted


@connected
@asks_queue
async def why(
    connection: Connection,
    queue: AskedQueue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    as_json: AsJson = False,
) -> Exit:
    """Explain what happened to a message and why it is where it is.

    How a message ended is known if it is a dead letter or if the queue keeps a history.

    Exit status 1: nothing is known about the message.

    Example:
    [dim]$ aiozkqueue why orders 3FqzK1TXnNzR0000Ab[/dim]
    """
    async with connection.open_queue(queue) as target:
        state = await target.state(message_id)
        stats = await target.stats()
        known = state.status is not zq.Status.UNKNOWN
        records = await records_of(handle_of(target), message_id) if known else []
        keeps = known or queue.program is not None or (await target.configuration()).history is not None
    # Queues of other programs have no pause and no history, and options instead of a name.
    operand = "" if queue.program is not None else f" {queue.name}"
    events, now = events_of(state, records), _now(state, stats, operand)
    if not keeps:
        now += f"; `aiozkqueue configure{operand} --history 7d` keeps records of the messages that end from now on"
    if as_json:
        output.print_json(
            {
                "id": message_id,
                "queue": queue.name,
                "status": state.status.value,
                "events": [{"at": None if at is None else at.isoformat(), "what": what} for at, what in events],
                "now": now,
            }
        )
    else:
        output.print_table(["when", "what"], [(output.when(at), what) for at, what in events] + [("now", now)])
    return Exit.NOTHING if state.status is zq.Status.UNKNOWN else Exit.OK


def _now(state: MessageState, stats: QueueStats, operand: str) -> str:
    """Return the reason for its current state. Commands name the queue by ``operand``."""
    redriven = f"{operand} {state.id}" if operand else ""
    reasons = {
        zq.Status.UNKNOWN: "unknown: it was never in this queue, or it has ended and the queue keeps no record of it",
        zq.Status.WAITING: _waiting(stats, operand),
        zq.Status.IN_FLIGHT: f"in flight: claimed by {name_process(state.claimed_by, 'another program')}, "
        f"which has not settled it yet{_dumped(state.claimed_by)}",
        zq.Status.DELAYED: f"delayed until {output.when(state.due)}, "
        + ("before its next attempt, or leased" if state.attempts else "as it was put"),
        zq.Status.DEAD: f"dead letter: `aiozkqueue dlq redrive{redriven}` puts it back",
    }
    return reasons.get(state.status, str(state.status.value))


def _dumped(holder: Process | None) -> str:
    """Return how to see where the handler of a message waits, if its process is known."""
    if holder is None or not holder.host:
        return ""
    return f"; if that is a worker, `aiozkqueue dump {holder.pid}` on {holder.host} shows where its handler waits"


def _waiting(stats: QueueStats, operand: str) -> str:
    if stats.paused:
        return f"waiting: the queue is paused; `aiozkqueue resume{operand}` resumes it"
    if not stats.consumers:
        return "waiting: the queue has no consumers"
    return (
        f"waiting for its turn: waiting messages in the queue: {stats.waiting}, in flight: {stats.in_flight}; "
        f"the queue has {counted(stats.consumers, 'consumer')}"
    )
