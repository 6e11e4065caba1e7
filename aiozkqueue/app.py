"""Applications: queues, handlers and jobs that are declared when a module is imported, before there is a connection."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from aiozkqueue.codec import Codec, chosen_codec
from aiozkqueue.errors import InvalidOptionError, MissingExtraError
from aiozkqueue.layout import check_queue_name
from aiozkqueue.queue.destination import bind, check_undecodable
from aiozkqueue.queue.options import unique_mode
from aiozkqueue.session.connect import connect
from aiozkqueue.session.handler import check_alarm, check_handler
from aiozkqueue.session.internals import core_of, inherited
from aiozkqueue.session.listener_options import check_batch, check_listener_options
from aiozkqueue.session.queue import Queue
from aiozkqueue.session.run import run
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from pydantic import TypeAdapter
    from typing_extensions import TypeForm

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.layout import Policy
    from aiozkqueue.layout.jobs import Missed
    from aiozkqueue.queue.destination import Undecodable
    from aiozkqueue.queue.message import DeadLetter
    from aiozkqueue.schedule import Scheduler
    from aiozkqueue.schedule.jobs import JobOptions
    from aiozkqueue.session.batch import Batch
    from aiozkqueue.session.connect import ConnectOptions
    from aiozkqueue.session.delivery import Delivery
    from aiozkqueue.session.listener import Listener
    from aiozkqueue.session.listener_options import ListenerOptions
    from aiozkqueue.session.session import QueueSession

T = TypeVar("T")


class _Decorator(Protocol[T]):
    """Registers a handler, and returns it unchanged."""

    def __call__(
        self, handler: Callable[[T], Coroutine[Any, Any, None]], /
    ) -> Callable[[T], Coroutine[Any, Any, None]]: ...


@dataclass(frozen=True, slots=True)
class _Handled(Generic[T]):
    """A handler of a queue."""

    queue: Queue[T]
    handler: Callable[[Any], Coroutine[Any, Any, None]]
    options: Mapping[str, Any]
    on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class _Recurring:
    """A job, whose messages go to the queue of the same name."""

    queue: Queue[bytes]
    cron: str
    options: JobOptions


class App:
    """An application: the queues, handlers and recurring jobs of a program, declared without a connection.

    Create it at the top of a module, and declare everything else with it: ``orders = app.queue("orders", Order)``,
    ``@app.listener(orders)``, ``@app.cron("0 3 * * *")``. `connect` opens the session that all declared queues use.
    ``aiozkqueue worker shop:app`` runs the handlers as a service; so does `run`. `serve` runs them in a test, and
    `aiozkqueue.fastapi.lifespan` takes an application instead of the addresses of servers.

    One process uses one connection of an application at a time.

    Args:
        hosts: as for `aiozkqueue.connect`.
        options: the options of `aiozkqueue.connect`.

    Raises:
        InvalidOptionError: an option is out of range or the hosts do not parse.
    """

    def __init__(self, hosts: str, **options: Unpack[ConnectOptions]) -> None:
        connect(hosts, **options)  # checks them
        self._hosts = hosts
        self._options = options
        self._codecs: dict[Any, Codec[Any]] = {}
        self._queues: list[tuple[Queue[Any], Policy | None]] = []
        self._handlers: list[_Handled[Any]] = []
        self._jobs: list[_Recurring] = []
        self._session: QueueSession | None = None

    def __repr__(self) -> str:
        return f"<App on {self._hosts}: {counted(len(self._handlers), 'handler')}>"

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
        """Declare a queue. Its methods work while the application is connected; handlers put to it at any time.

        Args:
            name: as for `QueueSession.queue`.
            type: as for `QueueSession.queue`.
            adapter: as for `QueueSession.queue`.
            policy: as for `QueueSession.queue`.
            undecodable: as for `QueueSession.queue`.

        Raises:
            InvalidNameError: not a valid queue name.
            InvalidOptionError: pydantic does not support the type, the type is not fully defined, both a type and an
                adapter are given, or a job of this application has the name.
            ConfigConflictError: the application is connected, and another policy is known to be stored.
        """
        name = check_queue_name(name)
        if any(job.queue.name == name for job in self._jobs):
            msg = f"queue {name!r}: a job of this name takes its messages; rename one of them"
            raise InvalidOptionError(msg)
        codec = chosen_codec(name, type, adapter, self._codecs)
        declared: Queue[Any] = Queue(None, name, codec, check_undecodable(undecodable))
        if self._session is not None:
            _bind(declared, policy, self._session)
        self._queues.append((declared, policy))
        return declared

    @overload
    def listener(
        self,
        queue: Queue[T],
        *,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = ...,
        **options: Unpack[ListenerOptions],
    ) -> _Decorator[Delivery[T]]: ...
    @overload
    def listener(
        self,
        queue: Queue[T],
        *,
        batch: int,
        batch_wait: Seconds = ...,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = ...,
        **options: Unpack[ListenerOptions],
    ) -> _Decorator[Batch[T]]: ...
    def listener(
        self,
        queue: Queue[T],
        *,
        batch: int | None = None,
        batch_wait: Seconds = 0.2,
        on_dead: Callable[[DeadLetter[T], BaseException | None], Awaitable[None]] | None = None,
        **options: Any,
    ) -> _Decorator[Any]:
        """Declare the handler of a queue: ``@app.listener(orders, concurrency=8)`` on an ``async def``.

        The handler takes one parameter, the delivery or the batch. It stays a plain function, which tests call
        directly.

        Args:
            queue: a queue of this application.
            batch: as for `QueueSession.listener`.
            batch_wait: as for `QueueSession.listener`.
            on_dead: as for `QueueSession.listener`.
            options: see `ListenerOptions`.

        Raises:
            InvalidOptionError: the queue is not of this application, or an option is out of range; or the handler
                cannot be awaited, or cannot be called with one argument.
        """
        if not any(queue is own for own, _ in self._queues):
            msg = f"listener takes a queue that app.queue() of this application has made, not {queue!r}"
            raise InvalidOptionError(msg)
        check_listener_options(options)
        size = check_batch(batch, batch_wait, options)
        if on_dead is not None:
            check_alarm(on_dead)
        handler_options = options if size is None else {**options, "batch": size.limit, "batch_wait": size.wait}

        def register(handler: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], Coroutine[Any, Any, None]]:
            check_handler(handler, "the delivery" if size is None else "the batch")
            self._handlers.append(_Handled(queue, handler, handler_options, on_dead))
            return handler

        return register

    def cron(
        self,
        cron: str,
        *,
        name: str | None = None,
        zone: str = "UTC",
        missed: Missed = "last",
        tolerance: Seconds = 60,
        unique: Literal[True, False, "raise", "ignore"] = False,
        on_dead: Callable[[DeadLetter[bytes], BaseException | None], Awaitable[None]] | None = None,
        **options: Unpack[ListenerOptions],
    ) -> _Decorator[Delivery[bytes]]:
        """Declare a recurring job: ``@app.cron("0 3 * * *")`` on an ``async def`` with one parameter, the delivery.

        Each occurrence is a message of the queue with the name of the job. It is put once, whatever the number of
        processes, and handled like any other message: it is retried after a failure. The header ``occurrence`` has its
        date. Needs the extra ``schedule``. A job that is no longer declared occurs until
        ``aiozkqueue jobs remove NAME`` removes it.

        Args:
            cron: the times, as for `aiozkqueue.schedule.Jobs.add`.
            name: the name of the job and of its queue; by default the name of the function.
            zone: the time zone of ``cron``, by its IANA name.
            missed: as for `aiozkqueue.schedule.Jobs.add`.
            tolerance: as for `aiozkqueue.schedule.Jobs.add`.
            unique: as in `PutOptions`; the key is the name of the job. With ``"ignore"``, an occurrence is left out
                while the message of an earlier one is waiting or being handled.
            on_dead: as for `QueueSession.listener`.
            options: see `ListenerOptions`.

        Raises:
            InvalidNameError: the name is not a valid queue name.
            InvalidScheduleError: the cron expression or the time zone is invalid.
            InvalidOptionError: a queue or a job of this application has the name, an option is out of range, or the
                handler cannot be awaited, or cannot be called with one argument.
        """
        from aiozkqueue.schedule.jobs import check_times  # noqa: PLC0415 - an extra

        check_listener_options(options)
        if on_dead is not None:
            check_alarm(on_dead)
        with suppress(MissingExtraError):  # another process may run the jobs
            check_times(cron, zone, missed, tolerance)

        def register(
            handler: Callable[[Delivery[bytes]], Coroutine[Any, Any, None]],
        ) -> Callable[[Delivery[bytes]], Coroutine[Any, Any, None]]:
            check_handler(handler)
            job = getattr(handler, "__name__", "") if name is None else name
            if any(queue.name == job for queue, _ in self._queues):
                msg = f"job {job!r}: the application has a queue or a job of this name; give the job another name="
                raise InvalidOptionError(msg)
            times: JobOptions = {"zone": zone, "missed": missed, "tolerance": tolerance}
            key: JobOptions = {} if unique_mode(job, unique) is None else {"key": job, "unique": unique}
            queue = self.queue(job)
            self._jobs.append(_Recurring(queue, cron, {**times, **key}))
            self._handlers.append(_Handled(queue, handler, {**options}, on_dead))
            return handler

        return register

    def connect(
        self, hosts: str | None = None, **options: Unpack[ConnectOptions]
    ) -> AbstractAsyncContextManager[QueueSession]:
        """Open the application's session: ``async with app.connect() as session``. Declared queues work in its block.

        Args:
            hosts: replaces the hosts of the application.
            options: replace options of the application.

        Raises:
            ConnectionLostError, AccessDeniedError, WrongLoopError, MissingExtraError: as `aiozkqueue.connect`.
            InvalidOptionError: at once, if an option is out of range; on entering, if the application is connected.
        """
        connect_options: ConnectOptions = {**self._options, **options}
        return self._connected(connect(self._hosts if hosts is None else hosts, **connect_options))

    @contextmanager
    def bind(self, session: QueueSession) -> Iterator[None]:
        """Use an open session instead of `connect`: ``with app.bind(session):``. Declared queues work in its block.

        Raises:
            InvalidOptionError: the application is connected by another session.
            ConfigConflictError: another policy of a queue is known to be stored.
            SessionClosedError, WrongLoopError.
        """
        if self._session is session:
            yield
            return
        if self._session is not None and not inherited(self._session):
            msg = "the application is already connected; a process can have only one connection of it at a time"
            raise InvalidOptionError(msg)
        self._session = session
        try:
            for queue, policy in self._queues:
                _bind(queue, policy, session)
            yield
        finally:
            self._session = None
            for queue, _ in self._queues:
                bind(queue, None)

    @asynccontextmanager
    async def services(self, session: QueueSession) -> AsyncIterator[list[Listener[Any] | Scheduler]]:
        """Declare the jobs in ZooKeeper, and yield a listener for each handler and, if there are jobs, a scheduler.

        For programs that run further services: pass all of them to `aiozkqueue.run`.

        Raises:
            InvalidOptionError: there is no handler; or as `bind`.
            MissingExtraError: there are jobs, and the extra ``schedule`` is not installed.
            ConfigConflictError, AccessDeniedError, PayloadError, OutcomeUnknownError, SessionClosedError,
            WrongLoopError.
        """
        if not self._handlers:
            msg = "the application has no handler; declare one with @app.listener or @app.cron"
            raise InvalidOptionError(msg)
        with self.bind(session):
            schedulers = await self._declare(session) if self._jobs else []
            listeners: list[Listener[Any]] = [
                session.listener(
                    declaration.queue, declaration.handler, on_dead=declaration.on_dead, **declaration.options
                )
                for declaration in self._handlers
            ]
            yield [*listeners, *schedulers]

    @asynccontextmanager
    async def serve(self, session: QueueSession | None = None) -> AsyncIterator[QueueSession]:
        """Run the handlers and jobs while the block runs: ``async with app.serve(queue_session):`` in a test.

        Leaving the block stops and drains the handlers. Without a session, it connects.

        Raises: as `services` and `connect`.
        """
        async with AsyncExitStack() as stack:
            opened = self.connect() if session is None else nullcontext(session)
            own = await stack.enter_async_context(opened)
            for service in await stack.enter_async_context(self.services(own)):
                await stack.enter_async_context(service)
            yield own

    async def run(self, *, signals: Collection[Signals] = (SIGTERM, SIGINT), drain_timeout: Seconds = 25) -> None:
        """Connect, and run the handlers and jobs until a signal arrives, as `aiozkqueue.run` does.

        Raises: as `services`, `connect` and `aiozkqueue.run`.
        """
        async with self.connect() as session, self.services(session) as services:
            await run(*services, signals=signals, drain_timeout=drain_timeout)

    @asynccontextmanager
    async def _connected(self, opened: AbstractAsyncContextManager[QueueSession]) -> AsyncIterator[QueueSession]:
        async with opened as session:
            with self.bind(session):
                yield session

    async def _declare(self, session: QueueSession) -> list[Scheduler]:
        from aiozkqueue.schedule import Jobs, Scheduler  # noqa: PLC0415 - an extra

        jobs = Jobs(session)
        for job in self._jobs:
            await jobs.declare(job.queue.name, job.cron, job.queue, b"", **job.options)
        return [Scheduler(session)]


def _bind(queue: Queue[Any], policy: Policy | None, session: QueueSession) -> None:
    core = core_of(session)
    if policy is not None:
        core.queue_state(queue.name).request_policy(policy)
    bind(queue, core)
