"""Which configurations of a queue exclude each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConfigConflictError, InvalidOptionError, QueueFullError
from aiozkqueue.layout import MOST_LANES, excess_of

if TYPE_CHECKING:
    from aiozkqueue.layout import Policy, QueueConfig


def check_change(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Refuse settings that contradict what is stored.

    Raises: ConfigConflictError; InvalidOptionError: more shards than the priorities of the queue leave room for.
    """
    _refuse_to_order(queue, config, wanted)
    _refuse_to_widen(queue, config, wanted)
    _refuse_to_stick(queue, config, wanted)


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
        "leave the policy out, or change it with `await queue.configure(QueueConfig(policy=...))`"
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
