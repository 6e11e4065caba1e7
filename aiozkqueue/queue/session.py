"""Sessions: the entry point of a program's use of aiozkqueue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from aiozkqueue.dialects import check_path, curator, kazoo
from aiozkqueue.dialects.sharding import check_shard_locks, first_shard
from aiozkqueue.errors import AccessDeniedError, InvalidOptionError
from aiozkqueue.layout import check_condition, check_queue_name
from aiozkqueue.queue.internals import state_of
from aiozkqueue.zookeeper import NoAuthError

from .admin.cleaning import queue_names
from .administration import SessionAdmin
from .codec import BYTES, Codec, codec_by, codec_of
from .connection_state import on_connection_state
from .destination import binding_of, not_own
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

    from .connection_state import ConnectionState
    from .delivery import Delivery
    from .destination import Undecodable
    from .middleware import Middleware
    from .options import Seconds
    from .outcome import Outcome
    from .session_core import SessionCore

T = TypeVar("T")


class QueueSession:
    """A program's access to its queues, made by `connect`. It outlives lost connections and ZooKeeper sessions.

    It belongs to one event loop and one process.
    """

    def __init__(self, runtime: SessionCore) -> None:
        self._runtime = runtime
        self._codecs: dict[Any, Codec[Any]] = {}

    @property
    def _core(self) -> SessionCore:
        """The session's core. Raises: SessionClosedError, WrongLoopError."""
        self._runtime.check()
        return self._runtime

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
        """Return a queue. Its first put or take creates it on the server.

        Messages whose payload cannot be decoded are moved to the dead letters.

        Args:
            name: the name of the queue.
            type: the type of the values, which are stored as JSON; None: values are bytes.
            adapter: a pydantic adapter for the values, instead of a type.
            policy: the redelivery policy, stored in the queue's configuration if it has none yet.
            undecodable: with ``"raise"``, messages whose payload cannot be decoded are delivered, and reading ``value``
                raises.

        Raises:
            InvalidNameError: not a valid queue name.
            InvalidOptionError: pydantic does not support the type, the type is not fully defined, or both a type and an
                adapter are given.
            ConfigConflictError: another policy is known to be stored; otherwise the first use raises it.
            SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        check_queue_name(name)
        _checked(undecodable)
        if policy is not None:
            self._runtime.queue_state(name).request_policy(policy)
        return Queue(self._runtime, name, self._codec(name, type, adapter), undecodable)

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
        """Return a queue shared with Apache Curator's clients: a destination like any other.

        Put options that the recipe does not support are refused. A gzip item that decompresses to more than 16 MiB
        becomes a dead letter.

        Args:
            path: Curator's ``queuePath``, below the client's chroot.
            type: as for `queue`.
            lock_path: Curator's ``lockPath``, the same for all consumers of the queue. Without a lock path, a Curator
                consumer takes messages that one of ours is processing: our commit then fails with `ClaimLostError`, and
                none of it is applied.
            kind: the recipe: ``"queue"``, ``"priority"`` (puts take ``priority=``, lower first), ``"delay"``
                (``delay=`` or ``at=``), ``"id"`` (``key=``) or ``"simple"``.
            compressed: whether the Java clients use ``enableCompression()``; items are then written as gzip.
            policy: as for `queue`.
            undecodable: as for `queue`.

        Raises:
            InvalidOptionError: not a path, an unknown kind, or a lock path for a simple queue.
            ConfigConflictError: this session uses the path with another layout; or as `queue`.
            SessionClosedError, WrongLoopError.
        """
        queue: CuratorQueue[Any] = CuratorQueue(
            self._core,
            curator(path, lock_path, kind, compressed=compressed),
            self._codec(path, type, None),
            _checked(undecodable),
        )
        if policy is not None:
            state_of(queue).request_policy(policy)
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

        Consume with a listener for each of `CuratorShards.queues`; call it again to find shards that were added later,
        from either side. If a sharder's leader adds a shard at the same moment as a put, there is one more.

        Args:
            path: the ``queuePath`` of the sharder.
            type: as for `queue`.
            lock_path: returns the lock path of a shard for its path, as the sharder's ``QueueAllocator`` does.
            kind: as for `curator_queue`.
            compressed: as for `curator_queue`.
            threshold: a put adds a shard when every shard holds this number of items, like ``newQueueThreshold``.
            max_queues: the maximum number of shards, like ``maxQueues``.

        Raises: as `curator_queue`; InvalidOptionError: a threshold or maximum below 1, or lock paths below ``path``,
        which a sharder would treat as queues.
        """
        check_path(path, "path")
        positive(threshold, "threshold")
        positive(max_queues, "max_queues")
        codec = self._codec(path, type, None)
        runtime = self._core

        def shard(of: str) -> CuratorQueue[Any]:
            locks = locks_of(of)
            return CuratorQueue(runtime, curator(of, locks, kind, compressed=compressed), codec, "dead-letter")

        def locks_of(shard: str) -> str | None:
            locks = None if lock_path is None else lock_path(shard)
            check_shard_locks(shard, locks, path)
            return locks

        locks_of(f"{path}/{first_shard(path)}")  # refuse bad lock paths now, not at the first put
        return CuratorShards(runtime, path, shard, threshold, max_queues)

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
        """Return a queue shared with kazoo's clients.

        Puts take ``priority=``, from 0, the most urgent, to 999; 100 by default.

        Args:
            path: the path of the queue.
            type: as for `queue`.
            locking: whether it is kazoo's ``LockingQueue`` or its ``Queue``. Without locking, a kazoo consumer takes
                messages that one of ours is processing: our commit then fails with `ClaimLostError`.
            policy: as for `queue`.
            undecodable: as for `queue`.

        Raises: as `curator_queue`.
        """
        queue: ForeignQueue[Any] = ForeignQueue(
            self._core, kazoo(path, locking=locking), self._codec(path, type, None), _checked(undecodable)
        )
        if policy is not None:
            state_of(queue).request_policy(policy)
        return queue

    def on_connection_state(self, callback: Callable[[ConnectionState], object]) -> Callable[[], None]:
        """Call back with each change of the connection, as Curator's ``ConnectionStateListener`` does.

        SUSPENDED: there is no connection; this session's messages may be lost to other consumers. RECONNECTED: there is
        a connection again. LOST: the server has ended the ZooKeeper session, and with it every lock; a new session
        follows, with RECONNECTED. The callback runs on the event loop and must not block. Returns a function that
        removes it.

        Raises: SessionClosedError, WrongLoopError.
        """
        return on_connection_state(self._core.zookeeper, callback)

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that commits when its block ends normally, and rolls back when the block raises.

        Raises: as `Transaction.commit`, on leaving the block; SessionClosedError, WrongLoopError on entering it.
        """
        return TransactionBlock(self._runtime, commits=True)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that rolls back unless it was committed, with a warning if that undoes anything.

        Raises: SessionClosedError, WrongLoopError, on entering the block.
        """
        return TransactionBlock(self._runtime, commits=False)

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

        Args:
            queue: the queue to take from.
            handler: an ``async def`` with one parameter, the delivery.
            concurrency: the maximum number of handlers at a time.
            policy: the redelivery policy, stored with the queue if it has none yet.
            drain_timeout: how long handlers may take to finish after a stop, seconds.
            on_lost: with ``"cancel"``, a handler is cancelled when its claim is known to be lost.
            filters: take only messages whose tags match.
            middleware: each ``async def around(delivery, call_next)`` is called around the handler, the first
                outermost. An error it raises counts as the handler's. If it returns without awaiting ``call_next()``,
                the delivery is committed without a call of the handler. It may settle the delivery.

        Raises: InvalidOptionError, ConfigConflictError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        given: object = queue
        if not isinstance(given, Queue):
            msg = f"listener takes a queue, made by session.queue(), not {type(queue).__name__}"
            raise InvalidOptionError(msg)
        check_awaited(handler, "a handler")
        check_middleware(middleware)
        if on_lost not in ("finish", "cancel"):
            msg = f"on_lost={on_lost!r}: give 'finish' or 'cancel'"
            raise InvalidOptionError(msg)
        if binding_of(queue).owner is not self._runtime:
            raise not_own(queue.name)
        if policy is not None:
            state_of(queue).request_policy(policy)
        tracing = self._runtime.tracing
        layers = middleware if tracing is None else (tracing.around, *middleware)
        return Listener(
            self._runtime,
            queue,
            wrapped(handler, layers),
            concurrency=positive(concurrency, "concurrency"),
            drain_timeout=seconds(drain_timeout, "drain_timeout"),
            on_lost=on_lost,
            handler_name=name_of(handler),
            condition=check_condition(filters),
        )

    @property
    def admin(self) -> SessionAdmin:
        """The tools of operators for all queues. Raises: SessionClosedError, WrongLoopError."""
        return SessionAdmin(self._core)

    async def outcome(self, transaction_id: str, *, timeout: Seconds | None = None) -> Outcome:
        """Return the outcome of a transaction of this session; its id is also in `OutcomeUnknownError`.

        Waits up to ``timeout`` seconds for a commit in flight; returns UNKNOWN if it is still undecided, or if the id
        is not among the last 10,000.

        Raises: InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        return await self._runtime.outcome(transaction_id, seconds(timeout, "timeout"))

    async def queues(self) -> list[str]:
        """List the names of the existing queues.

        Raises: AccessDeniedError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        try:
            return await queue_names(self._runtime)
        except NoAuthError as error:
            msg = f"root {self._runtime.root}: {error}; use the credentials of a user whom the ACL allows"
            raise AccessDeniedError(msg) from error

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
