"""A queue as one session uses it: the session's services and the session's state of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from .runtime import Runtime

if TYPE_CHECKING:
    from aiozkqueue.layout import QueuePaths, StoredConfig
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import ZooKeeper

RuntimeT_co = TypeVar("RuntimeT_co", bound=Runtime, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class QueueHandle(Generic[RuntimeT_co]):
    """The parameter of all functions that work on one queue."""

    runtime: RuntimeT_co
    """The services of the session."""
    state: QueueState
    """The session's state of the queue."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """The session's client."""
        return self.runtime.zookeeper

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.state.name

    @property
    def paths(self) -> QueuePaths:
        """The queue's paths."""
        return self.state.paths

    @property
    def config(self) -> StoredConfig:
        """The queue's configuration, as last read."""
        return self.state.config
