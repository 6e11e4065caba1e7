"""Groups: the messages of a group are delivered in the order of their puts, one at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.programs.groups import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import Delivery, History
    from tests.simulation.programs.groups import Wait


@rule
def messages_of_a_group_are_delivered_in_put_order(history: History) -> Iterator[str]:
    """A message is not delivered after a message that was put later, neither for the first time nor again."""
    together = {
        id(delivery): {other.token for other in unit.takes} for unit in history.units for delivery in unit.takes
    }
    for earlier, later in _pairs(history):
        if earlier.at <= later.at or earlier.token in together[id(later)]:  # both were released together
            continue
        if not _excused(history, later) and not _excused(history, earlier):
            yield f"{earlier.token} was delivered to {earlier.client} after {later.token}, which was put later"


@rule
def messages_of_a_group_are_delivered_one_at_a_time(history: History) -> Iterator[str]:
    """Only one transaction may hold several messages of a group."""
    together = {id(delivery): id(unit) for unit in history.units for delivery in unit.takes}
    for earlier, later in _pairs(history):
        if together[id(earlier)] == together[id(later)] or earlier.at > later.at:
            continue
        over = history.sessions_over.get(earlier.session, float("inf")) <= later.at
        settled = earlier.until is not None and earlier.until <= later.at
        if not (over or settled or _excused(history, later) or _excused(history, earlier)):
            yield f"{later.token} was delivered to {later.client} while {earlier.client} held {earlier.token}"


@rule
def a_group_waits_for_the_retry_of_its_oldest_message(history: History) -> Iterator[str]:
    """A message that was released with a delay blocks the later messages of its group during this delay."""
    order, deliveries = history.part(Order), history.deliveries()
    for wait in order.waits:
        group, _ = order.places.get(wait.delivery.token, ("", 0))
        if not group:
            continue
        for token in [member for member, (other, _) in order.places.items() if other == group]:
            for later in deliveries.get(token, ()):
                if not wait.released < later.at < wait.over or later.queue != wait.delivery.queue:
                    continue
                # A session that ended may not have released anything.
                over = history.sessions_over.get(wait.delivery.session, float("inf")) <= later.at
                if not (
                    over
                    or _excused(history, later)
                    or history.forced_out(wait.delivery)
                    or _reopened(history, wait, later)
                    or _purged(history, wait)
                    or _exhausted(history, wait)
                ):
                    yield f"{token} was delivered to {later.client} before the delay of {wait.delivery.token} ended"


def _purged(history: History, wait: Wait) -> bool:
    """Whether an operator may have removed the waiting message: it was not redelivered and is not stored."""
    token, queue = wait.delivery.token, wait.delivery.queue
    again = any(delivery.at > wait.released for delivery in history.deliveries().get(token, ()))
    left = token in history.final.items.get(queue, []) or token in history.final.dead.get(queue, [])
    return any(purge.queue == queue for purge in history.purged) and not again and not left


def _exhausted(history: History, wait: Wait) -> bool:
    """Whether the waiting message became a dead letter, because an operator has changed the policy meanwhile."""
    token, queue = wait.delivery.token, wait.delivery.queue
    deliveries = len(history.deliveries().get(token, ()))
    return token in history.final.dead.get(queue, []) and history.exhausted(queue, deliveries)


def _reopened(history: History, wait: Wait, later: Delivery) -> bool:
    return any(
        opened.queue == later.queue and opened.ended >= wait.delivery.at and opened.began <= later.at
        for opened in history.opened
    )


def _pairs(history: History) -> Iterator[tuple[Delivery, Delivery]]:
    """Yield each pair of deliveries of different messages of a group, with the earlier put first."""
    places = history.part(Order).places
    groups: defaultdict[str, list[tuple[int, Delivery]]] = defaultdict(list)
    for token, deliveries in history.deliveries().items():
        if token in places:
            group, number = places[token]
            groups[group] += ((number, delivery) for delivery in deliveries)
    for members in groups.values():
        for number, earlier in members:
            for other, later in members:
                if number < other:
                    yield earlier, later


def _excused(history: History, delivery: Delivery) -> bool:
    return (
        history.shown_after_session_end(delivery)
        or history.forced_out(delivery)
        or history.redriven[delivery.queue] > 0
    )
