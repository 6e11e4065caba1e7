"""Keys, lifetimes and cancelling: what is one by its key is one, what has ended or was cancelled is not delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.checker import rule
from tests.simulation.history import Status
from tests.simulation.programs.keys import LATEST, ONCE, KeyLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History
    from tests.simulation.programs.keys import KeyedPut

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Life:
    """One message: what was asked for, when, and what came of it."""

    key: str
    number: int
    """Counts the puts of a key, made one after the other."""
    began: float
    put: float = NEVER
    """When it was known to be stored."""
    refused: float = NEVER
    expires: float = NEVER
    delivered: float = NEVER
    disposition: float = NEVER
    """When its end was asked for."""
    ended: float = NEVER
    """When it was known to have ended."""
    cancelled: float = NEVER
    free: float = 0.0
    """When its last holder had given it back."""


@dataclass(slots=True)
class Keyed:
    """What was seen of messages with keys."""

    lives: list[Life] = field(default_factory=list)
    collapsing: bool = False
    unique: bool = False
    polls: list[tuple[float, list[tuple[Life, float]]]] = field(default_factory=list)
    """When each began, what it gave, and since when that had lain there."""
    leftovers: list[str] = field(default_factory=list)
    """Locks, attempts and keys on the server that belong to nothing."""


@rule
def every_put_is_followed_by_a_delivery_of_its_key(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives if keyed.collapsing else ():
        later = (one for one in keyed.lives if one.key == life.key and one.number >= life.number)
        if life.put < NEVER and not any(one.delivered < NEVER for one in later):
            yield f"put {life.number} of {life.key}: nothing that was put then or later has been delivered"


@rule
def what_lies_together_is_delivered_once(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for began, given in keyed.polls if keyed.collapsing else ():
        # What another held meanwhile did not lie there: it may be given back between two takes of one poll.
        lay = [life for life, since in given if since < began]
        for life in lay:
            others = [one for one in lay if one.key == life.key and one.number > life.number]
            if others:
                yield f"a poll gave {life.key} as put {life.number} and as {others[0].number}, which lay there"


@rule
def of_a_unique_key_one_is_there(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives if keyed.unique else ():
        for other in keyed.lives:
            if other.key != life.key or other is life:
                continue
            if life.put < NEVER and other.put <= life.began and life.put <= other.disposition:
                yield f"put {life.number} of {life.key} was made while {other.number} was there"


@rule
def no_put_of_a_unique_key_is_refused_in_vain(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives:
        if life.refused < NEVER and not any(
            other.key == life.key and other is not life and other.began < life.refused and life.began < other.ended
            for other in keyed.lives
            if other.refused == NEVER
        ):
            yield f"put {life.number} of {life.key} was refused, and no other was there"


@rule
def nothing_is_delivered_after_its_end(history: History) -> Iterator[str]:
    for life in history.part(Keyed).lives:
        if life.expires < life.delivered < NEVER:
            yield f"{life.key}, put {life.number}, was delivered at {life.delivered}, its life ended at {life.expires}"


@rule
def nothing_is_delivered_that_was_cancelled(history: History) -> Iterator[str]:
    for life in history.part(Keyed).lives:
        if life.cancelled < NEVER and life.delivered < NEVER and life.ended < NEVER:
            yield f"{life.key}, put {life.number}, was cancelled at {life.cancelled} and consumed all the same"


@rule
def what_belongs_to_a_message_ends_with_it(history: History) -> Iterator[str]:
    yield from history.part(Keyed).leftovers


@rule
def each_keyed_message_comes_to_one_end(history: History) -> Iterator[str]:
    """It is consumed, called off, or there; of what collapses, a newer one of its key may be in its place."""
    log = history.part(KeyLog)
    for token, made in log.puts.items():
        consumed = [one.status for one in log.takes if one.token == token]
        certain = consumed.count(Status.COMMITTED)
        off = log.called_off.get(token)
        certain += off is not None and off.status is Status.COMMITTED
        certain += token in log.left.get(made.queue, ())
        if certain > 1:
            yield f"{token} in {made.queue!r} came to {certain} ends: {consumed}, {off}"
        if made.status is Status.NOT_COMMITTED and (consumed or certain):
            yield f"{token} in {made.queue!r} is there, though its put was told to have failed"
        if made.status is Status.COMMITTED and not certain and not any(_may_have_ended(log, made)):
            yield f"{token} in {made.queue!r}, put {made.number} of {made.key!r}, has gone"


def _may_have_ended(log: KeyLog, made: KeyedPut) -> Iterator[bool]:
    """Whether it, or where keys collapse one of its key that was put later, may have come to an end."""
    possible = (Status.COMMITTED, Status.UNKNOWN, Status.PENDING)
    for token, other in log.puts.items():
        of_its_key = other.queue == made.queue == LATEST and other.key == made.key
        if other is made or (of_its_key and other.number > made.number):
            yield any(one.token == token and one.status in possible for one in log.takes)
            yield token in log.called_off
            yield token in log.left.get(other.queue, ())


@rule
def two_puts_of_a_unique_key_are_not_there_together(history: History) -> Iterator[str]:
    log = history.part(KeyLog)
    once = [(token, one) for token, one in log.puts.items() if one.queue == ONCE]
    for token, one in once:
        others = [(name, other) for name, other in once if other is not one and other.key == one.key]
        shown = min((take.began for take in log.takes if take.token == token), default=NEVER)
        for name, other in others:
            both = one.status is other.status is Status.COMMITTED
            if both and one.decided <= other.began and other.decided < shown:
                yield f"{name} was put at {other.decided}, {token} of the same key was there from {one.decided} on"
        if one.refused and not any(_was_there(log, name, other, one) for name, other in others):
            yield f"{token} was refused at {one.decided}, and no other of its key was there"


def _was_there(log: KeyLog, token: str, one: KeyedPut, during: KeyedPut) -> bool:
    """Whether a message may have been there at some time of a put."""
    ends = [take.decided for take in log.takes if take.token == token and take.status is Status.COMMITTED]
    stored = one.status is not Status.NOT_COMMITTED
    return stored and one.began < during.decided and during.began < min(ends, default=NEVER)


@rule
def nothing_of_a_keyed_message_is_left_over(history: History) -> Iterator[str]:
    yield from history.part(KeyLog).leftovers
