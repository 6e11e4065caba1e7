"""Keys, lifetimes and cancellation: duplicates collapse, unique keys are unique, ended messages stay ended."""

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
    """One message: the times of its put, its delivery and its end."""

    key: str
    number: int
    """The number of this put among the puts with its key, which are made one after another."""
    began: float
    put: float = NEVER
    """The time when the producer learned that it is stored."""
    refused: float = NEVER
    expires: float = NEVER
    delivered: float = NEVER
    disposition: float = NEVER
    """The time when its commit was requested."""
    ended: float = NEVER
    """The time when the commit returned."""
    cancelled: float = NEVER
    free: float = 0.0
    """The time when its last holder had released it."""


@dataclass(slots=True)
class Keyed:
    """The observations about messages with keys."""

    lives: list[Life] = field(default_factory=list)
    collapsing: bool = False
    unique: bool = False
    polls: list[tuple[float, list[tuple[Life, float]]]] = field(default_factory=list)
    """The start of each poll, and its messages, each with the time since which it was waiting."""
    leftovers: list[str] = field(default_factory=list)
    """Locks, attempts and keys on the server that belong to no message."""


@rule
def every_put_is_followed_by_a_delivery_of_its_key(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives if keyed.collapsing else ():
        later = (other for other in keyed.lives if other.key == life.key and other.number >= life.number)
        if life.put < NEVER and not any(other.delivered < NEVER for other in later):
            yield f"put {life.number} of the key {life.key}: neither this message nor a later one was delivered"


@rule
def messages_with_equal_keys_collapse_into_one_delivery(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for began, given in keyed.polls if keyed.collapsing else ():
        # A message that another client held does not count: it may be released between two takes of one poll.
        lay = [life for life, since in given if since < began]
        for life in lay:
            later = [other for other in lay if other.key == life.key and other.number > life.number]
            if later:
                yield f"one poll returned puts {life.number} and {later[0].number} of the key {life.key}, both waiting"


@rule
def a_taken_unique_key_refuses_another_put(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives if keyed.unique else ():
        for other in keyed.lives:
            if other.key != life.key or other is life:
                continue
            if life.put < NEVER and other.put <= life.began and life.put <= other.disposition:
                yield f"put {life.number} of the unique key {life.key} succeeded while put {other.number} was stored"


@rule
def a_put_is_refused_only_while_its_unique_key_is_taken(history: History) -> Iterator[str]:
    keyed = history.part(Keyed)
    for life in keyed.lives:
        if life.refused < NEVER and not any(
            other.key == life.key and other is not life and other.began < life.refused and life.began < other.ended
            for other in keyed.lives
            if other.refused == NEVER
        ):
            yield f"put {life.number} of the unique key {life.key} was refused, and no other message had the key"


@rule
def no_message_is_delivered_after_its_lifetime(history: History) -> Iterator[str]:
    for life in history.part(Keyed).lives:
        if life.expires < life.delivered < NEVER:
            yield f"put {life.number} of {life.key} was delivered at {life.delivered}, and expired at {life.expires}"


@rule
def no_cancelled_message_is_consumed(history: History) -> Iterator[str]:
    for life in history.part(Keyed).lives:
        if life.cancelled < NEVER and life.delivered < NEVER and life.ended < NEVER:
            yield f"put {life.number} of {life.key} was consumed, although it was cancelled at {life.cancelled}"


@rule
def locks_attempts_and_keys_are_removed_with_their_message(history: History) -> Iterator[str]:
    yield from history.part(Keyed).leftovers


@rule
def each_keyed_message_ends_once(history: History) -> Iterator[str]:
    """The message is consumed, cancelled, or still stored. In a collapsing queue, a newer message may replace it."""
    log = history.part(KeyLog)
    for token, made in log.puts.items():
        consumed = [take.status for take in log.takes if take.token == token]
        certain = consumed.count(Status.COMMITTED)
        off = log.called_off.get(token)
        certain += off is not None and off.status is Status.COMMITTED
        certain += token in log.left.get(made.queue, ())
        if certain > 1:
            yield f"{token} in {made.queue!r} has {certain} ends: {consumed}, {off}"
        if made.status is Status.NOT_COMMITTED and (consumed or certain):
            yield f"{token} in {made.queue!r} was stored, although its put failed"
        if made.status is Status.COMMITTED and not certain and not any(_may_have_ended(log, made)):
            yield f"{token} in {made.queue!r}, put {made.number} of the key {made.key!r}, is lost"


def _may_have_ended(log: KeyLog, made: KeyedPut) -> Iterator[bool]:
    """Whether the message may have ended, or in a collapsing queue a later message with its key."""
    possible = (Status.COMMITTED, Status.UNKNOWN, Status.PENDING)
    for token, other in log.puts.items():
        of_its_key = other.queue == made.queue == LATEST and other.key == made.key
        if other is made or (of_its_key and other.number > made.number):
            yield any(take.token == token and take.status in possible for take in log.takes)
            yield token in log.called_off
            yield token in log.left.get(other.queue, ())


@rule
def two_messages_with_the_same_unique_key_are_never_stored_together(history: History) -> Iterator[str]:
    log = history.part(KeyLog)
    once = [(token, made) for token, made in log.puts.items() if made.queue == ONCE]
    for token, put in once:
        same_key = [(name, other) for name, other in once if other is not put and other.key == put.key]
        shown = min((take.began for take in log.takes if take.token == token), default=NEVER)
        for name, other in same_key:
            both = put.status is other.status is Status.COMMITTED
            if both and put.decided <= other.began and other.decided < shown:
                yield f"{name} was put at {other.decided}, and {token} had the same unique key since {put.decided}"
        if put.refused and not any(_was_there(log, name, other, put) for name, other in same_key):
            yield f"{token} was refused at {put.decided}, and no other message had its key"


def _was_there(log: KeyLog, token: str, made: KeyedPut, during: KeyedPut) -> bool:
    """Whether a message may have been stored at some time during a put."""
    ends = [take.decided for take in log.takes if take.token == token and take.status is Status.COMMITTED]
    stored = made.status is not Status.NOT_COMMITTED
    return stored and made.began < during.decided and during.began < min(ends, default=NEVER)


@rule
def an_ended_keyed_message_leaves_nothing_behind(history: History) -> Iterator[str]:
    yield from history.part(KeyLog).leftovers
