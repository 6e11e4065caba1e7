"""The known events of one message, in words. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from .message_state import Status, session_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import HistoryRecord

    from .message_state import MessageState, Process

_OVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


class Event(NamedTuple):
    """An event in the life of a message; None: its time is not recorded."""

    at: datetime | None
    what: str


def events_of(state: MessageState, records: Sequence[HistoryRecord]) -> list[Event]:
    """Return the events of a message, given the records of its ends, in order."""
    events: list[Event] = []
    if state.put_at is not None:
        events.append(Event(state.put_at, f"put by {name_process(state.put_by, 'another program')}"))
    for record in records:
        by = name_process(session_of(record), "somebody")
        if record.claimed_at is not None:
            events.append(Event(record.claimed_at, f"claimed by {by}"))
        events.append(Event(record.ended_at, _end(record.outcome.value, record.attempts, record.reason)))
    if state.ended_at is not None and not records:
        events.append(Event(state.ended_at, _end(state.status.value, state.attempts, state.reason)))
    events.sort(key=lambda event: event.at or _OVER)
    if state.status in (Status.WAITING, Status.DELAYED, Status.IN_FLIGHT) and state.attempts:
        # A policy with a limit counts a delivery before it begins.
        when = ", perhaps counting the current delivery" if state.status is Status.IN_FLIGHT else " before"
        failed = f", the last time it failed: {state.error}" if state.error else ""
        events.append(Event(None, f"{_delivered(state.attempts)}{when}{failed}"))
    if state.claimed_at is not None and state.status is Status.IN_FLIGHT:
        events.append(Event(state.claimed_at, f"claimed by {name_process(state.claimed_by, 'another program')}"))
    return events


def name_process(process: Process | None, otherwise: str) -> str:
    """Return a session with its name, host and process, as far as they are known."""
    if process is None:
        return otherwise
    where = f"{process.host}, process {process.pid}" if process.host else ""
    known = ", ".join(filter(None, (process.name, where)))
    return f"{process.client} ({known})" if known else process.client


def _end(outcome: str, attempts: int, reason: str) -> str:
    return f"{outcome}, {_delivered(attempts)}{f': {reason}' if reason else ''}"


def _delivered(counted: int) -> str:
    """Return the number of deliveries: `AtLeastOnce` does not count those that ended with their process."""
    if not counted:
        return "no delivery counted"
    return f"delivered at least {'once' if counted == 1 else f'{counted} times'}"
