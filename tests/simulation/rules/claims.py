"""Claims: one holder at a time, and none for ever."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import Handed, History


@rule
def what_is_taken_is_not_offered(history: History) -> Iterator[str]:
    for token, handed in history.handed().items():
        for before, after in itertools.pairwise(handed):
            if before.until is not None and before.until <= after.at:
                continue
            if history.sessions_over.get(before.session, float("inf")) <= after.at:
                continue
            if history.forced_out(before) or history.forced_out(after) or _opened_between(history, before, after):
                continue
            if history.stood_still(after):
                continue
            yield f"{token} was given to {after.client} while {before.client} had it"


@rule
def who_was_forced_out_cannot_commit(history: History) -> Iterator[str]:
    for unit in history.units:
        for one in unit.takes if unit.status is Status.COMMITTED else ():
            for opened in history.opened:
                if opened.queue == one.queue and one.at <= opened.began and opened.ended <= (one.until or 0):
                    yield f"{one.token} was committed by {unit.client}, though its claim had been forced open"


@rule
def no_lock_outlives_its_holder(history: History) -> Iterator[str]:
    yield from history.final.leftovers
    for queue, tokens in history.final.items.items():
        for token in tokens:
            yield f"{token} in {queue!r} could not be taken any more"


@rule
def who_is_gone_is_in_no_registry(history: History) -> Iterator[str]:
    for path in history.final.strangers:
        yield f"{path} is there, its session is over"


def _opened_between(history: History, before: Handed, after: Handed) -> bool:
    return any(one.queue == before.queue and one.began <= after.at and before.at <= one.ended for one in history.opened)
