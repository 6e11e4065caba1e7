"""The settings of a queue that users choose. `StoredConfig` holds them in the queue's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from aiozkqueue.errors import InvalidOptionError

from .bundles import DEFAULT_BUNDLE, MOST_BUNDLED
from .fields import LARGEST_NUMBER
from .history import History
from .lanes import MOST_SHARDS
from .policy import (
    AtLeastOnce,
    ConsumeOnce,
    ConsumeTimes,
    Exhausted,
    Policy,
    Seconds,
    check_integer,
    lifetime,
    positive_seconds,
)

Affinity = Literal["producer", "any"]

_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "collapse": (True, False),
    "expired": ("drop", "dead-letter"),
    "affinity": ("producer", "any"),
    "ordered": (True, False),
    "paused": (True, False),
}

#: Maximum number of messages of a sticky queue that one check reassigns: all their bodies are in memory at once.
MOST_REAPED: Final = 1000

_INTEGERS: Final = {
    "shards": (1, MOST_SHARDS, ""),
    "bundle": (1, MOST_BUNDLED, ""),
    "max_size": (0, LARGEST_NUMBER, " (no limit)"),
    "reap_limit": (1, MOST_REAPED, ""),
}

#: The values in force of settings that are not stored, as text for people.
IN_FORCE: Final = {
    "policy": "at-least-once",
    "shards": "1",
    "bundle": "1",
    "history": "no",
    "clean_every": "5 min",
    "max_size": "unlimited",
    "collapse": "no",
    "ttl": "unlimited",
    "expired": "drop",
    "affinity": "any",
    "reap_after": "10 min",
    "reap_every": "3 min",
    "reap_limit": "10",
    "ordered": "no",
    "paused": "no",
}


def is_default(name: str, value: object) -> bool:
    """Whether a stored setting has the value of a new queue."""
    return value is None or value is False or (name == "bundle" and value == DEFAULT_BUNDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """The settings of a queue, which apply to all its clients. A setting of None keeps its stored or default value.

    Args:
        policy: how often and how soon failed messages are redelivered; None: not chosen yet.
        shards: the number of folders that store new messages, 1 to 1,024; default: 1. More than one keeps every listing
            of a deep queue short, but gives up the put order between messages.
        bundle: the maximum number of messages that one znode holds, 1 to 64. More than one makes puts, takes and
            commits of many small messages several times faster. ``ordered``, ``collapse``, ``max_size`` and
            ``affinity`` turn it off. Default: 64 for a queue that this version creates, otherwise 1.
        history: the records to keep of ended messages; False: write no more records; default: no history.
        clean_every: the interval of the queue's clean-up, in seconds or a timedelta; default: five minutes.
        max_size: the maximum number of messages, including claimed and delayed ones; 0: unlimited; default: unlimited.
            A put waits for capacity, or raises `QueueFullError`.
        collapse: compaction: whether a take delivers only the newest of the messages in the queue that have the same
            key (or the same payload, if they have no key); default: no.
        ttl: the seconds that a message may wait to be taken, from its due time; ``math.inf``: forever; default:
            forever. A put's own ``ttl=`` takes precedence.
        expired: what happens to an expired message; default: ``"drop"``.
        affinity: ``"producer"``: only the node that put a message takes it (`connect`'s ``node``); ``"any"``: any node
            may take it; default: ``"any"``.
        reap_after: the seconds after its due time until a message that its node has not taken is reassigned to all
            nodes; default: ten minutes.
        reap_every: the seconds between two checks for such messages; default: three minutes.
        reap_limit: the maximum number of messages that one check reassigns, 1 to 1,000; default: ten.
        ordered: whether messages are delivered strictly one after the other, in the order of their puts; default: no.
            For an order among some of the messages only, put them with ``group=``.
        paused: whether no client may claim messages; claimed messages are finished, and puts continue; default: no.

    Raises:
        InvalidOptionError: ``policy`` is not one of this package's, a setting is out of range, or ``ordered`` is
            combined with a setting that gives up the order of messages.
    """

    policy: Policy | None = None
    shards: int | None = None
    bundle: int | None = None
    history: History | Literal[False] | None = None
    clean_every: Seconds | None = None
    max_size: int | None = None
    collapse: bool | None = None
    ttl: Seconds | None = None
    expired: Exhausted | None = None
    affinity: Affinity | None = None
    reap_after: Seconds | None = None
    reap_every: Seconds | None = None
    reap_limit: int | None = None
    ordered: bool | None = None
    paused: bool | None = None

    def __post_init__(self) -> None:  # noqa: C901 - one check per setting
        if self.policy is not None and not isinstance(self.policy, AtLeastOnce | ConsumeTimes | ConsumeOnce):
            raise InvalidOptionError(
                f"policy is {type(self.policy).__name__}: it must be an AtLeastOnce, ConsumeTimes or ConsumeOnce"
            )
        for name, allowed in _INTEGERS.items():
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), *allowed)
        if not (self.history is None or self.history is False or isinstance(self.history, History)):
            raise InvalidOptionError(f"history={self.history!r}: it must be a History, or False for none")
        if self.ttl is not None:
            object.__setattr__(self, "ttl", lifetime(self.ttl))
        for name in ("clean_every", "reap_after", "reap_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_seconds(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            # 0 and 1 equal False and True, but are stored as numbers, which no program reads as flags.
            if value is not None and not any(type(value) is type(choice) and value == choice for choice in choices):
                words = " or ".join(repr(choice) for choice in choices)
                raise InvalidOptionError(f"{name}={value!r}: it must be {words}")
        if self.ordered and self.collapse:
            raise InvalidOptionError("ordered=True, collapse=True: collapsed messages have no order")
        if self.ordered and (self.shards or 1) > 1:
            raise InvalidOptionError(f"ordered=True, shards={self.shards}: messages of several shards have no order")
        if self.ordered and self.affinity == "producer":
            raise InvalidOptionError("ordered=True, affinity='producer': messages of several nodes have no order")
