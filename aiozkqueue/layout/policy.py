"""What is done with a message that failed: how often, how soon, and what then.

Policies belong to a queue and are stored in its configuration, so they are values: frozen, comparable, hashable.
"""

from __future__ import annotations

import math
import random as randomness
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from aiozkqueue.errors import InvalidOptionError

from .fields import LARGEST_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Seconds: TypeAlias = "float | timedelta"
Exhausted: TypeAlias = Literal["dead-letter", "drop"]

LONGEST_DELAY: Final = 1_000_000_000.0
"""Seconds a retry may be delayed at most, about 31 years."""

SHORTEST_LIFE: Final = 0.001
"""Seconds that a message lives at least: its end is stored in milliseconds."""

MOST_DELAYS: Final = 1_000
"""Delays a `Schedule` holds at most: it is stored in the queue's configuration."""


def _seconds(option: str, value: Seconds) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _number(option, value, 0, LONGEST_DELAY, "seconds from 0 to 10**9, as a number or timedelta")


def positive_seconds(option: str, value: Seconds) -> float:
    """A duration of more than nothing, in seconds.

    Raises:
        InvalidOptionError: it is not more than 0 and up to 10**9 seconds, as a number or timedelta.
    """
    seconds = _seconds(option, value)
    if not seconds:
        raise InvalidOptionError(f"{option}={value!r}: it must be more than 0 seconds")
    return seconds


def check_integer(option: str, value: object, least: int, most: int, meaning: str = "") -> None:
    """Check a whole number; ``meaning`` tells in the error what the least one stands for.

    Raises: InvalidOptionError: it is no integer from ``least`` to ``most``.
    """
    if type(value) is not int or not least <= value <= most:
        raise InvalidOptionError(f"{option}={value!r}: it must be an integer from {least}{meaning} to {most}")


def lifetime(value: Seconds) -> float:
    """Seconds that a message may wait to be taken; ``math.inf``: for ever. Raises: InvalidOptionError."""
    if value == math.inf:
        return math.inf
    allowed = f"seconds from {SHORTEST_LIFE:g} to 10**9, as a number or timedelta, or math.inf (for ever)"
    given = value.total_seconds() if isinstance(value, timedelta) else value
    return _number("ttl", given, SHORTEST_LIFE, LONGEST_DELAY, allowed)


def _number(option: str, value: object, least: float, most: float, allowed: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise InvalidOptionError(f"{option}={value!r}: it must be {allowed}")


class Backoff:
    """How long to wait before a failed message is offered again: `Exponential`, `Fixed` or `Schedule`."""

    __slots__ = ()

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:
        """Seconds to wait after the ``attempt``-th failed attempt, the first being 1.

        Args:
            attempt: how many attempts have failed.
            random: gives numbers from 0 up to 1.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, init=False)
class Exponential(Backoff):
    """Wait ``initial`` seconds, then ``factor`` times as long after each failure, up to ``maximum``.

    A random share of each delay, up to ``jitter`` of it, is left out, so that what failed together is not retried
    together.

    Args:
        initial: seconds after the first failure, not more than ``maximum``.
        factor: 1 or more.
        maximum: seconds, up to 10**9.
        jitter: from 0 to 1.

    Raises:
        InvalidOptionError: one is out of its range.
    """

    initial: float
    factor: float
    maximum: float
    jitter: float

    def __init__(self, initial: Seconds = 1, factor: float = 2, maximum: Seconds = 60, jitter: float = 0.1) -> None:
        object.__setattr__(self, "maximum", _seconds("maximum", maximum))
        object.__setattr__(self, "initial", _seconds("initial", initial))
        if self.initial > self.maximum:
            raise InvalidOptionError(f"initial={initial!r}: it must not be more than maximum={maximum!r}")
        object.__setattr__(self, "factor", _number("factor", factor, 1, math.inf, "a finite number, 1 or more"))
        object.__setattr__(self, "jitter", _number("jitter", jitter, 0, 1, "a number from 0 to 1"))

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:
        """Seconds to wait after the ``attempt``-th failed attempt; never more than ``maximum``."""
        try:
            longest = min(self.initial * self.factor ** max(attempt - 1, 0), self.maximum)
        except OverflowError:
            longest = self.maximum if self.initial else 0.0
        return longest * (1.0 - self.jitter * random())


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Fixed(Backoff):
    """Wait ``delay`` seconds after every failure; 0 is at once.

    Raises:
        InvalidOptionError: not from 0 to 10**9.
    """

    seconds: float

    def __init__(self, delay: Seconds) -> None:
        object.__setattr__(self, "seconds", _seconds("delay", delay))

    def __repr__(self) -> str:
        return f"Fixed({self.seconds!r})"

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:  # noqa: ARG002 - always the same
        """Seconds to wait, the same after every attempt."""
        return self.seconds


@dataclass(frozen=True, slots=True, init=False)
class Schedule(Backoff):
    """Wait each of ``delays`` seconds in turn; the last one repeats.

    Raises:
        InvalidOptionError: none or more than 1,000 are given, or one is not from 0 to 10**9.
    """

    delays: tuple[float, ...]

    def __init__(self, delays: Sequence[Seconds]) -> None:
        if isinstance(delays, str | bytes):
            raise InvalidOptionError(f"delays={delays!r}: it must be a sequence of seconds")
        try:
            given = tuple(delays)
        except TypeError as error:
            raise InvalidOptionError(f"delays={delays!r}: it must be a sequence of seconds") from error
        if not 1 <= len(given) <= MOST_DELAYS:
            raise InvalidOptionError(f"delays has {len(given)} entries: it must have 1 to {MOST_DELAYS}")
        seconds = tuple(_seconds(f"delays[{index}]", delay) for index, delay in enumerate(given))
        object.__setattr__(self, "delays", seconds)

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:  # noqa: ARG002 - as listed
        """Seconds to wait after the ``attempt``-th failed attempt."""
        return self.delays[min(max(attempt, 1), len(self.delays)) - 1]


_AT_ONCE: Final = Fixed(0)


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """How often a message may be handed over: `AtLeastOnce`, `ConsumeTimes` or `ConsumeOnce`; not made itself."""

    limit: int | None
    """Hand-overs allowed; None: no limit."""
    counts_at_hand_over: bool
    """Whether each attempt is recorded before the handler sees the message, so that the limit holds in a crash."""
    backoff: Backoff
    """When it is offered again after a failure; means nothing where one hand-over is all."""
    exhausted: Exhausted
    """What becomes of a message that has used up its hand-overs."""

    def __init__(self) -> None:
        raise TypeError("a policy is an AtLeastOnce, a ConsumeTimes or a ConsumeOnce")

    def allowed(self, retries: int) -> int | None:
        """Return how many hand-overs a message may have whose handler gave a schedule of so many retries.

        None: there is no limit. A handler that keeps raising the schedule ends the message itself, after ``retries`` +
        1 hand-overs. The limit comes on top, for what ends without it: a crash, or another error.
        """
        return None if self.limit is None else self.limit + retries


def _fill(policy: Policy, limit: int | None, backoff: Backoff, exhausted: Exhausted) -> None:
    if not isinstance(backoff, Exponential | Fixed | Schedule):
        # Other clients follow the stored policy: it must be one they know.
        raise InvalidOptionError(f"backoff={backoff!r}: it must be an Exponential, Fixed or Schedule")
    if exhausted not in ("dead-letter", "drop"):
        raise InvalidOptionError(f"exhausted={exhausted!r}: it must be 'dead-letter' or 'drop'")
    object.__setattr__(policy, "limit", limit)
    object.__setattr__(policy, "counts_at_hand_over", limit is not None)
    object.__setattr__(policy, "backoff", backoff)
    object.__setattr__(policy, "exhausted", exhausted)


class AtLeastOnce(Policy):
    """Offer the message until it is committed, however often it fails.

    A hand-over is counted when it ends in a rollback, a failure or a lease. One that is cut short, because its process
    dies or its session is lost, is not counted: a message that kills each of its consumers comes again with attempt 1,
    at once and without limit. `ConsumeTimes` counts those, too.

    Args:
        backoff: when it is offered again.

    Raises:
        InvalidOptionError: ``backoff`` is not one of this package's.
    """

    __slots__ = ()

    def __init__(self, *, backoff: Backoff = Exponential()) -> None:
        _fill(self, None, backoff, "dead-letter")

    def __repr__(self) -> str:
        return f"AtLeastOnce(backoff={self.backoff!r})"


class ConsumeTimes(Policy):
    """Hand the message over ``times`` times at most, counting also those that a crash ended.

    A schedule that a handler raises (`Retry`) replaces this limit: the message then gets all retries of the schedule.

    Args:
        times: 1 or more.
        backoff: when it is offered again.
        exhausted: what then becomes of it: ``"dead-letter"`` or ``"drop"``.

    Raises:
        InvalidOptionError: one is out of its range.
    """

    __slots__ = ()

    def __init__(
        self,
        times: int,
        *,
        backoff: Backoff = Exponential(),
        exhausted: Exhausted = "dead-letter",
    ) -> None:
        if type(times) is not int or not 1 <= times <= LARGEST_NUMBER:
            raise InvalidOptionError(f"times={times!r}: it must be an integer from 1 to {LARGEST_NUMBER}")
        _fill(self, times, backoff, exhausted)

    @property
    def times(self) -> int:
        """Hand-overs allowed."""
        return self.limit or 0

    def __repr__(self) -> str:
        return f"ConsumeTimes({self.limit}, backoff={self.backoff!r}, exhausted={self.exhausted!r})"


class ConsumeOnce(Policy):
    """Hand the message over once at most: never twice, even if the handler or its process dies.

    A handler that raises `Retry` gets no retry: not with a delay, and not with a schedule.

    Args:
        exhausted: what becomes of a message that failed: ``"dead-letter"`` or ``"drop"``.

    Raises:
        InvalidOptionError: ``exhausted`` is neither.
    """

    __slots__ = ()

    def __init__(self, *, exhausted: Exhausted = "dead-letter") -> None:
        _fill(self, 1, _AT_ONCE, exhausted)

    def allowed(self, retries: int) -> int | None:  # noqa: ARG002 - a schedule does not lift the promise
        """Return 1, whatever the schedule: the message is never handed over twice."""
        return 1

    def __repr__(self) -> str:
        return f"ConsumeOnce(exhausted={self.exhausted!r})"
