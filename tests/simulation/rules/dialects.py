"""Queues of other programs: what a peer holds is left to it, and nothing is handled by both."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.checker import rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History


@dataclass
class Shared:
    """What became of the items of a queue that is shared with a peer."""

    put: set[str] = field(default_factory=set[str])
    by_peer: set[str] = field(default_factory=set[str])
    """Held by the peer now."""
    taken_from_peer: list[str] = field(default_factory=list[str])
    """Handed over here while the peer held them."""
    consumed: Counter[str] = field(default_factory=Counter[str])
    left: list[str] = field(default_factory=list[str])
    in_vain: list[str] = field(default_factory=list[str])
    """Items that one of ours locked long after they had gone."""

    expected: list[str] = field(default_factory=list[str])
    """In the order in which one consumer is to get them; nothing: in any."""
    got: list[str] = field(default_factory=list[str])


@rule
def what_one_consumer_takes_ahead_is_in_order(history: History) -> Iterator[str]:
    shared = history.part(Shared)
    if shared.expected and shared.got != shared.expected:
        yield f"one consumer got {shared.got}"


@rule
def what_a_peer_holds_is_left_to_it(history: History) -> Iterator[str]:
    for body in history.part(Shared).taken_from_peer:
        yield f"{body} was handed over while a peer held it"


@rule
def what_is_shared_with_a_peer_is_consumed_once(history: History) -> Iterator[str]:
    shared = history.part(Shared)
    for body in sorted(shared.put):
        if shared.consumed[body] != 1:
            yield f"{body} was consumed {shared.consumed[body]} times by us and a peer together"
    for name in shared.left:
        yield f"{name} is left of a queue that has been emptied"


@rule
def what_has_gone_is_not_locked(history: History) -> Iterator[str]:
    for name in history.part(Shared).in_vain:
        yield f"{name} was locked by one of ours, long after it had gone"
