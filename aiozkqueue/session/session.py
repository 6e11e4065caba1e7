"""Sessions: the entry point of a program's use of aiozkqueue."""

from __future__ import annotations

import builtins
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from aiozkqueue.arguments import flag, positive, seconds, text
from aiozkqueue.codec import Codec, chosen_codec
from aiozkqueue.dialects import check_path, curator, kazoo
from aiozkqueue.dialects.sharding import check_shard_locks, first_shard
from aiozkqueue.errors import AccessDeniedError, InvalidOptionError, SessionClosedError
from aiozkqueue.layout import check_queue_name
from aiozkqueue.operations.queue_names import queue_names
from aiozkqueue.queue.destination import binding_of, check_undecodable, not_own
from aiozkqueue.zookeeper import NoAuthError, State, reads

from .administration import SessionAdmin
from .batch_listener import BatchListener
from .connection_state import on_connection_state
from .delivery_listener import DeliveryListener
from .foreign_queue import CuratorQueue, ForeignQueue
from .foreign_shards import CuratorShards
from .handler import check_alarm, check_handler
from .internals import state_of
from .listener_options import check_batch, check_listener_options
from .queue import Queue
from .transaction import Transaction, TransactionBlock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from pydantic import TypeAdapter
    from typing_extensions import TypeForm

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.dialects import CuratorKind
    from aiozkqueue.layout import Policy
    from aiozkqueue.queue.destination import Undecodable
    from aiozkqueue.queue.message import DeadLetter
    from aiozkqueue.queue.outcome import Outcome
    from aiozkqueue.zookeeper import CallLimit

    from .batch import Batch
    from .connection_state import ConnectionState
    from .core import SessionCore
    from .delivery import Delivery
    from .listener import Listener
    from .listener_options import ListenerOptions

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
        """Return a queue. Its first put or `Queue.configure` creates it on the server.

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
            ConfigConflictError: another policy is known to be stored; otherwise each use raises it.
            SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        name = check_queue_name(name)
        check_undecodable(undecodable)
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
                consumer takes messages that an aiozkqueue consumer is processing, whose commit then fails with
                `ClaimLostError`, and none of it is applied.
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
            check_undecodable(undecodable),
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

        Run a listener for each of `CuratorShards.queues`. Call it again to find shards that either side has added
        since. If a sharder's leader and a put add a shard at the same moment, there may be one shard more.

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
        if lock_path is not None and not callable(cast("object", lock_path)):
            msg = f"lock_path takes a function of the path of a shard, not {builtins.type(lock_path).__name__}"
            raise InvalidOptionError(msg)
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
                messages that an aiozkqueue consumer is processing, whose commit then fails with `ClaimLostError`.
            policy: as for `queue`.
            undecodable: as for `queue`.

        Raises: as `curator_queue`.
        """
        queue: ForeignQueue[Any] = ForeignQueue(
            self._core, kazoo(path, locking=locking), self._codec(path, type, None), check_undecodable(undecodable)
        )
        if policy is not None:
            state_of(queue).request_policy(policy)
        return queue

    @property
    def connected(self) -> bool:
        """Whether the session has a connection to ZooKeeper now, for health checks.

        A server that no longer answers is noticed within the session timeout. False after the session has been closed.

        Raises: WrongLoopError.
        """
        try:
            return self._core.zookeeper.state is State.CONNECTED
        except SessionClosedError:
            return False

    def on_connection_state(self, callback: Callable[[ConnectionState], object]) -> Callable[[], None]:
        """Call ``callback`` on each change of the connection, as Curator's ``ConnectionStateListener`` does.

        SUSPENDED: there is no connection; other consumers may get this session's messages. RECONNECTED: the connection
        is back. LOST: the server has ended the ZooKeeper session and removed all its locks; a new session follows,
        with RECONNECTED. The callback runs on the event loop and must not block. Returns a function that removes the
        callback.

        Raises: InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        if not callable(cast("object", callback)):
            msg = f"callback takes a function of a ConnectionState, not {type(callback).__name__}"
            raise InvalidOptionError(msg)
        if any(iscoroutinefunction(given) for given in (callback, getattr(callback, "__call__", None))):  # noqa: B004 - the method
            msg = "callback takes a plain function, because nothing awaits it; start a task in it"
            raise InvalidOptionError(msg)
        return on_connection_state(self._core.zookeeper, callback)

    def transaction(
        self, *, autocommit: bool = True, commit_timeout: Seconds | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that commits when its block ends normally, and rolls back when the block raises.

        Args:
            autocommit: False: the block must call `Transaction.commit` itself. If it ends without a commit, the
                transaction rolls back, with an `UncommittedWarning` if that undoes anything.
            commit_timeout: how many seconds the commit at the end of the block may take, as the ``timeout`` of
                `Transaction.commit`. None: until a server answers, which is suitable for workers, but not for user
                requests.

        Raises: as `Transaction.commit`, on leaving the block; SessionClosedError, WrongLoopError on entering it;
            InvalidOptionError: the timeout is invalid, or is given with ``autocommit=False``.
        """
        limit = None if commit_timeout is None else seconds(commit_timeout, "commit_timeout")
        commits = autocommit is True or flag(autocommit, "autocommit")
        if limit is not None and not commits:
            msg = (
                "commit_timeout limits the commit at the end of the block, which autocommit=False does not make; give "
                "`tx.commit` a timeout instead"
            )
            raise InvalidOptionError(msg)
        return TransactionBlock(self._runtime, autocommit=commits, commit_timeout=limit)

    @overload
    def listener(
        self,
        queue: Queue[T],
        handler: Callable[[Delivery[T]], Awaitable[None]],
        *,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = ...,
        **options: Unpack[ListenerOptions],
    ) -> Listener[T]: ...
    @overload
    def listener(
        self,
        queue: Queue[T],
        handler: Callable[[Batch[T]], Awaitable[None]],
        *,
        batch: int,
        batch_wait: Seconds = ...,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = ...,
        **options: Unpack[ListenerOptions],
    ) -> Listener[T]: ...
    def listener(
        self,
        queue: Queue[T],
        handler: Callable[[Any], Awaitable[None]],
        *,
        batch: int | None = None,
        batch_wait: Seconds = 0.2,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = None,
        **options: Any,
    ) -> Listener[T]:
        """Return a listener that calls ``handler`` for each message, up to ``concurrency`` at a time.

        Args:
            queue: the queue to take from.
            handler: an ``async def`` with one parameter: the delivery, or the batch if ``batch`` is given.
            batch: the maximum number of messages of a batch, up to 1000. The handler is then called with a `Batch`, and
                one commit ends all of its messages.
            batch_wait: how long a batch waits for more messages after its first one, seconds.
            on_dead: an ``async def alarm(letter, error)``, called with each message of the queue that this session
                gives up while the listener runs: rejected, undecodable, or out of attempts. The message is already a
                dead letter, or dropped. ``error`` is the exception of the last attempt, or None, for example after
                the death of a process. The function is called at most once for a message, and not at all if this
                process dies first. An exception that it raises is logged.
            options: see `ListenerOptions`.

        Raises: InvalidOptionError, ConfigConflictError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        given: object = queue
        if not isinstance(given, Queue):
            msg = f"listener takes a queue, made by session.queue(), not {type(queue).__name__}"
            raise InvalidOptionError(msg)
        settings, size = check_listener_options(options), check_batch(batch, batch_wait, options)
        check_handler(handler, "the delivery" if size is None else "the batch")
        if on_dead is not None:
            check_alarm(on_dead)
        if binding_of(queue).owner is not self._runtime:
            raise not_own(queue.name)
        if settings.policy is not None:
            state_of(queue).request_policy(settings.policy)
        if size is not None:
            return BatchListener(self._runtime, queue, handler, settings, size=size, on_dead=on_dead)
        return DeliveryListener(self._runtime, queue, handler, settings, on_dead)

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._core.limit(f"root {self._core.root}")

    @property
    def admin(self) -> SessionAdmin:
        """Administration of all queues, for operators. Raises: SessionClosedError, WrongLoopError."""
        return SessionAdmin(self._core)

    async def outcome(self, transaction_id: str, *, timeout: Seconds | None = None) -> Outcome:
        """Return the outcome of a transaction of this session, or of a put; the id is in `OutcomeUnknownError`.

        A put that was not applied is ROLLED_BACK. Waits up to ``timeout`` seconds for a commit or a put in flight;
        returns UNKNOWN if it is still undecided, or if the id is not among the last 10,000.

        Raises: InvalidOptionError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        text(transaction_id, "transaction_id", "the id of a transaction, such as `Transaction.id`")
        return await self._runtime.outcome(transaction_id, seconds(timeout, "timeout"))

    @reads
    async def queues(self) -> list[str]:
        """List the names of the existing queues, including those that this user may not read.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        self._runtime.check()
        try:
            return await queue_names(self._runtime)
        except NoAuthError as error:
            msg = f"root {self._runtime.root}: {error}; {error.advice}"
            raise AccessDeniedError(msg) from error

    def __repr__(self) -> str:
        runtime = self._runtime
        connected = "connected" if runtime.zookeeper.state is State.CONNECTED else "not connected"
        return f"<QueueSession below {runtime.root!r}, {'closed' if runtime.closed else connected}>"

    def _codec(self, name: str, type_: object, adapter: TypeAdapter[Any] | None) -> Codec[Any]:
        return chosen_codec(name, type_, adapter, self._codecs)
