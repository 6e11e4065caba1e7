"""Notifications: a removed or replaced one is not handled, and one in flight is not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.notifications import NotificationLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def a_removed_or_replaced_notification_is_not_handled(history: History) -> Iterator[str]:
    log = history.part(NotificationLog)
    for one in log.handled:
        entry = log.entries.get(one.id)
        if entry is None or history.sessions_over.get(one.session, float("inf")) <= one.at:
            continue  # its process was stopped: this delivery cannot be prevented
        if one.at > entry.removed:
            yield f"{one.id} was handled at {one.at}, although it was removed at {entry.removed}"
        if one.at > entry.replaced and one.event == b"old":
            yield f"{one.id} was handled at {one.at} with its old event, although that was replaced at {entry.replaced}"


@rule
def a_notification_in_flight_is_not_changed(history: History) -> Iterator[str]:
    log = history.part(NotificationLog)
    for changed, began, ended in log.changes:
        for one in log.handled:
            over = history.sessions_over.get(one.session, float("inf"))
            if one.id == changed and one.at < began and ended < min(one.until, over) and one.until < float("inf"):
                yield f"{changed} was changed between {began} and {ended}, while a handler had it"
