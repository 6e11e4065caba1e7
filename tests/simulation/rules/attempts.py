"""Attempts: at most K, and dead letters exactly when the policy says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@rule
def at_most_k_hand_overs(history: History) -> Iterator[str]:
    for token, handed in history.handed().items():
        limit = history.limits.get(handed[0].queue)
        if limit is not None and len(handed) > limit * (1 + history.redriven[handed[0].queue]):
            yield f"{token} was handed over {len(handed)} times, {limit} are allowed"


@rule
def dead_letters_exactly_when_the_policy_says(history: History) -> Iterator[str]:
    handed = history.handed()
    rejected = {token for unit in history.units if unit.status is not Status.NOT_COMMITTED for token in unit.rejects}
    dead = {token for tokens in history.final.dead.values() for token in tokens}
    for queue, tokens in history.final.dead.items():
        for token in tokens:
            if token not in rejected and not history.exhausted(queue, len(handed.get(token, ()))):
                yield f"{token} of {queue!r} is dead after {len(handed.get(token, ()))} of {history.limits[queue]}"
    for unit in history.units:
        if unit.status is Status.COMMITTED:
            for token in sorted(unit.rejects - dead):
                if history.redriven[next(one.queue for one in unit.takes if one.token == token)]:
                    continue
                yield f"{token} was rejected by {unit.client} and is no dead letter"
