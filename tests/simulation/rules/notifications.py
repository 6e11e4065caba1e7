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
    for delivery in log.handled:
        entry = log.entries.get(delivery.id)
        if entry is None or history.sessions_over.get(delivery.session, float("inf")) <= delivery.at:
            continue  # the process was paused, so this delivery cannot be prevented
        if delivery.at > entry.removed:
            yield f"{delivery.id} was handled at {delivery.at}, although it was removed at {entry.removed}"
        if delivery.at > entry.replaced and delivery.event == b"old":
            yield (
                f"{delivery.id} was handled at {delivery.at} with its old event, although that was replaced at"
                f" {entry.replaced}"
            )


@rule
def a_notification_in_flight_is_not_changed(history: History) -> Iterator[str]:
    log = history.part(NotificationLog)
    for changed, began, ended in log.changes:
        for delivery in log.handled:
            over = history.sessions_over.get(delivery.session, float("inf"))
            if (
                delivery.id == changed
                and delivery.at < began
                and ended < min(delivery.until, over)
                and delivery.until < float("inf")
            ):
                yield f"{changed} was changed between {began} and {ended}, while a handler had it"
