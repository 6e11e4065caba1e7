"""A queue's configuration, stored as JSON in the queue's own znode.

``{"policy": {"kind": "consume-times", "times": 5, "exhausted": "dead-letter", "backoff": {"kind": "fixed", …}},
"shards": 4, "width": 8, "generations": {"0": [0, 1]}, "priorities": {"-5": {}, "10": {"0": [0, 1]}},
"groups": 4, "collapse": true, "ttl": 60.0, "expired": "dead-letter"}``

- ``shards`` is the number of shards for new messages, and ``width`` the largest number there has ever been.
- ``generations`` holds the oldest and the newest generation of each shard whose first counter is used up (see `lanes`).
- ``priorities`` holds the priorities in use except 0, each with its generations.
- ``groups`` is the number of shards for groups. It is set by the first put with a group, and never changes.
- ``"scheduled": true`` means that messages have been put with a delay, ``"counted": true`` that an earlier policy
  counted attempts, and ``"staged": true`` that there may be items of pending batches, which are invisible until the
  batch is complete.
- ``bundle`` is the maximum number of messages that producers put into one znode. ``"requires": ["bundles"]`` means that
  there may be bundles; the first producer that makes one sets it. A program that does not know a required feature
  refuses to use the queue.

Unknown fields belong to newer versions and are kept when the configuration is rewritten. A policy of unknown kind is an
error, because this client could not follow it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from pydantic_core import CoreConfig, SchemaValidator, ValidationError
from pydantic_core import core_schema as schema

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.moments import LONGEST_DELAY

from .bundles import MOST_BUNDLED
from .errors import MalformedError
from .fields import LARGEST_NUMBER, OBJECT_LIMIT, no_fields, read_object, unknown_fields, unusable
from .history import MOST_RECORDS, History
from .lanes import (
    FIRST_PRIORITY,
    LAST_PRIORITY,
    MOST_GENERATIONS,
    MOST_SHARDS,
    Tier,
    count_lanes,
    excess_of,
    lane_of,
    tier_of,
)
from .policy import (
    AtLeastOnce,
    Backoff,
    ConsumeOnce,
    ConsumeTimes,
    Exhausted,
    Exponential,
    Fixed,
    Policy,
    Schedule,
    lifetime,
)
from .settings import MOST_REAPED, Affinity, QueueConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic import JsonValue
    from pydantic_core import CoreSchema

_WHAT: Final = "the configuration of the queue"

#: The data of a deleted queue's znode. The znode stays for some time, so that its version counts on.
DELETED: Final = b'{"deleted": true}'

#: The features that a configuration may require of every program that follows it.
_KNOWN: Final = frozenset({"bundles"})


def is_deleted(data: bytes) -> bool:
    """Whether the data of a queue's znode states that the queue was deleted."""
    return data == DELETED


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConfig(QueueConfig):
    """A queue's configuration: its settings, and the facts that its clients record beside them.

    Raises: as `QueueConfig`; InvalidOptionError: shards and priorities make more than 4,096 lanes.
    """

    groups: int | None = field(default=None, repr=False, compare=False)
    """The number of shards for groups, fixed at the first put with a group, so that a group stays in its shard; None:
    there are no groups."""
    width: int = field(default=1, repr=False, compare=False)
    """The largest number of shards there has ever been; consumers visit them all."""
    generations: Mapping[int, tuple[int, int]] = field(
        default_factory=dict[int, tuple[int, int]], repr=False, compare=False
    )
    """The oldest and the newest generation of each shard that has had more than one."""
    priorities: Mapping[int, Mapping[int, tuple[int, int]]] = field(
        default_factory=dict[int, dict[int, tuple[int, int]]], repr=False, compare=False
    )
    """The generations of each priority in use except 0; consumers visit them all."""
    scheduled: bool = field(default=False, repr=False, compare=False)
    """Whether a message has ever been put with a delay; consumers search for delayed messages."""
    counted: bool = field(default=False, repr=False, compare=False)
    """Whether an earlier policy counted attempts, so that an item at version 0 may have an attempt record."""
    staged: bool = field(default=False, repr=False, compare=False)
    """Whether a batch has ever been put that is visible only when complete; consumers check that it is."""
    bundled: bool = field(default=False, repr=False, compare=False)
    """Whether there may be bundles."""
    stored: Mapping[str, JsonValue] = field(default_factory=no_fields, repr=False, compare=False)
    """The JSON that this was decoded from. `encode` keeps its unknown fields, so change a stored configuration with
    `dataclasses.replace`."""

    def __post_init__(self) -> None:
        QueueConfig.__post_init__(self)  # `super()` does not find the class that ``slots=True`` replaces
        if excess := excess_of(self._width, self._generations.values()):
            raise InvalidOptionError(f"{excess}: use fewer shards or fewer priorities")

    @property
    def settings(self) -> QueueConfig:
        """The settings alone, as users see them."""
        return QueueConfig(**{setting.name: getattr(self, setting.name) for setting in fields(QueueConfig)})

    @property
    def bundle_limit(self) -> int:
        """The maximum number of messages of a put that may share a znode; 1 if another setting excludes bundles."""
        excluded = self.ordered or self.collapse or self.max_size or self.affinity == "producer"
        return 1 if excluded or self.priorities else self.bundle or 1

    @property
    def grouped(self) -> bool:
        """Whether messages may be locked by group; consumers must check for that."""
        return self.groups is not None or self.ordered is not None

    @property
    def lifetime(self) -> float | None:
        """The seconds that a message may wait; None: forever."""
        return None if self.ttl is None or self.ttl == math.inf else lifetime(self.ttl)

    def changed(self, by: QueueConfig) -> StoredConfig:
        """Return a copy with the settings of ``by`` that are not None."""
        settings = (setting.name for setting in fields(QueueConfig))
        chosen = {name: value for name in settings if (value := getattr(by, name)) is not None}
        merged = replace(self, **chosen)
        if (by.bundle or 1) > 1 and not merged.bundled:
            merged = replace(merged, bundled=True)
        return replace(merged, counted=True) if self.counts and not merged.counts else merged

    @property
    def counts(self) -> bool:
        """Whether an item may have an attempt record even if it has not changed since its put."""
        return self.counted or (self.policy is not None and self.policy.counts_before_delivery)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The lanes of each priority, the most urgent first."""
        shards = self.shards or 1
        return tuple(
            tier_of(priority, shards, self._width, spans) for priority, spans in sorted(self._generations.items())
        )

    @property
    def lane_count(self) -> int:
        """The number of `lanes`, computed without building them."""
        return count_lanes(self._width, self._generations.values())

    @property
    def _width(self) -> int:
        return max(self.width, self.shards or 1)

    @property
    def _generations(self) -> dict[int, Mapping[int, tuple[int, int]]]:
        """The generations of each priority in use, including 0."""
        return {**self.priorities, 0: self.generations}

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every lane that may hold items, relative to the queue, the most urgent first."""
        return tuple(lane for tier in self.tiers for shard in tier.shard_lanes for lane in shard)

    def grown(self, priority: int, shard: int, oldest: int, newest: int) -> StoredConfig:
        """Return a copy with other generations of one shard of a priority."""
        if not priority:
            return replace(self, generations={**self.generations, shard: (oldest, newest)})
        generations = {**self.priorities.get(priority, {}), shard: (oldest, newest)}
        return replace(self, priorities={**self.priorities, priority: generations})

    @property
    def has_dropped_generations(self) -> bool:
        """Whether older generations, which were empty, are no longer among the `lanes`."""
        return any(oldest for spans in self._generations.values() for oldest, _ in spans.values())

    @property
    def older_lanes(self) -> tuple[str, ...]:
        """The lanes of the generations that get no new items, relative to the queue."""
        return tuple(lane for tier in self.tiers for shard in tier.shard_lanes for lane in shard[:-1])

    def without(self, empty: Collection[str]) -> StoredConfig:
        """Return this without the oldest generations of each shard that are empty; the newest one stays."""
        return replace(
            self,
            generations=_without(self.generations, 0, empty),
            priorities={priority: _without(spans, priority, empty) for priority, spans in self.priorities.items()},
        )

    def encode(self) -> bytes:
        """Return the bytes to store, readable in zkCli.

        Raises:
            InvalidOptionError: they exceed 64 KiB, together with the fields of newer versions.
        """
        known: dict[str, JsonValue] = {
            "policy": None if self.policy is None else _store_policy(self.policy),
            "shards": self.shards,
            "bundle": self.bundle,
            "requires": ["bundles"] if self.bundled else None,
            "history": _store_history(self.history) if isinstance(self.history, History) else self.history,
            "clean_every": self.clean_every if isinstance(self.clean_every, float) else None,
            "width": None if self.shards is None and self.width == 1 else self._width,
            "groups": self.groups,
            "ordered": self.ordered,
            "paused": self.paused,
            "generations": _store_generations(self.generations) or None,
            "scheduled": self.scheduled or None,
            "counted": self.counted or None,
            "staged": self.staged or None,
            "priorities": {str(key): _store_generations(spans) for key, spans in self.priorities.items()} or None,
            "max_size": self.max_size,
            "collapse": self.collapse,
            "ttl": self.lifetime,
            "expired": self.expired,
            "affinity": self.affinity,
            "reap_after": self.reap_after if isinstance(self.reap_after, float) else None,
            "reap_every": self.reap_every if isinstance(self.reap_every, float) else None,
            "reap_limit": self.reap_limit,
        }
        data = json.dumps(_overlay(self.stored, known), ensure_ascii=False, allow_nan=False).encode()
        if len(data) > OBJECT_LIMIT:
            raise InvalidOptionError(f"{_WHAT} takes {len(data)} bytes, more than {OBJECT_LIMIT}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> StoredConfig:
        """Decode a configuration; empty bytes are the default one, of a queue that another program made.

        Raises:
            MalformedError: it is not a configuration that this version can follow.
        """
        if not data:
            return cls()
        if is_deleted(data):  # it would be a configuration of defaults
            raise MalformedError(f"{_WHAT} cannot be used: the queue was deleted")
        stored = unknown_fields(read_object(data, _WHAT), _WHAT)
        try:
            read = cast("_Configuration", _configuration.validate_python(stored))
            policy = None if read["policy"] is None else _policy(read["policy"])
        except ValidationError as error:
            raise unusable(_WHAT, error) from error
        except InvalidOptionError as error:
            raise MalformedError(f"{_WHAT} cannot be used: {error}") from error
        width = max(read["width"], read["shards"] or 1)
        if read["ordered"] and width > 1:
            raise MalformedError(f"{_WHAT} cannot be used: it is ordered, and has several shards")
        if unknown := set(read["requires"]) - _KNOWN:
            raise MalformedError(
                f"{_WHAT} cannot be used: it requires {', '.join(map(repr, sorted(unknown)))}, which this version "
                "does not know"
            )
        history = read["history"]
        if excess := excess_of(width, {**read["priorities"], 0: read["generations"]}.values()):
            raise MalformedError(f"{_WHAT} cannot be used: {excess}")
        return cls(
            policy=policy,
            shards=read["shards"],
            bundle=read["bundle"],
            bundled="bundles" in read["requires"],
            history=_history(history) if isinstance(history, dict) else history,
            clean_every=read["clean_every"],
            width=width,
            groups=read["groups"],
            ordered=read["ordered"],
            paused=read["paused"],
            generations=read["generations"],
            scheduled=read["scheduled"],
            counted=read["counted"],
            staged=read["staged"],
            priorities={priority: spans for priority, spans in read["priorities"].items() if priority},
            max_size=read["max_size"],
            collapse=read["collapse"],
            ttl=read["ttl"],
            expired=read["expired"],
            affinity=read["affinity"],
            reap_after=read["reap_after"],
            reap_every=read["reap_every"],
            reap_limit=read["reap_limit"],
            stored=stored,
        )


class _Configuration(TypedDict):
    """The decoded JSON, checked except for the fields that the constructors of the policies check."""

    policy: dict[str, Any] | None
    shards: int | None
    bundle: int | None
    requires: list[str]
    history: dict[str, Any] | Literal[False] | None
    clean_every: float | None
    width: int
    generations: dict[int, tuple[int, int]]
    groups: int | None
    ordered: bool | None
    paused: bool | None
    priorities: dict[int, dict[int, tuple[int, int]]]
    scheduled: bool
    counted: bool
    staged: bool
    max_size: int | None
    collapse: bool | None
    ttl: float | None
    expired: Exhausted | None
    affinity: Affinity | None
    reap_after: float | None
    reap_every: float | None
    reap_limit: int | None


def _span(span: list[int]) -> tuple[int, int]:
    oldest, newest = span
    if not 0 <= oldest <= newest < oldest + MOST_GENERATIONS:
        raise ValueError(f"generations from {oldest} to {newest}")
    return oldest, newest


# Schemas of pydantic's core: building models takes longer than importing the rest of the layout.
_STRICT: Final = CoreConfig(strict=True, allow_inf_nan=False)


def _kind(kind: str, **more: CoreSchema) -> CoreSchema:
    """Return the schema of an object of this kind with these fields."""
    return _object(kind=schema.literal_schema([kind]), **more)


def _object(**fields: CoreSchema) -> CoreSchema:
    return schema.typed_dict_schema(
        {name: schema.typed_dict_field(shape) for name, shape in fields.items()}, config=_STRICT, strict=True
    )


def _default(value: object, shape: CoreSchema) -> CoreSchema:
    """Return the schema of a field with a default."""
    return schema.with_default_schema(shape, default=value)


def _optional(shape: CoreSchema) -> CoreSchema:
    return _default(None, schema.nullable_schema(shape))


def _choice(*values: str) -> CoreSchema:
    return schema.literal_schema(list(values))


_NUMBER: Final = schema.float_schema()
_BOOL: Final = schema.bool_schema()
_SHARDS: Final = schema.int_schema(ge=1, le=MOST_SHARDS)
_ENDING: Final = _choice("dead-letter", "drop")
_TIME: Final = schema.float_schema(gt=0, le=LONGEST_DELAY)
_BACKOFF: Final = schema.tagged_union_schema(
    {
        "exponential": _kind("exponential", initial=_NUMBER, factor=_NUMBER, maximum=_NUMBER, jitter=_NUMBER),
        "fixed": _kind("fixed", delay=_NUMBER),
        "schedule": _kind("schedule", delays=schema.list_schema(_NUMBER)),
    },
    "kind",
)
_POLICY: Final = schema.tagged_union_schema(
    {
        "at-least-once": _kind("at-least-once", backoff=_BACKOFF),
        "consume-times": _kind("consume-times", times=schema.int_schema(), exhausted=_ENDING, backoff=_BACKOFF),
        "consume-once": _kind("consume-once", exhausted=_ENDING),
    },
    "kind",
)
_HISTORY: Final = _object(
    kind=_default("history", _choice("history")),
    lifetime=_TIME,
    most=schema.int_schema(ge=1, le=MOST_RECORDS),
    payload=_default(False, _BOOL),  # noqa: FBT003 - a value
)
_GENERATIONS: Final = schema.dict_schema(
    schema.int_schema(ge=0, lt=MOST_SHARDS, strict=False),
    schema.no_info_after_validator_function(_span, schema.list_schema(schema.int_schema(), min_length=2, max_length=2)),
)
_configuration: Final = SchemaValidator(
    _object(
        policy=_optional(_POLICY),
        shards=_optional(_SHARDS),
        bundle=_optional(schema.int_schema(ge=1, le=MOST_BUNDLED)),
        requires=schema.with_default_schema(schema.list_schema(schema.str_schema()), default_factory=list),
        history=_optional(schema.union_schema([(_HISTORY, "kept"), schema.literal_schema([False])])),
        clean_every=_optional(_TIME),
        width=_default(1, _SHARDS),
        generations=schema.with_default_schema(_GENERATIONS, default_factory=dict),
        groups=_optional(_SHARDS),
        ordered=_optional(_BOOL),
        paused=_optional(_BOOL),
        priorities=schema.with_default_schema(
            schema.dict_schema(schema.int_schema(ge=FIRST_PRIORITY, le=LAST_PRIORITY, strict=False), _GENERATIONS),
            default_factory=dict,
        ),
        scheduled=_default(False, _BOOL),  # noqa: FBT003 - a value
        counted=_default(False, _BOOL),  # noqa: FBT003 - a value
        staged=_default(False, _BOOL),  # noqa: FBT003 - a value
        max_size=_optional(schema.int_schema(ge=0, le=LARGEST_NUMBER)),
        collapse=_optional(_BOOL),
        ttl=_optional(_TIME),
        expired=_optional(_ENDING),
        affinity=_optional(_choice("producer", "any")),
        reap_after=_optional(schema.float_schema(gt=0)),
        reap_every=_optional(schema.float_schema(gt=0)),
        reap_limit=_optional(schema.int_schema(ge=1, le=MOST_REAPED)),
    ),
    _STRICT,
)


def _policy(stored: Mapping[str, Any]) -> Policy:
    if stored["kind"] == "consume-once":
        return ConsumeOnce(exhausted=stored["exhausted"])
    backoff = _backoff(stored["backoff"])
    if stored["kind"] == "consume-times":
        return ConsumeTimes(stored["times"], backoff=backoff, exhausted=stored["exhausted"])
    return AtLeastOnce(backoff=backoff)


def _backoff(stored: Mapping[str, Any]) -> Backoff:
    if stored["kind"] == "fixed":
        return Fixed(stored["delay"])
    if stored["kind"] == "schedule":
        return Schedule(stored["delays"])
    return Exponential(stored["initial"], stored["factor"], stored["maximum"], stored["jitter"])


def _history(stored: Mapping[str, Any]) -> History:
    return History(lifetime=stored["lifetime"], most=stored["most"], payload=stored["payload"])


def _without(spans: Mapping[int, tuple[int, int]], priority: int, empty: Collection[str]) -> dict[int, tuple[int, int]]:
    """Leave out the oldest generations of a priority's shards that are empty."""
    remaining: dict[int, tuple[int, int]] = {}
    for shard, (oldest, newest) in spans.items():
        older = range(oldest, newest)
        first = next((generation for generation in older if lane_of(shard, generation, priority) not in empty), newest)
        remaining[shard] = (first, newest)
    return remaining


def _store_generations(spans: Mapping[int, tuple[int, int]]) -> dict[str, JsonValue]:
    return {str(shard): list(span) for shard, span in spans.items()}


def _store_history(history: History) -> dict[str, JsonValue]:
    return {"kind": "history", "lifetime": history.seconds, "most": history.most, "payload": history.payload}


def _store_policy(policy: Policy) -> dict[str, JsonValue]:
    if isinstance(policy, ConsumeTimes):
        backoff = _store_backoff(policy.backoff)
        return {"kind": "consume-times", "times": policy.times, "exhausted": policy.exhausted, "backoff": backoff}
    if isinstance(policy, ConsumeOnce):
        return {"kind": "consume-once", "exhausted": policy.exhausted}
    return {"kind": "at-least-once", "backoff": _store_backoff(policy.backoff)}


def _store_backoff(backoff: Backoff) -> dict[str, JsonValue]:
    if isinstance(backoff, Fixed):
        return {"kind": "fixed", "delay": float(backoff.seconds)}
    if isinstance(backoff, Schedule):
        return {"kind": "schedule", "delays": [float(delay) for delay in backoff.delays]}
    if isinstance(backoff, Exponential):
        return {
            "kind": "exponential",
            "initial": float(backoff.initial),
            "factor": float(backoff.factor),
            "maximum": float(backoff.maximum),
            "jitter": float(backoff.jitter),
        }
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
