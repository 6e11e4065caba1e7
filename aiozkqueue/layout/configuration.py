"""A queue's configuration, stored as JSON in the queue's own znode.

``{"policy": {"kind": "consume-times", "times": 5, "exhausted": "dead-letter", "backoff": {"kind": "fixed", …}},
"shards": 4, "width": 8, "generations": {"0": [0, 1]}, "priorities": {"-5": {}, "10": {"0": [0, 1]}},
"groups": 4, "collapse": true, "ttl": 60.0, "expired": "dead-letter"}``: ``shards`` are put to, ``width`` is how many
there have ever been, ``generations`` tells the oldest and newest of the shards whose first counter is used up (see
`lanes`), ``priorities`` are those but 0 that have been put with, each with its generations, ``groups`` over how many
shards groups are spread, for good, once there have been any; ``"scheduled": true`` tells that messages have been put
for a later time, ``"counted": true`` that hand-overs were counted by an earlier policy, ``"staged": true`` that there
may be items of batches that nobody sees before these are complete.

Fields unknown here belong to newer versions and are kept when the configuration is rewritten; a policy of unknown kind
is an error, because this client could not follow it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from aiozkqueue.errors import InvalidOptionError

from .errors import MalformedError
from .fields import LARGEST_NUMBER, OBJECT_LIMIT, no_fields, read_object, unknown_fields
from .history import MOST_RECORDS, History
from .lanes import FIRST_PRIORITY, LAST_PRIORITY, MOST_GENERATIONS, MOST_SHARDS, Tier, tier_of
from .policy import (
    LONGEST_DELAY,
    AtLeastOnce,
    Backoff,
    ConsumeOnce,
    ConsumeTimes,
    Exhausted,
    Exponential,
    Fixed,
    Policy,
    Schedule,
    Seconds,
    lifetime,
    positive_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Affinity = Literal["producer", "any"]

_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "collapse": (True, False),
    "expired": ("drop", "dead-letter"),
    "affinity": ("producer", "any"),
    "ordered": (True, False),
    "paused": (True, False),
}

_WHAT: Final = "the configuration of the queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """What has been decided for a queue and all its clients.

    Args:
        policy: how often and how soon messages are offered; None: nobody has chosen yet.
        shards: over how many lanes new messages are spread, 1 to 1,024; None: as it is, 1 at first. More than one
            keeps every listing of a deep queue short, and gives up the put order between messages.
        history: what is kept of messages that have come to their end; False: nothing more from now on; None: as it is,
            nothing at first.
        clean_every: how often the queue is cleaned, seconds or a timedelta; None: as it is, five minutes at first.
        max_size: how many messages the queue takes, those claimed and those not yet due among them; 0: any number;
            None: as it is, any number at first. A put waits for room, or raises `QueueFullError`.
        collapse: whether messages of one key (or of one payload, where no key is given) that lie in the queue at a
            take are delivered as one, the newest of them; None: as it is, no at first.
        ttl: seconds that a message may wait to be taken, from when it is due; ``math.inf``: for ever; None: as it is,
            for ever at first. A put's own ``ttl=`` rules.
        affinity: ``"producer"``: a message is taken by the node that put it (`connect`'s ``node``); ``"any"``: by any;
            None: as it is, by any at first.
        reap_after: seconds after a message's date at which one that its node has left lying goes to all; None: as it
            is, ten minutes at first.
        reap_every: seconds between two looks for such, ten at the most each; None: as it is, three minutes at first.
        expired: what becomes of a message whose life has ended; None: as it is, ``"drop"`` at first.
        ordered: whether messages are handed over strictly one after the other, in the order of their puts; None: as
            it is, not at first. For order among some of the messages only, put them with ``group=``.
        paused: whether nothing is claimed, by anybody; what is held already is finished, and puts go on; None: as it
            is, not at first.

    Raises:
        InvalidOptionError: ``policy`` is not one of this package's, another setting is out of range, or ``ordered``
            comes with more than one shard.
    """

    policy: Policy | None = None
    shards: int | None = None
    history: History | Literal[False] | None = None
    clean_every: Seconds | None = None
    max_size: int | None = None
    collapse: bool | None = None
    ttl: Seconds | None = None
    expired: Exhausted | None = None
    affinity: Affinity | None = None
    reap_after: Seconds | None = None
    reap_every: Seconds | None = None
    ordered: bool | None = None
    paused: bool | None = None
    groups: int | None = field(default=None, repr=False, compare=False)
    """Over how many shards groups are spread, as many as there were at the first put with a group; None: there are no
    groups. It stays, so that a group stays where it is."""
    width: int = field(default=1, repr=False, compare=False)
    """How many shards there have ever been: consumers visit them all."""
    generations: Mapping[int, tuple[int, int]] = field(
        default_factory=dict[int, tuple[int, int]], repr=False, compare=False
    )
    """The oldest and the newest generation of each shard that has had more than one."""
    priorities: Mapping[int, Mapping[int, tuple[int, int]]] = field(
        default_factory=dict[int, dict[int, tuple[int, int]]], repr=False, compare=False
    )
    """The generations of each priority but 0 that has been put with: consumers visit them all."""
    scheduled: bool = field(default=False, repr=False, compare=False)
    """Whether a message has ever been put for a later time: consumers look for those."""
    counted: bool = field(default=False, repr=False, compare=False)
    """Whether hand-overs were counted by a policy before: an item that looks untouched may have a record of them."""
    staged: bool = field(default=False, repr=False, compare=False)
    """Whether a batch has ever been put that is seen as a whole: consumers look whether it is complete."""
    stored: Mapping[str, JsonValue] = field(default_factory=no_fields, repr=False, compare=False)
    """The JSON this was read from. `encode` keeps what is unknown here of it, so change a stored configuration with
    `dataclasses.replace`."""

    def __post_init__(self) -> None:  # noqa: C901 - one setting after the other
        if self.policy is not None and not isinstance(self.policy, AtLeastOnce | ConsumeTimes | ConsumeOnce):
            raise InvalidOptionError(
                f"policy is {type(self.policy).__name__}: it must be an AtLeastOnce, ConsumeTimes or ConsumeOnce"
            )
        if self.shards is not None and not (type(self.shards) is int and 1 <= self.shards <= MOST_SHARDS):
            raise InvalidOptionError(f"shards={self.shards!r}: it must be an integer from 1 to {MOST_SHARDS}")
        if not (self.history is None or self.history is False or isinstance(self.history, History)):
            raise InvalidOptionError(f"history={self.history!r}: it must be a History, or False for none")
        if self.max_size is not None and not (type(self.max_size) is int and 0 <= self.max_size <= LARGEST_NUMBER):
            raise InvalidOptionError(f"max_size={self.max_size!r}: it must be an integer from 0 (no limit) on")
        if self.ttl is not None:
            object.__setattr__(self, "ttl", lifetime(self.ttl))
        for name in ("clean_every", "reap_after", "reap_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_seconds(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in (None, *choices):
                words = " or ".join(repr(one) for one in choices)
                raise InvalidOptionError(f"{name}={getattr(self, name)!r}: it must be {words}")
        if self.ordered and self.collapse:
            raise InvalidOptionError("ordered=True, collapse=True: what is collapsed has no order")
        if self.ordered and (self.shards or 1) > 1:
            raise InvalidOptionError(f"ordered=True, shards={self.shards}: messages of several shards have no order")
        if self.ordered and self.affinity == "producer":
            raise InvalidOptionError("ordered=True, affinity='producer': messages of several nodes have no order")

    @property
    def grouped(self) -> bool:
        """Whether messages may be locked by groups: whoever takes has to look for that."""
        return self.groups is not None or self.ordered is not None

    @property
    def lifetime(self) -> float | None:
        """Seconds that a message may wait; None: for ever."""
        return None if self.ttl is None or self.ttl == math.inf else lifetime(self.ttl)

    def changed(self, by: QueueConfig) -> QueueConfig:
        """Return this with the settings of the other one that are not None."""
        settings = (one.name for one in fields(self) if one.default is None)
        chosen = {name: value for name in settings if (value := getattr(by, name)) is not None}
        merged = replace(self, **chosen)
        return replace(merged, counted=True) if self.counts and not merged.counts else merged

    @property
    def counts(self) -> bool:
        """Whether an item may have a record of attempts though it was not touched since its put."""
        return self.counted or (self.policy is not None and self.policy.counts_at_hand_over)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The lanes of each priority, the most urgent first."""
        generations = {**self.priorities, 0: self.generations}
        shards, width = self.shards or 1, max(self.width, self.shards or 1)
        return tuple(tier_of(priority, shards, width, generations[priority]) for priority in sorted(generations))

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every lane that may hold items, relative to the queue, the most urgent first."""
        return tuple(lane for tier in self.tiers for shard in tier.shard_lanes for lane in shard)

    def grown(self, priority: int, shard: int, oldest: int, newest: int) -> QueueConfig:
        """Return this with other generations of one shard of a priority."""
        if not priority:
            return replace(self, generations={**self.generations, shard: (oldest, newest)})
        generations = {**self.priorities.get(priority, {}), shard: (oldest, newest)}
        return replace(self, priorities={**self.priorities, priority: generations})

    def encode(self) -> bytes:
        """The bytes to store, readable in zkCli.

        Raises:
            InvalidOptionError: with all that newer versions have stored, they are more than 64 KiB.
        """
        known: dict[str, JsonValue] = {
            "policy": None if self.policy is None else _store_policy(self.policy),
            "shards": self.shards,
            "history": _store_history(self.history) if isinstance(self.history, History) else self.history,
            "clean_every": self.clean_every if isinstance(self.clean_every, float) else None,
            "width": None if self.shards is None and self.width == 1 else max(self.width, self.shards or 1),
            "groups": self.groups,
            "ordered": self.ordered,
            "paused": self.paused,
            "generations": _store_generations(self.generations) or None,
            "scheduled": self.scheduled or None,
            "counted": self.counted or None,
            "staged": self.staged or None,
            "priorities": {str(one): _store_generations(spans) for one, spans in self.priorities.items()} or None,
            "max_size": self.max_size,
            "collapse": self.collapse,
            "ttl": self.lifetime,
            "expired": self.expired,
            "affinity": self.affinity,
            "reap_after": self.reap_after if isinstance(self.reap_after, float) else None,
            "reap_every": self.reap_every if isinstance(self.reap_every, float) else None,
        }
        data = json.dumps(_overlay(self.stored, known), ensure_ascii=False, allow_nan=False).encode()
        if len(data) > OBJECT_LIMIT:
            raise InvalidOptionError(f"{_WHAT} takes {len(data)} bytes, the most is {OBJECT_LIMIT}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> QueueConfig:
        """Read a configuration; no bytes are the default one, of a queue that another program made.

        Raises:
            MalformedError: it is not a configuration that this version can follow.
        """
        if not data:
            return cls()
        stored = unknown_fields(read_object(data, _WHAT), _WHAT)
        try:
            read = _configuration.validate_python(stored)
            policy = None if read.policy is None else read.policy.policy()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise MalformedError(f"{_WHAT} cannot be followed, {where}: {first['msg']}") from error
        except InvalidOptionError as error:
            raise MalformedError(f"{_WHAT} cannot be followed: {error}") from error
        if read.ordered and max(read.width, read.shards or 1) > 1:
            raise MalformedError(f"{_WHAT} cannot be followed: it is ordered, and has several shards")
        return cls(
            policy=policy,
            shards=read.shards,
            history=read.history.history() if isinstance(read.history, _StoredHistory) else read.history,
            clean_every=read.clean_every,
            width=max(read.width, read.shards or 1),
            groups=read.groups,
            ordered=read.ordered,
            paused=read.paused,
            generations=_generations(read.generations),
            scheduled=read.scheduled,
            counted=read.counted,
            staged=read.staged,
            priorities={one: _generations(spans) for one, spans in read.priorities.items() if one},
            max_size=read.max_size,
            collapse=read.collapse,
            ttl=read.ttl,
            expired=read.expired,
            affinity=read.affinity,
            reap_after=read.reap_after,
            reap_every=read.reap_every,
            stored=stored,
        )


class _Stored(BaseModel):
    # Values are checked by the policies' own constructors; here only their types.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class _StoredExponential(_Stored):
    kind: Literal["exponential"] = "exponential"
    initial: float
    factor: float
    maximum: float
    jitter: float

    def backoff(self) -> Backoff:
        return Exponential(self.initial, self.factor, self.maximum, self.jitter)


class _StoredFixed(_Stored):
    kind: Literal["fixed"] = "fixed"
    delay: float

    def backoff(self) -> Backoff:
        return Fixed(self.delay)


class _StoredSchedule(_Stored):
    kind: Literal["schedule"] = "schedule"
    delays: list[float]

    def backoff(self) -> Backoff:
        return Schedule(self.delays)


_StoredBackoff = Annotated[_StoredExponential | _StoredFixed | _StoredSchedule, Field(discriminator="kind")]


class _StoredAtLeastOnce(_Stored):
    kind: Literal["at-least-once"] = "at-least-once"
    backoff: _StoredBackoff

    def policy(self) -> Policy:
        return AtLeastOnce(backoff=self.backoff.backoff())


class _StoredConsumeTimes(_Stored):
    kind: Literal["consume-times"] = "consume-times"
    times: int
    exhausted: Literal["dead-letter", "drop"]
    backoff: _StoredBackoff

    def policy(self) -> Policy:
        return ConsumeTimes(self.times, backoff=self.backoff.backoff(), exhausted=self.exhausted)


class _StoredConsumeOnce(_Stored):
    kind: Literal["consume-once"] = "consume-once"
    exhausted: Literal["dead-letter", "drop"]

    def policy(self) -> Policy:
        return ConsumeOnce(exhausted=self.exhausted)


def _span(span: list[int]) -> tuple[int, int]:
    oldest, newest = span
    if not 0 <= oldest <= newest < oldest + MOST_GENERATIONS:
        raise ValueError(f"generations from {oldest} to {newest}")
    return oldest, newest


_Shard = Annotated[int, Field(ge=0, lt=MOST_SHARDS, strict=False)]
_Priority = Annotated[int, Field(ge=FIRST_PRIORITY, le=LAST_PRIORITY, strict=False)]
_Span = Annotated[list[int], Field(min_length=2, max_length=2), AfterValidator(_span)]


class _StoredHistory(_Stored):
    kind: Literal["history"] = "history"
    lifetime: Annotated[float, Field(gt=0, le=LONGEST_DELAY)]
    most: Annotated[int, Field(ge=1, le=MOST_RECORDS)]
    payload: bool = False

    def history(self) -> History:
        return History(lifetime=self.lifetime, most=self.most, payload=self.payload)


class _StoredConfiguration(_Stored):
    policy: (
        Annotated[_StoredAtLeastOnce | _StoredConsumeTimes | _StoredConsumeOnce, Field(discriminator="kind")] | None
    ) = None
    shards: Annotated[int, Field(ge=1, le=MOST_SHARDS)] | None = None
    history: _StoredHistory | Literal[False] | None = None
    clean_every: Annotated[float, Field(gt=0, le=LONGEST_DELAY)] | None = None
    width: Annotated[int, Field(ge=1, le=MOST_SHARDS)] = 1
    generations: dict[_Shard, _Span] = {}
    groups: Annotated[int, Field(ge=1, le=MOST_SHARDS)] | None = None
    ordered: bool | None = None
    paused: bool | None = None
    priorities: dict[_Priority, dict[_Shard, _Span]] = {}
    scheduled: bool = False
    counted: bool = False
    staged: bool = False
    max_size: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] | None = None
    collapse: bool | None = None
    ttl: Annotated[float, Field(gt=0, le=LONGEST_DELAY)] | None = None
    expired: Literal["dead-letter", "drop"] | None = None
    affinity: Affinity | None = None
    reap_after: Annotated[float, Field(gt=0)] | None = None
    reap_every: Annotated[float, Field(gt=0)] | None = None


_configuration: Final = TypeAdapter(_StoredConfiguration)


def _generations(spans: Mapping[int, list[int]]) -> dict[int, tuple[int, int]]:
    return {shard: (span[0], span[1]) for shard, span in spans.items()}


def _store_generations(spans: Mapping[int, tuple[int, int]]) -> dict[str, JsonValue]:
    return {str(shard): list(span) for shard, span in spans.items()}


def _store_history(history: History) -> dict[str, JsonValue]:
    return _StoredHistory(lifetime=history.seconds, most=history.most, payload=history.payload).model_dump()


def _store_policy(policy: Policy) -> dict[str, JsonValue]:
    if isinstance(policy, ConsumeTimes):
        return _StoredConsumeTimes(
            times=policy.times, exhausted=policy.exhausted, backoff=_store_backoff(policy.backoff)
        ).model_dump()
    if isinstance(policy, ConsumeOnce):
        return _StoredConsumeOnce(exhausted=policy.exhausted).model_dump()
    return _StoredAtLeastOnce(backoff=_store_backoff(policy.backoff)).model_dump()


def _store_backoff(backoff: Backoff) -> _StoredExponential | _StoredFixed | _StoredSchedule:
    if isinstance(backoff, Fixed):
        return _StoredFixed(delay=backoff.seconds)
    if isinstance(backoff, Schedule):
        return _StoredSchedule(delays=list(backoff.delays))
    if isinstance(backoff, Exponential):
        return _StoredExponential(
            initial=backoff.initial, factor=backoff.factor, maximum=backoff.maximum, jitter=backoff.jitter
        )
    raise InvalidOptionError(f"{backoff!r} is not a backoff that can be stored")


def _overlay(stored: Mapping[str, JsonValue], known: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    merged = dict(stored)
    for name, value in known.items():
        before = merged.pop(name, None)
        if isinstance(value, dict) and isinstance(before, dict) and before.get("kind") == value.get("kind"):
            merged[name] = _overlay(before, value)
        elif value is not None:
            merged[name] = value
    return merged
