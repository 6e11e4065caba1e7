"""Notifications: what was told to be removed or replaced is, and what is being handled is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.notifications import NotificationLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def what_was_removed_or_replaced_is_not_handled_any_more(history: History) -> Iterator[str]:
    log = history.part(NotificationLog)
    for one in log.handled:
        entry = log.entries.get(one.id)
        if entry is None or history.sessions_over.get(one.session, float("inf")) <= one.at:
            continue  # its process stood still: nobody can keep it from being shown
        if one.at > entry.removed:
            yield f"{one.id} was handled at {one.at}, though it had been removed at {entry.removed}"
        if one.at > entry.replaced and one.event == b"old":
            yield f"{one.id} was handled at {one.at} as it was before it had been replaced at {entry.replaced}"


@rule
def what_is_being_handled_is_not_changed(history: History) -> Iterator[str]:
    log = history.part(NotificationLog)
    for changed, began, ended in log.changes:
        for one in log.handled:
            over = history.sessions_over.get(one.session, float("inf"))
            if one.id == changed and one.at < began and ended < min(one.until, over) and one.until < float("inf"):
                yield f"{changed} was told to have been changed, from {began} to {ended}, in the midst of its handling"
