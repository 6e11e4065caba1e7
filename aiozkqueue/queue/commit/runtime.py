"""The interface of `SessionCore` for the stages below it, which call it ``runtime`` and use no other part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import Clock, ServerClock
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import CallLimit, ZooKeeper

    from .group_commit import GroupCommitter
    from .meter import Meter
    from .write import AtomicWrite


class PutTracing(Protocol):
    """Adds the trace context to the headers of a message that is put."""

    def creating(self, queue: str, message_id: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a put, with the trace context in its headers."""
        ...


class Runtime(Protocol):
    """The services of one session: its client, its clocks, its source of ids and its committer."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """The client, which keeps one ZooKeeper session."""
        ...

    @property
    def root(self) -> str:
        """The path below which the queues are."""
        ...

    @property
    def about(self) -> bytes:
        """The data of this session's entries: the host and the process."""
        ...

    @property
    def node(self) -> str:
        """The hash of the node's name."""
        ...

    @property
    def ids(self) -> IdSource:
        """The source of ids."""
        ...

    @property
    def random(self) -> Random:
        """The source of jitter."""
        ...

    @property
    def clock(self) -> Clock:
        """This machine's clock."""
        ...

    @property
    def server_clock(self) -> ServerClock:
        """ZooKeeper's time, as far as it is known."""
        ...

    @property
    def tasks(self) -> TaskOwner:
        """The owner of the session's tasks."""
        ...

    @property
    def committer(self) -> GroupCommitter:
        """The sender of atomic writes."""
        ...

    @property
    def meter(self) -> Meter | None:
        """The counters; None: nothing is counted."""
        ...

    @property
    def tracing(self) -> PutTracing | None:
        """The tracer; None: nothing is traced."""
        ...

    @property
    def grace(self) -> float:
        """Seconds for which a caller waits for a release or a write in progress: see `SessionCore.grace`."""
        ...

    @property
    def closed(self) -> bool:
        """Whether `SessionCore.close` has begun."""
        ...

    @property
    def max_message(self) -> int:
        """The largest item that can be put and still be dead-lettered, bytes."""
        ...

    @property
    def max_puts(self) -> int:
        """The size limit of all puts of one transaction, bytes."""
        ...

    @property
    def safe_size(self) -> float:
        """The estimated size up to which a write certainly fits into one request, bytes."""
        ...

    def limit(self, what: str) -> CallLimit:
        """Return the limit of one call; ``what`` is its subject in errors. Raises: as `check`."""
        ...

    def check(self) -> None:
        """Raise unless the session can be used here. Raises: SessionClosedError, WrongLoopError."""
        ...

    def queue_state(self, name: str) -> QueueState:
        """Return the state of a queue. Raises: InvalidNameError."""
        ...

    def foreign(self, dialect: Dialect) -> QueueState:
        """Return the state of another program's queue. Raises: ConfigConflictError: it is used in another layout."""
        ...

    async def settle(self, atomic_write: AtomicWrite) -> None:
        """Submit a write and wait until it is settled. Raises: the write's error; SessionClosedError."""
        ...

    async def learn_time(self) -> None:
        """Learn ZooKeeper's time by a write, unless it is known within bounds. Raises: as `settle`."""
        ...
