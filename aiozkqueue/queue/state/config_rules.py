"""The rules for which settings of a queue conflict, and the policy that a session requests. Pure."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from aiozkqueue.errors import ConfigConflictError, InvalidOptionError, QueueFullError
from aiozkqueue.layout import MOST_GENERATIONS, MOST_LANES, SPARE_LANES, QueueConfig, excess_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozkqueue.layout import Policy, StoredConfig

#: Lanes that an error names.
_NAMED = 3


class PolicyChoice:
    """The policy that one session requests for one queue, until the stored policy is known, and its other settings."""

    __slots__ = ("_granted", "_in_use", "_preferred", "_queue", "_refused", "entry", "groups", "required", "settings")

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.required: Policy | None = None
        """The requested policy, still to be stored; None: nothing is pending."""
        self._refused = False  # whether the requested policy conflicts with the stored one
        self._in_use = False  # whether the queue has been used without a conflict
        self._preferred: Policy | None = None
        self._granted: set[Policy] = set()  # the policies that were in force when requested
        self.settings: QueueConfig = QueueConfig()
        """The other settings of the queue if this session creates it."""
        self.entry: str | None = None
        """The path of the znode that registers the queue, and is created with it; None if the queue has none."""
        self.groups: bool = False
        """Whether the queue needs groups."""

    @property
    def initial(self) -> Policy | None:
        """The policy to store with a queue that has none."""
        return self.required or self._preferred

    def require(self, policy: Policy, stored: Policy | None) -> bool:
        """Request a policy; ``stored`` is the stored one, if known. Return whether the queue must be read to decide.

        A policy that was in force when it was requested may be requested again after `configure` has replaced it. The
        new policy then applies, and running code continues.

        Raises:
            InvalidOptionError: the policy is invalid.
            ConfigConflictError: another policy is stored, or has been requested.
        """
        QueueConfig(policy=policy)  # validates the policy
        if policy in self._granted or policy == self.required:
            return False
        other = stored if self._refused else self.required or stored
        if other is not None and other != policy:
            raise policies_conflict(self._queue, policy, other)
        if stored == policy:
            self._granted.add(policy)
            return False
        self.required = policy
        return True

    def prefer(self, policy: Policy) -> bool:
        """Request a policy for a queue without one; return whether the request is new. Raises: InvalidOptionError."""
        QueueConfig(policy=policy)
        previous, self._preferred = self._preferred, policy
        return previous != policy

    def compare(self, stored: Policy | None) -> None:
        """Check the stored policy against the required one.

        If the queue has not been used before, the request stands: each use raises the error, until the policies agree
        or this session requests another. Work in progress does not suffer from a later request.

        Raises: ConfigConflictError.
        """
        required = self.required
        self._refused = required is not None and stored not in (None, required)
        if required is not None and stored is not None and self._refused:
            if self._in_use:
                self.required, self._refused = None, False
            raise policies_conflict(self._queue, required, stored)

    @contextmanager
    def replacing(self, policy: Policy | None) -> Iterator[None]:
        """Accept any policy while it is replaced by this one (None: it stays), which this session may then request."""
        if policy is None:
            yield
            return
        before = self.required, self._in_use
        self.required = None
        try:
            yield
        except BaseException:  # a cancellation too, which leaves the earlier request in force
            self.required, self._in_use = before
            raise
        self.grant(policy)

    def settled(self) -> None:
        """Record that the required policy is stored, if there is one."""
        self._in_use = True
        if self.required is not None:
            self._preferred = self.required  # for the next queue of this name, if this one is deleted
            self.grant(self.required)

    def grant(self, policy: Policy) -> None:
        """Record that this policy is in force and may be requested from now on; nothing is required any more."""
        self._granted.add(policy)
        self.required = None


def check_change(queue: str, config: StoredConfig, wanted: QueueConfig) -> None:
    """Check new settings against the stored ones.

    Raises: ConfigConflictError; InvalidOptionError: too many shards for the number of priorities of the queue.
    """
    _refuse_to_order(queue, config, wanted)
    _refuse_to_widen(queue, config, wanted)
    _refuse_affinity(queue, config, wanted)
    _refuse_to_bundle(queue, config, wanted)


def with_lane(queue: str, config: StoredConfig, priority: int, *, scheduled: bool) -> StoredConfig:
    """Return the configuration that a queue needs for messages of a priority, and for messages with a delay.

    Raises: InvalidOptionError: the queue is ordered, or would have too many lanes.
    """
    if config.ordered and (priority or scheduled):
        msg = (
            f"queue {queue!r} is ordered: its messages are delivered in the order of their puts; leave "
            f"{'delay= and at=' if scheduled else 'priority='} out"
        )
        raise InvalidOptionError(msg)
    if scheduled and not config.scheduled:
        config = replace(config, scheduled=True)
    if priority and priority not in config.priorities:
        check_priority(queue, config, priority)
        config = replace(config, priorities={**config.priorities, priority: {}})
    return config


def check_priority(queue: str, config: StoredConfig, priority: int) -> None:
    """Check that a new priority does not give the queue too many lanes. Raises: InvalidOptionError."""
    width = max(config.width, config.shards or 1)
    number = config.lane_count + width
    if width * (len(config.priorities) + 2) > MOST_LANES or number > MOST_LANES + SPARE_LANES:
        used = ", ".join(map(str, sorted({*config.priorities, 0})))
        raise InvalidOptionError(
            f"queue {queue!r}: priority={priority} would make {number} lanes, more than {MOST_LANES}; put with one of "
            f"the priorities in use ({used}), or into a queue with fewer shards"
        )


def check_generation(queue: str, config: StoredConfig, lane: str) -> None:
    """Check that a new generation of a shard does not give the queue too many lanes.

    Raises: QueueFullError.
    """
    if is_full(config):
        older = config.older_lanes
        raise QueueFullError(
            f"queue {queue!r}: the counter of lane {lane} is used up, and the queue has {config.lane_count} lanes, "
            f"the maximum; consume the messages in its {len(older)} older lanes ({_some(older)}), "
            "or put into another queue"
        )


def check_span(queue: str, lane: str, generations: Sequence[str]) -> None:
    """Reject another generation of a shard that already has too many; none of them can be given up.

    Raises: QueueFullError.
    """
    if len(generations) >= MOST_GENERATIONS:
        raise QueueFullError(
            f"queue {queue!r}: the counter of lane {lane} is used up, and its shard has messages in "
            f"{len(generations)} lanes, the maximum; consume those in the older ones "
            f"({_some(generations)}), or put into another queue"
        )


def is_full(config: StoredConfig) -> bool:
    """Whether a queue has too many lanes for another generation of any shard."""
    return config.lane_count >= MOST_LANES + SPARE_LANES


def _some(lanes: Sequence[str]) -> str:
    return ", ".join(lanes[:_NAMED]) + (", …" if len(lanes) > _NAMED else "")


def policies_conflict(queue: str, wanted: Policy, stored: Policy) -> ConfigConflictError:
    """Return the error for a policy that differs from the stored one."""
    return ConfigConflictError(
        f"queue {queue!r} has the policy {stored}, not {wanted}; "
        "leave the policy out, or change it for all with `await queue.configure(QueueConfig(policy=...))` or "
        f"`aiozkqueue configure {queue} --policy POLICY`: running programs follow the new one, and a program that "
        "starts must name the new one or none"
    )


def _refuse_to_order(queue: str, config: StoredConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError if the queue is to become ordered and its settings or history prevent that."""
    if not (config.ordered if wanted.ordered is None else wanted.ordered):
        return
    conflicts = {
        "several shards": max(config.width, wanted.shards or config.shards or 1) > 1,
        "messages with a priority": bool(config.priorities),
        "messages for a later time": config.scheduled,
        "messages that collapse": config.collapse if wanted.collapse is None else wanted.collapse,
    }
    for conflict, present in conflicts.items():
        if present:
            raise ConfigConflictError(
                f"queue {queue!r} has, or has had, {conflict}, which are not in the order of their puts; use another "
                "queue for ordered messages, or put with group= instead"
            )


def _refuse_to_widen(queue: str, config: StoredConfig, wanted: QueueConfig) -> None:
    """Raise InvalidOptionError if the wanted shards would make too many lanes."""
    if wanted.shards is None or wanted.shards <= max(config.width, config.shards or 1):
        return
    tiers = {**config.priorities, 0: config.generations}
    if excess := excess_of(wanted.shards, tiers.values()):
        most = MOST_LANES // len(tiers)
        raise InvalidOptionError(f"queue {queue!r}: {excess}; use at most {most} shards, or another queue")


def _refuse_to_bundle(queue: str, config: StoredConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError if a queue is to have bundles together with a setting that excludes them."""
    changed = config.changed(wanted)
    if changed.bundled and (setting := _against_bundles(changed)) is not None:
        raise ConfigConflictError(
            f"queue {queue!r}: {setting} excludes bundles, which hold several messages in one znode; leave "
            f"bundle= out, or turn bundles off with `aiozkqueue unbundle {queue}`"
        )


def excludes_bundles(config: StoredConfig, wanted: QueueConfig) -> bool:
    """Whether new settings need a queue without bundles, and it may have some."""
    return config.bundled and wanted.bundle is None and _against_bundles(config.changed(wanted)) is not None


def _against_bundles(config: QueueConfig) -> str | None:
    """Return the setting that excludes bundles, if there is one."""
    settings = {
        "ordered=True": config.ordered,
        "collapse=True": config.collapse,
        "max_size": config.max_size,
        "affinity='producer'": config.affinity == "producer",
    }
    return next((setting for setting, present in settings.items() if present), None)


def _refuse_affinity(queue: str, config: StoredConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError if a queue with groups is to become sticky."""
    if wanted.affinity == "producer" and config.groups is not None:
        raise ConfigConflictError(
            f"queue {queue!r} has, or has had, messages with a group, which cannot be ordered if each node takes its "
            "own messages; use another queue for sticky messages"
        )
