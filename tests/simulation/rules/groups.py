"""Groups: the messages of a group are delivered in put order, and one at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.groups import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import Handed, History
    from tests.simulation.programs.groups import Rest


@rule
def messages_of_a_group_are_delivered_in_put_order(history: History) -> Iterator[str]:
    """A message is not delivered after one that was put later, neither for the first time nor again."""
    together = {id(one): {other.token for other in unit.takes} for unit in history.units for one in unit.takes}
    for earlier, later in _pairs(history):
        if earlier.at <= later.at or earlier.token in together[id(later)]:  # both were released together
            continue
        if not _excused(history, later) and not _excused(history, earlier):
            yield f"{earlier.token} was delivered to {earlier.client} after {later.token}, which was put later"


@rule
def messages_of_a_group_are_delivered_one_at_a_time(history: History) -> Iterator[str]:
    """Only one transaction may hold several messages of a group."""
    together = {id(one): id(unit) for unit in history.units for one in unit.takes}
    for earlier, later in _pairs(history):
        if together[id(earlier)] == together[id(later)] or earlier.at > later.at:
            continue
        over = history.sessions_over.get(earlier.session, float("inf")) <= later.at
        settled = earlier.until is not None and earlier.until <= later.at
        if not (over or settled or _excused(history, later) or _excused(history, earlier)):
            yield f"{later.token} was delivered to {later.client} while {earlier.client} held {earlier.token}"


@rule
def a_group_waits_for_the_retry_of_its_oldest_message(history: History) -> Iterator[str]:
    """A message that was released with a delay blocks the later messages of its group for this delay."""
    order, handed = history.part(Order), history.handed()
    for rest in order.rests:
        group, _ = order.places.get(rest.one.token, ("", 0))
        if not group:
            continue
        for token in [one for one, (other, _) in order.places.items() if other == group]:
            for later in handed.get(token, ()):
                if not rest.told < later.at < rest.over or later.queue != rest.one.queue:
                    continue
                # A session that ended may not have released anything.
                over = history.sessions_over.get(rest.one.session, float("inf")) <= later.at
                if not (
                    over
                    or _excused(history, later)
                    or history.forced_out(rest.one)
                    or _reopened(history, rest, later)
                    or _purged(history, rest)
                    or _exhausted(history, rest)
                ):
                    yield f"{token} was delivered to {later.client} before the delay of {rest.one.token} ended"


def _purged(history: History, rest: Rest) -> bool:
    """Whether an operator may have removed the message that rests: it was not delivered again, and is not left."""
    token, queue = rest.one.token, rest.one.queue
    again = any(one.at > rest.told for one in history.handed().get(token, ()))
    left = token in history.final.items.get(queue, []) or token in history.final.dead.get(queue, [])
    return any(one.queue == queue for one in history.purged) and not again and not left


def _exhausted(history: History, rest: Rest) -> bool:
    """Whether the message that rests became a dead letter instead, by a policy that an operator has set meanwhile."""
    token, queue = rest.one.token, rest.one.queue
    deliveries = len(history.handed().get(token, ()))
    return token in history.final.dead.get(queue, []) and history.exhausted(queue, deliveries)


def _reopened(history: History, rest: Rest, later: Handed) -> bool:
    return any(
        one.queue == later.queue and one.ended >= rest.one.at and one.began <= later.at for one in history.opened
    )


def _pairs(history: History) -> Iterator[tuple[Handed, Handed]]:
    """Yield each two deliveries of different messages of a group, first that of the message that was put first."""
    places = history.part(Order).places
    groups: defaultdict[str, list[tuple[int, Handed]]] = defaultdict(list)
    for token, handed in history.handed().items():
        if token in places:
            group, number = places[token]
            groups[group] += ((number, one) for one in handed)
    for members in groups.values():
        for number, earlier in members:
            for other, later in members:
                if number < other:
                    yield earlier, later


def _excused(history: History, one: Handed) -> bool:
    return history.stood_still(one) or history.forced_out(one) or history.redriven[one.queue] > 0
