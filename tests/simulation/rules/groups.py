"""Groups: within one, in the order of the puts, and one at a time."""

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
def a_message_of_a_group_does_not_overtake_one_put_before_it(history: History) -> Iterator[str]:
    """Nothing is handed over again, or for the first time, once one that was put after it has been."""
    together = {id(one): {other.token for other in unit.takes} for unit in history.units for one in unit.takes}
    for earlier, later in _pairs(history):
        if earlier.at <= later.at or earlier.token in together[id(later)]:  # those were given back together
            continue
        if not _excused(history, later) and not _excused(history, earlier):
            yield f"{earlier.token} was given to {earlier.client} after {later.token}, which was put after it"


@rule
def messages_of_a_group_are_out_one_at_a_time(history: History) -> Iterator[str]:
    """Except for those that one transaction takes together."""
    together = {id(one): id(unit) for unit in history.units for one in unit.takes}
    for earlier, later in _pairs(history):
        if together[id(earlier)] == together[id(later)] or earlier.at > later.at:
            continue
        over = history.sessions_over.get(earlier.session, float("inf")) <= later.at
        settled = earlier.until is not None and earlier.until <= later.at
        if not (over or settled or _excused(history, later) or _excused(history, earlier)):
            yield f"{later.token} was given to {later.client} while {earlier.client} had {earlier.token}"


@rule
def a_group_waits_while_its_oldest_does(history: History) -> Iterator[str]:
    """A message that was given back for a while holds those behind it back as long."""
    order, handed = history.part(Order), history.handed()
    for rest in order.rests:
        group, _ = order.places.get(rest.one.token, ("", 0))
        if not group:
            continue
        for token in [one for one, (other, _) in order.places.items() if other == group]:
            for later in handed.get(token, ()):
                if not rest.told < later.at < rest.over or later.queue != rest.one.queue:
                    continue
                # A session that ended may have done so before it gave anything back.
                over = history.sessions_over.get(rest.one.session, float("inf")) <= later.at
                if not (
                    over or _excused(history, later) or history.forced_out(rest.one) or _reopened(history, rest, later)
                ):
                    yield f"{token} was given to {later.client} while {rest.one.token} was to wait"


def _reopened(history: History, rest: Rest, later: Handed) -> bool:
    return any(
        one.queue == later.queue and one.ended >= rest.one.at and one.began <= later.at for one in history.opened
    )


def _pairs(history: History) -> Iterator[tuple[Handed, Handed]]:
    """Each two hand-overs of different messages of one group, that of the message put first before the other."""
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
