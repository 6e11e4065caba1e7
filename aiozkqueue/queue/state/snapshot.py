"""A session's view of a queue's configuration: one immutable value, replaced as a whole by each read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from aiozkqueue.layout import AtLeastOnce
from aiozkqueue.zookeeper import NO_VERSION, Check

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.layout import Policy, StoredConfig, Tier
    from aiozkqueue.zookeeper import Operation

    from .hooks import CapacityLimit, EndHook
    from .lanes import PutLanes

DEFAULT_POLICY: Final = AtLeastOnce()


class Revision(NamedTuple):
    """Distinguishes a configuration from every other one of a queue of this name."""

    created: int
    """The zxid that created the queue's znode: a queue that is deleted and created again counts its versions from 0."""
    version: int
    """The version of the configuration."""


#: Before the first read: a change that was made without the configuration is refused.
NO_REVISION: Final = Revision(0, NO_VERSION)


@dataclass(frozen=True, slots=True, eq=False)
class QueueSnapshot:
    """A configuration, its revision, and the hooks that the queue's features take from it."""

    config: StoredConfig
    policy: Policy
    """The policy in force."""
    tiers: tuple[Tier, ...]
    """The lanes that may hold items, by priority, the most urgent first."""
    lanes: PutLanes
    """The lanes for new items."""
    revision: Revision
    """The revision of the configuration."""
    check: Operation
    """A check that the configuration is still this one."""
    bundle: int = 1
    """The maximum number of messages of a put that may share a znode; 1: each has its own."""
    grouped: bool = False
    """See `StoredConfig.grouped`."""
    counts: bool = False
    """See `StoredConfig.counts`."""
    accepts: Callable[[str], bool] | None = None
    """Whether this session accepts an item, given its name; None: it accepts every item."""
    transform_put: Callable[[Any], Any] | None = None
    """Applies the configuration to a put; None: puts are unchanged. It is called before each attempt, with its own
    result for the previous attempt."""
    end_hooks: tuple[EndHook[Any, Any], ...] = ()
    """Hooks that add operations to the multis that end claims on messages of this queue."""
    capacity: CapacityLimit[Any] | None = None
    """The capacity gate of a bounded queue; None: the queue is unbounded."""

    @classmethod
    def of(cls, path: str, config: StoredConfig, lanes: PutLanes, revision: Revision = NO_REVISION) -> Self:
        """Return the snapshot of the configuration at this path, without hooks."""
        return cls(
            config,
            config.policy or DEFAULT_POLICY,
            config.tiers,
            lanes,
            revision,
            Check(path, revision.version),
            config.bundle_limit,
            config.grouped,
            config.counts,
        )


class QueueFeature(Protocol):
    """A feature of a queue that depends on its configuration."""

    def configured(self, snapshot: QueueSnapshot) -> QueueSnapshot:
        """Return a new snapshot with the hooks that this feature needs."""
        ...
