"""Policies: how often and how soon a failed message is redelivered, and what happens when its attempts are used up.

Policies belong to a queue and are stored in its configuration, so they are values: frozen, comparable, hashable.
"""

from __future__ import annotations

import math
import random as randomness
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from aiozkqueue.arguments import collection, is_choice
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.moments import LONGEST_DELAY

from .fields import LARGEST_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Seconds: TypeAlias = "float | timedelta"
Exhausted: TypeAlias = Literal["dead-letter", "drop"]

SHORTEST_LIFE: Final = 0.001
"""Minimum lifetime of a message in seconds: the time of expiry is stored in milliseconds."""

MOST_DELAYS: Final = 1_000
"""Maximum number of delays in a `Schedule`, which is stored in the queue's configuration."""


def _seconds(option: str, value: Seconds) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _number(option, value, 0, LONGEST_DELAY, "seconds from 0 to 10**9, as a number or timedelta")


def positive_seconds(option: str, value: Seconds) -> float:
    """Return a positive duration in seconds.

    Raises:
        InvalidOptionError: it is not a number or timedelta of more than 0 and up to 10**9 seconds.
    """
    seconds = _seconds(option, value)
    if not seconds:
        raise InvalidOptionError(f"{option}={value!r}: it must be more than 0 seconds")
    return seconds


def check_integer(option: str, value: object, least: int, most: int, meaning: str = "") -> None:
    """Check that a value is an integer within bounds; errors add ``meaning`` to the least value.

    Raises: InvalidOptionError: it is not an integer from ``least`` to ``most``.
    """
    if type(value) is not int or not least <= value <= most:
        raise InvalidOptionError(f"{option}={value!r}: it must be an integer from {least}{meaning} to {most}")


def lifetime(value: Seconds) -> float:
    """Return a lifetime in seconds; ``math.inf``: unlimited. Raises: InvalidOptionError."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    allowed = f"seconds from {SHORTEST_LIFE:g} to 10**9, as a number or timedelta, or math.inf (forever)"
    number = value.total_seconds() if isinstance(value, timedelta) else value
    return _number("ttl", number, SHORTEST_LIFE, LONGEST_DELAY, allowed)


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
    """The delay before a failed message is redelivered: `Exponential`, `Fixed` or `Schedule`."""

    __slots__ = ()

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:
        """Return the seconds to wait after the ``attempt``-th failed attempt, the first being 1.

        Args:
            attempt: the number of failed attempts.
            random: returns numbers from 0 up to but excluding 1.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, init=False)
class Exponential(Backoff):
    """Wait ``initial`` seconds, then ``factor`` times as long after each further failure, up to ``maximum``.

    Each delay is reduced by a random share of up to ``jitter``, so that messages that failed together are not retried
    together.

    Args:
        initial: the seconds after the first failure, at most ``maximum``.
        factor: the growth per failure, 1 or more.
        maximum: the maximum delay in seconds, up to 10**9.
        jitter: the maximum random reduction, from 0 to 1.

    Raises:
        InvalidOptionError: an argument is out of range.
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
        """Return the seconds to wait after the ``attempt``-th failed attempt; never more than ``maximum``."""
        try:
            longest = min(self.initial * self.factor ** max(attempt - 1, 0), self.maximum)
        except OverflowError:
            longest = self.maximum if self.initial else 0.0
        return longest * (1.0 - self.jitter * random())


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Fixed(Backoff):
    """Wait ``delay`` seconds after every failure; 0: redeliver immediately.

    Raises:
        InvalidOptionError: the delay is not from 0 to 10**9.
    """

    seconds: float

    def __init__(self, delay: Seconds) -> None:
        object.__setattr__(self, "seconds", _seconds("delay", delay))

    def __repr__(self) -> str:
        return f"Fixed({self.seconds!r})"

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:  # noqa: ARG002 - fixed
        """Return the seconds to wait, the same after every attempt."""
        return self.seconds


@dataclass(frozen=True, slots=True, init=False)
class Schedule(Backoff):
    """Wait the seconds in ``delays`` in turn; the last delay repeats.

    Raises:
        InvalidOptionError: there are no delays or more than 1,000, or one is not from 0 to 10**9.
    """

    delays: tuple[float, ...]

    def __init__(self, delays: Sequence[Seconds]) -> None:
        try:
            items = tuple(collection(delays, "delays", "seconds"))
        except InvalidOptionError as error:
            raise InvalidOptionError(f"delays={delays!r}: it must be a sequence of seconds") from error
        if not 1 <= len(items) <= MOST_DELAYS:
            raise InvalidOptionError(f"delays has {len(items)} entries: it must have 1 to {MOST_DELAYS}")
        seconds = tuple(_seconds(f"delays[{index}]", delay) for index, delay in enumerate(items))
        object.__setattr__(self, "delays", seconds)

    def delay(self, attempt: int, random: Callable[[], float] = randomness.random) -> float:  # noqa: ARG002 - as listed
        """Return the seconds to wait after the ``attempt``-th failed attempt."""
        return self.delays[min(max(attempt, 1), len(self.delays)) - 1]


_AT_ONCE: Final = Fixed(0)


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """The base of `AtLeastOnce`, `ConsumeTimes` and `ConsumeOnce`: how often a message may be delivered. Abstract."""

    limit: int | None
    """The maximum number of attempts; None: unlimited."""
    counts_before_delivery: bool
    """Whether each attempt is recorded before delivery, so that the limit holds even after a crash."""
    backoff: Backoff
    """The delay before a failed message is redelivered; unused if there is only one attempt."""
    exhausted: Exhausted
    """What happens to a message that has used up its attempts."""

    def __init__(self) -> None:
        raise TypeError("a policy is an AtLeastOnce, a ConsumeTimes or a ConsumeOnce")

    def allowed(self, retries: int) -> int | None:
        """Return the maximum number of attempts at a message whose handler gave a schedule of ``retries`` retries.

        None: unlimited. A handler that keeps raising the schedule ends the message itself, after ``retries`` + 1
        attempts. The policy's limit is added for attempts that end otherwise: in a crash, or in another error.
        """
        return None if self.limit is None else self.limit + retries


def _fill(policy: Policy, limit: int | None, backoff: Backoff, exhausted: Exhausted) -> None:
    if not isinstance(backoff, Exponential | Fixed | Schedule):
        # Other clients follow the stored policy, so it must be one that they know.
        raise InvalidOptionError(f"backoff={backoff!r}: it must be an Exponential, Fixed or Schedule")
    if not is_choice(exhausted, "dead-letter", "drop"):
        raise InvalidOptionError(f"exhausted={exhausted!r}: it must be 'dead-letter' or 'drop'")
    object.__setattr__(policy, "limit", limit)
    object.__setattr__(policy, "counts_before_delivery", limit is not None)
    object.__setattr__(policy, "backoff", backoff)
    object.__setattr__(policy, "exhausted", exhausted)


class AtLeastOnce(Policy):
    """Redeliver the message until it is committed, however often it fails.

    An attempt is counted when it ends in a rollback or a failure, and a lease when it begins. An attempt that is cut
    short because the process dies or the session is lost is not counted. So a message that kills each of its consumers
    is redelivered with attempt 1, immediately and without limit. `ConsumeTimes` counts such attempts too.

    Args:
        backoff: the delay before a failed message is redelivered.

    Raises:
        InvalidOptionError: ``backoff`` is not one of this package's.
    """

    __slots__ = ()

    def __init__(self, *, backoff: Backoff = Exponential()) -> None:
        _fill(self, None, backoff, "dead-letter")

    def __repr__(self) -> str:
        return f"AtLeastOnce(backoff={self.backoff!r})"


class ConsumeTimes(Policy):
    """Deliver the message up to ``times`` times, counting attempts that end in a crash.

    A schedule that a handler raises (`Retry`) replaces this limit: the message then gets all retries of the schedule.

    Args:
        times: the maximum number of attempts, 1 or more.
        backoff: the delay before a failed message is redelivered.
        exhausted: what happens to the message after the last attempt: ``"dead-letter"`` or ``"drop"``.

    Raises:
        InvalidOptionError: an argument is out of range.
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
        """The maximum number of attempts."""
        return self.limit or 0

    def __repr__(self) -> str:
        return f"ConsumeTimes({self.limit}, backoff={self.backoff!r}, exhausted={self.exhausted!r})"


class ConsumeOnce(Policy):
    """Deliver the message at most once: never twice, even if the handler or its process dies.

    A handler that raises `Retry` gets no retry, neither after a delay nor by a schedule.

    Args:
        exhausted: what happens to a failed message: ``"dead-letter"`` or ``"drop"``.

    Raises:
        InvalidOptionError: ``exhausted`` is neither of the two.
    """

    __slots__ = ()

    def __init__(self, *, exhausted: Exhausted = "dead-letter") -> None:
        _fill(self, 1, _AT_ONCE, exhausted)

    def allowed(self, retries: int) -> int | None:  # noqa: ARG002 - a schedule does not lift the limit
        """Return 1, whatever the schedule: the message is never delivered twice."""
        return 1

    def __repr__(self) -> str:
        return f"ConsumeOnce(exhausted={self.exhausted!r})"
