"""Queues of other programs: a message that a peer holds is not delivered, and no message is consumed twice."""

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
    """The outcome of the items of a queue that is shared with a peer."""

    put: set[str] = field(default_factory=set[str])
    by_peer: set[str] = field(default_factory=set[str])
    """The messages that the peer holds now."""
    taken_from_peer: list[str] = field(default_factory=list[str])
    """The messages that were delivered here while the peer held them."""
    consumed: Counter[str] = field(default_factory=Counter[str])
    left: list[str] = field(default_factory=list[str])
    in_vain: list[str] = field(default_factory=list[str])
    """Items that one of our sessions locked long after they were deleted."""

    expected: list[str] = field(default_factory=list[str])
    """The order in which one consumer must receive the messages; empty if any order is allowed."""
    got: list[str] = field(default_factory=list[str])


@rule
def one_consumer_receives_messages_in_order(history: History) -> Iterator[str]:
    shared = history.part(Shared)
    if shared.expected and shared.got != shared.expected:
        yield f"one consumer received {shared.got}, and not {shared.expected}"


@rule
def a_message_that_a_peer_holds_is_not_delivered(history: History) -> Iterator[str]:
    for body in history.part(Shared).taken_from_peer:
        yield f"{body} was delivered while a peer held it"


@rule
def a_message_shared_with_a_peer_is_consumed_once(history: History) -> Iterator[str]:
    shared = history.part(Shared)
    for body in sorted(shared.put):
        if shared.consumed[body] != 1:
            yield f"{body} was consumed {shared.consumed[body]} times by our sessions and the peer together"
    for name in shared.left:
        yield f"{name} is left in a queue that has been emptied"


@rule
def a_deleted_item_is_not_locked(history: History) -> Iterator[str]:
    for name in history.part(Shared).in_vain:
        yield f"{name} was locked by one of our sessions, long after it was deleted"
