"""History: it has a record of each end of a message, and no other records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.records import KEPT, Kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History

_GONE = (zq.End.FINISHED, zq.End.FAILED, zq.End.REMOVED)


@rule
def each_commit_is_recorded_in_the_history(history: History) -> Iterator[str]:
    kept = history.part(Kept)
    for unit in history.units if kept.there else ():
        if unit.status is Status.COMMITTED:
            for delivery in unit.takes:
                if delivery.queue == KEPT and delivery.token not in unit.rejects and delivery.token not in unit.keeps:
                    count = kept.ends.get(delivery.token, Counter())[zq.End.FINISHED]
                    if count != 1:
                        yield (
                            f"{delivery.token} was committed by {unit.client}, and the history has {count}"
                            " records of that"
                        )


@rule
def the_history_has_one_end_of_each_message(history: History) -> Iterator[str]:
    for token, ends in history.part(Kept).ends.items():
        count = sum(ends[end] for end in _GONE)
        if count > 1:
            yield f"{token} has {count} records of its end in the history"


@rule
def each_dead_letter_is_recorded_in_the_history(history: History) -> Iterator[str]:
    kept = history.part(Kept)
    for token in history.final.dead.get(KEPT, ()):
        if not kept.ends.get(token, Counter())[zq.End.DEAD]:
            yield f"{token} is a dead letter, and the history has no record of that"


@rule
def each_record_in_the_history_is_true(history: History) -> Iterator[str]:
    kept, dead = history.part(Kept), history.final.dead.get(KEPT, [])
    stored = {*history.final.items.get(KEPT, ()), *dead}
    for token, ends in kept.ends.items():
        if any(ends[end] for end in _GONE) and token in stored:
            yield f"{token} is still stored, and the history has a record of its end"
        if ends[zq.End.DEAD] > dead.count(token) + history.redriven[KEPT]:
            yield f"{token} has {ends[zq.End.DEAD]} records as a dead letter, and is one {dead.count(token)} times"
