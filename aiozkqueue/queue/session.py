"""Sessions: where a program's use of aiozkqueue begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from aiozkqueue.dialects import check_path, curator, kazoo
from aiozkqueue.dialects.sharding import check_shard_locks, first_shard
from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, InvalidOptionError
from aiozkqueue.layout import check_condition, check_queue_name
from aiozkqueue.zookeeper import ConnectionLossError, NoAuthError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .admin.cleaning import Cleaned, clean, queue_names
from .admin.doctor.probe import examine
from .admin.moves import Moves
from .codec import BYTES, Codec, codec_by, codec_of
from .connection_state import on_connection_state
from .destination import not_own
from .foreign_queue import CuratorQueue, ForeignQueue
from .foreign_shards import CuratorShards
from .listener import Listener
from .middleware import check_awaited, check_middleware, name_of, wrapped
from .options import positive, seconds
from .queue import Queue
from .transaction import Transaction, TransactionBlock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from pydantic import TypeAdapter
    from typing_extensions import TypeForm

    from aiozkqueue.dialects import CuratorKind
    from aiozkqueue.layout import Condition, Policy

    from .admin.doctor.diagnosis import Diagnosis
    from .connection_state import ConnectionState
    from .delivery import Delivery
    from .destination import Undecodable
    from .middleware import Middleware
    from .options import Seconds
    from .outcome import Outcome
    from .session_core import SessionCore

T = TypeVar("T")


class QueueSession:
    """A program's access to its queues. It outlives lost connections and ZooKeeper sessions; made by `connect`.

    For one event loop and one process.
    """

    def __init__(self, engine: SessionCore) -> None:
        self._engine = engine
        self._codecs: dict[Any, Codec[Any]] = {}

    @property
    def engine(self) -> SessionCore:
        """The session's machinery. Raises: SessionClosedError, WrongLoopError."""
        self._engine.check()
        return self._engine

    @overload
    def queue(self, name: str, *, policy: Policy = ..., undecodable: Undecodable = ...) -> Queue[bytes]: ...
    @overload
    def queue(
        self, name: str, type: TypeForm[T], *, policy: Policy = ..., undecodable: Undecodable = ...
    ) -> Queue[T]: ...
    @overload
    def queue(
        self, name: str, *, adapter: TypeAdapter[T], policy: Policy = ..., undecodable: Undecodable = ...
    ) -> Queue[T]: ...
    def queue(
        self,
        name: str,
        type: Any = None,
        *,
        adapter: TypeAdapter[Any] | None = None,
        policy: Policy | None = None,
        undecodable: Undecodable = "dead-letter",
    ) -> Queue[Any]:
        """Return a queue. It is made on the server by its first put or take.

        Values are bytes; with a ``type``, or a pydantic ``adapter``, they are JSON of that. A ``policy`` is stored in
        the queue's configuration if none has been chosen yet. Payloads that do not decode go to the dead letters,
        or, with ``undecodable="raise"``, are delivered, and reading ``value`` raises.

        Raises:
            InvalidNameError: not a name for a queue.
            InvalidOptionError: no type that pydantic knows, one not fully defined, or both a type and an adapter.
            ConfigConflictError: another policy is known to be stored; else the first use raises it.
            SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        check_queue_name(name)
        _checked(undecodable)
        if policy is not None:
            self._engine.store(name).request_policy(policy)
        return Queue(self._engine, name, self._codec(name, type, adapter), undecodable)

    @overload
    def curator_queue(
        self,
        path: str,
        *,
        lock_path: str | None = ...,
        kind: CuratorKind = ...,
        compressed: bool = ...,
        policy: Policy = ...,
        undecodable: Undecodable = ...,
    ) -> CuratorQueue[bytes]: ...
    @overload
    def curator_queue(
        self,
        path: str,
        type: TypeForm[T],
        *,
        lock_path: str | None = ...,
        kind: CuratorKind = ...,
        compressed: bool = ...,
        policy: Policy = ...,
        undecodable: Undecodable = ...,
    ) -> CuratorQueue[T]: ...
    def curator_queue(
        self,
        path: str,
        type: Any = None,
        *,
        lock_path: str | None = None,
        kind: CuratorKind = "queue",
        compressed: bool = False,
        policy: Policy | None = None,
        undecodable: Undecodable = "dead-letter",
    ) -> CuratorQueue[Any]:
        """Return a queue that Apache Curator's clients use, too: a destination as any other.

        ``path`` is Curator's ``queuePath`` and ``lock_path`` its ``lockPath``, below the client's chroot; all who take
        from the queue must give the same. Without a lock path a Curator consumer takes what one of ours is working on:
        our commit then fails with `ClaimLostError`, and nothing of it is applied. ``kind`` is the recipe: ``"queue"``,
        ``"priority"`` (puts take ``priority=``, lower first), ``"delay"`` (``delay=`` or ``at=``), ``"id"`` (``key=``)
        or ``"simple"``. Options that the recipe has no place for are refused. Give ``compressed=True`` if the Java
        clients use ``enableCompression()``: items are then written as gzip. Items of gzip that stand for more than
        16 MiB become dead letters.

        Raises:
            InvalidOptionError: not a path, or no such kind, or a lock path for a simple queue.
            ConfigConflictError: this session uses the path in another layout; or as `queue`.
            SessionClosedError, WrongLoopError.
        """
        queue: CuratorQueue[Any] = CuratorQueue(
            self.engine,
            curator(path, lock_path, kind, compressed=compressed),
            self._codec(path, type, None),
            _checked(undecodable),
        )
        if policy is not None:
            queue.store.request_policy(policy)
        return queue

    @overload
    def curator_shards(
        self,
        path: str,
        *,
        lock_path: Callable[[str], str] | None = ...,
        kind: CuratorKind = ...,
        compressed: bool = ...,
        threshold: int = ...,
        max_queues: int = ...,
    ) -> CuratorShards[bytes]: ...
    @overload
    def curator_shards(
        self,
        path: str,
        type: TypeForm[T],
        *,
        lock_path: Callable[[str], str] | None = ...,
        kind: CuratorKind = ...,
        compressed: bool = ...,
        threshold: int = ...,
        max_queues: int = ...,
    ) -> CuratorShards[T]: ...
    def curator_shards(
        self,
        path: str,
        type: Any = None,
        *,
        lock_path: Callable[[str], str] | None = None,
        kind: CuratorKind = "queue",
        compressed: bool = False,
        threshold: int = 10_000,
        max_queues: int = 10,
    ) -> CuratorShards[Any]:
        """Return the queues below the ``queuePath`` of a Curator ``QueueSharder``.

        ``lock_path`` gives the lock path of a shard by the shard's path, as the sharder's ``QueueAllocator`` does.
        Consume with a listener for each of `CuratorShards.queues`; a shard that comes later, from either side, is in
        the next answer of that. A put adds a shard when each there is holds ``threshold`` items, up to ``max_queues``:
        the sharder's policies ``newQueueThreshold`` and ``maxQueues``, with its defaults. When a sharder's leader adds
        one in the same instant, there is one more.

        Raises: as `curator_queue`; InvalidOptionError: a threshold or maximum below 1, or lock paths below ``path``,
            which a sharder takes for queues.
        """
        check_path(path, "path")
        positive(threshold, "threshold")
        positive(max_queues, "max_queues")
        codec = self._codec(path, type, None)
        engine = self.engine

        def shard(of: str) -> CuratorQueue[Any]:
            locks = locks_of(of)
            return CuratorQueue(engine, curator(of, locks, kind, compressed=compressed), codec, "dead-letter")

        def locks_of(shard: str) -> str | None:
            locks = None if lock_path is None else lock_path(shard)
            check_shard_locks(shard, locks, path)
            return locks

        locks_of(f"{path}/{first_shard(path)}")  # refused now, not by the first put
        return CuratorShards(engine, path, shard, threshold, max_queues)

    @overload
    def kazoo_queue(
        self, path: str, *, locking: bool = ..., policy: Policy = ..., undecodable: Undecodable = ...
    ) -> ForeignQueue[bytes]: ...
    @overload
    def kazoo_queue(
        self, path: str, type: TypeForm[T], *, locking: bool = ..., policy: Policy = ..., undecodable: Undecodable = ...
    ) -> ForeignQueue[T]: ...
    def kazoo_queue(
        self,
        path: str,
        type: Any = None,
        *,
        locking: bool = True,
        policy: Policy | None = None,
        undecodable: Undecodable = "dead-letter",
    ) -> ForeignQueue[Any]:
        """Return a queue that kazoo's clients use, too: its ``LockingQueue``, or, not ``locking``, its ``Queue``.

        Puts take ``priority=``, from 0, the most urgent, to 999; 100 when none is given. Where kazoo locks nothing it
        takes what one of ours is working on: our commit then fails with `ClaimLostError`.

        Raises: as `curator_queue`.
        """
        queue: ForeignQueue[Any] = ForeignQueue(
            self.engine, kazoo(path, locking=locking), self._codec(path, type, None), _checked(undecodable)
        )
        if policy is not None:
            queue.store.request_policy(policy)
        return queue

    def on_connection_state(self, callback: Callable[[ConnectionState], object]) -> Callable[[], None]:
        """Call back with each change of the connection, as Curator's ``ConnectionStateListener`` does.

        SUSPENDED: there is no connection; what is held may be lost. RECONNECTED: there is one again. LOST: the server
        has declared the ZooKeeper session over, and with it every lock; a new one follows, with RECONNECTED. The
        callback runs on the event loop and must not block. Returns what takes it off again.

        Raises: SessionClosedError, WrongLoopError.
        """
        return on_connection_state(self.engine.zookeeper, callback)

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that commits when its block is left cleanly, and rolls back when it raises.

        Raises: as `Transaction.commit`, on leaving the block; SessionClosedError, WrongLoopError on entering it.
        """
        return TransactionBlock(self._engine, commits=True)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that rolls back unless it was committed; it warns when that undoes anything.

        Raises: SessionClosedError, WrongLoopError, on entering the block.
        """
        return TransactionBlock(self._engine, commits=False)

    def listener(
        self,
        queue: Queue[T],
        handler: Callable[[Delivery[T]], Awaitable[None]],
        *,
        concurrency: int = 1,
        policy: Policy | None = None,
        drain_timeout: Seconds = 25,
        on_lost: Literal["finish", "cancel"] = "finish",
        filters: Condition | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Listener[T]:
        """Return a listener that calls ``handler`` for each message, up to ``concurrency`` at a time.

        ``drain_timeout`` is how long handlers may take to finish once it is stopped. With ``on_lost="cancel"`` a
        handler is cancelled when its claim is known to be lost. With ``filters`` it takes those messages whose tags
        pass, and leaves the others to others.

        Each of the ``middleware``, ``async def around(delivery, call_next)``, is called around the handler, the first
        outermost. What it raises counts as if the handler had raised it; when it returns without having awaited
        ``call_next()``, the delivery is committed, and the handler has not been called. It may settle the delivery.

        Raises: InvalidOptionError, ConfigConflictError, SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        given: object = queue
        if not isinstance(given, Queue):
            msg = f"listener takes a queue, made by session.queue(), not {type(queue).__name__}"
            raise InvalidOptionError(msg)
        check_awaited(handler, "a handler")
        check_middleware(middleware)
        if on_lost not in ("finish", "cancel"):
            msg = f"on_lost={on_lost!r}: give 'finish' or 'cancel'"
            raise InvalidOptionError(msg)
        if queue.owner is not self._engine:
            raise not_own(queue.name)
        if policy is not None:
            queue.store.request_policy(policy)
        tracing = self._engine.tracing
        layers = middleware if tracing is None else (tracing.around, *middleware)
        return Listener(
            self._engine,
            queue,
            wrapped(handler, layers),
            concurrency=positive(concurrency, "concurrency"),
            drain_timeout=seconds(drain_timeout, "drain_timeout"),
            on_lost=on_lost,
            handler_name=name_of(handler),
            condition=check_condition(filters),
        )

    @property
    def moves(self) -> Moves:
        """Moves of a queue's messages to another, in the background. Raises: SessionClosedError, WrongLoopError."""
        self._engine.check()
        return Moves(self._engine)

    async def outcome(self, transaction_id: str, *, timeout: Seconds | None = None) -> Outcome:
        """Tell how a transaction of this session ended, by the id that it or `OutcomeUnknownError` bears.

        Waits up to ``timeout`` seconds for a commit that is under way; UNKNOWN when that has not been decided then,
        or when the id is none of the last 10,000.

        Raises: InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        return await self._engine.outcome(transaction_id, seconds(timeout, "timeout"))

    async def diagnose(self, *queues: str) -> Diagnosis:
        """Examine the servers and these queues (all, when none is named): what `aiozkqueue doctor` shows.

        Writes nothing but one ephemeral znode, for a few moments. Lists every queue it looks at.

        Raises: InvalidNameError, SessionClosedError, WrongLoopError; AccessDeniedError when it may not even list;
        ConnectionLostError: the connection was lost while its latency was measured.
        """
        self._engine.check()
        for name in queues:
            check_queue_name(name)
        try:
            return await examine(self._engine, queues)
        except NoAuthError as error:
            msg = f"root {self._engine.root}: {error}; connect with `auth=` of a user whom the ACL allows"
            raise AccessDeniedError(msg) from error
        except (ConnectionLossError, ZooKeeperSessionExpiredError) as error:
            msg = f"the connection was lost while its latency was measured: {error}; examine again"
            raise ConnectionLostError(msg) from error

    async def queues(self) -> list[str]:
        """List the names of the queues that there are.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        self._engine.check()
        try:
            return await queue_names(self._engine)
        except NoAuthError as error:
            msg = f"root {self._engine.root}: {error}; connect with `auth=` of a user whom the ACL allows"
            raise AccessDeniedError(msg) from error

    async def clean(self, *queues: str) -> list[Cleaned]:
        """Clean these queues now (all, when none is named, and the commit slots of clients that are gone).

        What the session's janitor does at the queues' intervals: takes off delays and leases that have ended, removes
        history past its lifetime, and what is left over of messages and hours that are gone. It may be done by
        several at once, and removes 10,000 znodes of a queue at the most (`Cleaned.more`).

        Raises: AccessDeniedError, ConnectionLostError, InvalidNameError, PayloadError, SessionClosedError,
        WrongLoopError.
        """
        self._engine.check()
        stores = [self._engine.store(name) for name in queues]
        return await clean(self._engine, stores or None)

    def _codec(self, name: str, type_: object, adapter: TypeAdapter[Any] | None) -> Codec[Any]:
        if adapter is not None:
            if type_ is not None:
                msg = f"queue {name!r}: give a type or an adapter, not both"
                raise InvalidOptionError(msg)
            return codec_by(name, adapter)
        return BYTES if type_ is None else codec_of(name, type_, self._codecs)


def _checked(undecodable: Undecodable) -> Undecodable:
    if undecodable not in ("dead-letter", "raise"):
        msg = f"undecodable={undecodable!r}: give 'dead-letter' or 'raise'"
        raise InvalidOptionError(msg)
    return undecodable
