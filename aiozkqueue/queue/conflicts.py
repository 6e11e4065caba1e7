"""Which configurations of a queue exclude each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConfigConflictError

if TYPE_CHECKING:
    from aiozkqueue.layout import Policy, QueueConfig


def check_change(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Refuse settings that contradict what is stored. Raises: ConfigConflictError."""
    _refuse_to_order(queue, config, wanted)
    _refuse_to_stick(queue, config, wanted)


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


def _refuse_to_stick(queue: str, config: QueueConfig, wanted: QueueConfig) -> None:
    """Raise ConfigConflictError when a queue with groups is to be sticky."""
    if wanted.affinity == "producer" and config.groups is not None:
        raise ConfigConflictError(
            f"queue {queue!r} has, or has had, messages with a group, which have no order where each node "
            "takes its own; take another queue for what is sticky"
        )
