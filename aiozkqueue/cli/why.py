"""`aiozkqueue why`: the known events of one message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

import typer

import aiozkqueue as zq
from aiozkqueue.admin import HistoryRecord, MessageState, Process, QueueStats
from aiozkqueue.cli import output
from aiozkqueue.cli.arguments import AsJson
from aiozkqueue.cli.asked import AskedQueue, asks_queue
from aiozkqueue.cli.connection import Connection, connected
from aiozkqueue.cli.exits import Exit

_OVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


class _Event(NamedTuple):
    """An event in the life of a message; None: its time is not recorded."""

    at: datetime | None
    what: str


@connected
@asks_queue
async def why(
    connection: Connection,
    queue: AskedQueue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    as_json: AsJson = False,
) -> Exit:
    """Explain what happened to a message and why it is where it is.

    The end of a message is known if it is a dead letter or if the queue keeps a history.

    Exit status 1: nothing is known about the message.

    Example:
    [dim]$ aiozkqueue why orders 3FqzK1TXnNzR0000Ab[/dim]
    """
    async with connection.look_at(queue) as target:
        state = await target.state(message_id)
        stats = await target.stats()
        records = [
            record
            async for record in target.history(since=state.put_at)
            if record.id == message_id and state.status is not zq.Status.UNKNOWN
        ]
    events, now = _story(state, records), _now(state, stats)
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


def _story(state: MessageState, records: list[HistoryRecord]) -> list[_Event]:
    events: list[_Event] = []
    if state.put_at is not None:
        events.append(_Event(state.put_at, f"put by {_name(state.put_by, 'another program')}"))
    for record in records:
        by = _name(Process(client=record.client, host=record.host, pid=record.pid), "somebody")
        if record.claimed_at is not None:
            events.append(_Event(record.claimed_at, f"claimed by {by}"))
        events.append(_Event(record.ended_at, _end(record.outcome.value, record.attempts, record.reason)))
    told = {record.ended_at for record in records}
    if state.ended_at is not None and not records and state.ended_at not in told:
        events.append(_Event(state.ended_at, _end(state.status.value, state.attempts, state.reason)))
    events.sort(key=lambda one: one.at or _OVER)
    if state.status in (zq.Status.WAITING, zq.Status.DELAYED, zq.Status.CLAIMED) and state.attempts:
        failed = f", the last time it failed: {state.error}" if state.error else ""
        events.append(_Event(None, f"{_handed_over(state.attempts)} before{failed}"))
    if state.claimed_at is not None and state.status is zq.Status.CLAIMED:
        events.append(_Event(state.claimed_at, f"claimed by {_name(state.claimed_by, 'another program')}"))
    return events


def _end(outcome: str, attempts: int, reason: str) -> str:
    return f"{outcome}, {_handed_over(attempts)}{f': {reason}' if reason else ''}"


def _now(state: MessageState, stats: QueueStats) -> str:
    """Return the reason for its current state."""
    said = {
        zq.Status.UNKNOWN: "unknown: it was never in this queue, or it has ended and the queue keeps no record of it",
        zq.Status.WAITING: _waiting(stats),
        zq.Status.CLAIMED: f"claimed by {_name(state.claimed_by, 'another program')}, which has not settled it yet",
        zq.Status.DELAYED: f"delayed until {output.when(state.due)}, "
        + ("before its next attempt, or leased" if state.attempts else "as it was put"),
        zq.Status.DEAD: "dead letter: `aiozkqueue dlq redrive` puts it back",
    }
    return said.get(state.status, str(state.status.value))


def _waiting(stats: QueueStats) -> str:
    if stats.paused:
        return "waiting: the queue is paused; `aiozkqueue resume` resumes it"
    if not stats.consumers:
        return "waiting: the queue has no consumers"
    return (
        f"waiting for its turn: {stats.waiting} messages wait in the queue, {stats.in_flight} are in flight; "
        f"the queue has {stats.consumers} consumers"
    )


def _handed_over(counted: int) -> str:
    """Return the number of deliveries: `AtLeastOnce` does not count those that ended with their process."""
    if not counted:
        return "no hand-over counted"
    return f"handed over at least {'once' if counted == 1 else f'{counted} times'}"


def _name(process: Process | None, otherwise: str) -> str:
    if process is None:
        return otherwise
    where = f" ({process.host}, process {process.pid})" if process.host else ""
    return f"{process.client}{where}"
