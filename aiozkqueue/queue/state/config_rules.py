"""Which configurations of a queue exclude each other, and which policy a session asks for. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aiozkqueue.errors import ConfigConflictError, InvalidOptionError, QueueFullError
from aiozkqueue.layout import MOST_LANES, QueueConfig, excess_of

if TYPE_CHECKING:
    from aiozkqueue.layout import Policy


class PolicyChoice:
    """The policy that one session asks for on one queue, until the stored one is known."""

    __slots__ = ("_granted", "_preferred", "_queue", "required")

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.required: Policy | None = None
        """Asked for, and to be stored or found to conflict; None: nothing is open."""
        self._preferred: Policy | None = None
        self._granted: set[Policy] = set()  # those that were asked for, and in force then

    @property
    def initial(self) -> Policy | None:
        """What to store with a queue that has none."""
        return self.required or self._preferred

    def require(self, policy: Policy, stored: Policy | None) -> bool:
        """Ask for a policy, beside the one known to be stored; return whether the queue has to be read for that.

        A policy that was in force when it was asked for may be asked for again after `configure` has put another in its
        place: that one is followed, and running code goes on.

        Raises:
            InvalidOptionError: it is none.
            ConfigConflictError: another policy is stored, or was asked for.
        """
        QueueConfig(policy=policy)  # takes only what can be stored
        if policy in self._granted or policy == self.required:
            return False
        other = self.required or stored
        if other is not None and other != policy:
            raise policies_conflict(self._queue, policy, other)
        if stored == policy:
            self._granted.add(policy)
            return False
        self.required = policy
        return True

    def prefer(self, policy: Policy) -> bool:
        """Ask for a policy in case that none is stored; return whether that is new. Raises: InvalidOptionError."""
        QueueConfig(policy=policy)
        other, self._preferred = self._preferred, policy
        return other != policy

    def compare(self, stored: Policy | None) -> None:
        """Take note of what is stored; what was required must be that. Raises: ConfigConflictError."""
        required = self.required
        if required is not None and stored not in (None, required):
            self.required = None
            assert stored is not None  # noqa: S101 - for the type checker
            raise policies_conflict(self._queue, required, stored)

    def settled(self) -> None:
        """What was required is stored."""
        if self.required is not None:
            self.grant(self.required)

    def grant(self, policy: Policy) -> None:
        """Forget what was required: this policy holds, and may be asked for from now on."""
        self._granted.add(policy)
        self.required = None


def check_change(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Refuse settings that contradict what is stored.

    Raises: ConfigConflictError; InvalidOptionError: more shards than the priorities of the queue leave room for.
    """
    _refuse_to_order(queue, config, wanted)
    _refuse_to_widen(queue, config, wanted)
    _refuse_to_stick(queue, config, wanted)


def with_lane(queue: str, config: QueueConfig, priority: int, *, scheduled: bool) -> QueueConfig:
    """Return the configuration that a queue needs for messages of a priority, and for messages with a delay.

    Raises: InvalidOptionError: the queue is ordered, or would have too many lanes.
    """
    if config.ordered and (priority or scheduled):
        msg = (
            f"queue {queue!r} is ordered: its messages are handed over in the order of their puts; "
            f"leave {'delay= and at=' if scheduled else 'priority='} out"
        )
        raise InvalidOptionError(msg)
    if scheduled and not config.scheduled:
        config = replace(config, scheduled=True)
    if priority and priority not in config.priorities:
        check_priority(queue, config, priority)
        config = replace(config, priorities={**config.priorities, priority: {}})
    return config


def check_priority(queue: str, config: QueueConfig, priority: int) -> None:
    """Refuse a priority that would give the queue too many lanes. Raises: InvalidOptionError."""
    number = config.lane_count + max(config.width, config.shards or 1)
    if number > MOST_LANES:
        used = ", ".join(map(str, sorted({*config.priorities, 0})))
        raise InvalidOptionError(
            f"queue {queue!r}: priority={priority} would make {number} lanes, the most is {MOST_LANES}; "
            f"put with one of the priorities in use ({used}), or into a queue with fewer shards"
        )


def check_generation(queue: str, config: QueueConfig, lane: str, emptied: int) -> None:
    """Refuse another generation of a shard where the queue would have too many lanes, less those that are emptied.

    Raises: QueueFullError.
    """
    if config.lane_count - emptied >= MOST_LANES:
        raise QueueFullError(
            f"queue {queue!r}: the counter of lane {lane} is used up, and {config.lane_count} lanes may hold messages, "
            f"the most is {MOST_LANES}; consume what waits, or put into another queue"
        )


def policies_conflict(queue: str, wanted: Policy, stored: Policy) -> ConfigConflictError:
    """Make the error for a policy that is asked for beside another that is stored."""
    return ConfigConflictError(
        f"queue {queue!r} has the policy {stored}, not {wanted}; "
        "leave the policy out, or change it for all with `await queue.configure(QueueConfig(policy=...))`: what runs "
        "goes on with the new one, and what starts must name that or none"
    )


def _refuse_to_order(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError when what is wanted has no order beside what is stored."""
    if not (config.ordered if wanted.ordered is None else wanted.ordered):
        return
    disorders = {
        "several shards": max(config.width, wanted.shards or config.shards or 1) > 1,
        "messages with a priority": bool(config.priorities),
        "messages for a later time": config.scheduled,
        "messages that collapse": config.collapse if wanted.collapse is None else wanted.collapse,
    }
    for disorder, present in disorders.items():
        if present:
            raise ConfigConflictError(
                f"queue {queue!r} has, or has had, {disorder}, which have no order of puts; "
                "take another queue for what is ordered, or put with group= instead"
            )


def _refuse_to_widen(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Raise InvalidOptionError when what is wanted would make too many lanes beside what is stored."""
    if wanted.shards is None or wanted.shards <= max(config.width, config.shards or 1):
        return
    tiers = {**config.priorities, 0: config.generations}
    if excess := excess_of(wanted.shards, tiers.values()):
        most = MOST_LANES // len(tiers)
        raise InvalidOptionError(f"queue {queue!r}: {excess}; ask for at most {most} shards, or take another queue")


def _refuse_to_stick(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError when a queue with groups is to be sticky."""
    if wanted.affinity == "producer" and config.groups is not None:
        raise ConfigConflictError(
            f"queue {queue!r} has, or has had, messages with a group, which have no order where each node "
            "takes its own; take another queue for what is sticky"
        )
