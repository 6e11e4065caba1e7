"""Opens and closes sessions."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, cast

from aiozkqueue.arguments import flag, is_storable, plain, required_seconds, text
from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, InvalidOptionError, QueueError, WrongLoopError
from aiozkqueue.layout import check_root
from aiozkqueue.runtime.clock import Clock
from aiozkqueue.zookeeper import Acl, Auth, AuthFailedError, ZooKeeperError, parse_hosts
from aiozkqueue.zookeeper import connect as connect_zookeeper

from .block import Block
from .core import SessionCore, this_process
from .credentials import set_in_environment
from .session import QueueSession
from .unit_of_work import current_work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.zookeeper import ZooKeeper

    from .tracing import Tracing

T = TypeVar("T")

log: Final = logging.getLogger(__name__)

#: Maximum length of the name of a session.
LONGEST_NAME = 100


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`, for functions that pass them on."""

    root: str
    session_timeout: Seconds
    connect_timeout: Seconds
    operation_timeout: Seconds
    tls: ssl.SSLContext | None
    auth: Sequence[Auth]
    acl: Sequence[Acl] | None
    clock: Clock | None
    janitor: bool
    node: str | None
    name: str | None
    tracing: Tracing | bool | None


class _Connecting(Block):
    """The context manager that `connect` returns."""

    _usage = "async with aiozkqueue.connect(...) as session:"

    def __init__(
        self,
        hosts: str,
        core: Callable[..., SessionCore],
        connect_timeout: float,
        *,
        tracing: Tracing | bool | None,
        operation_timeout: float,
        **options: Any,  # noqa: ANN401 - passed to the client's connect, which types them
    ) -> None:
        self._hosts = hosts
        self._core = core
        self._connect_timeout = connect_timeout
        self._tracing = tracing
        self._operation_timeout = operation_timeout
        self._options = options
        self._runtime: SessionCore | None = None

    async def __aenter__(self) -> QueueSession:
        if self._runtime is not None:
            msg = "this session is open already; call aiozkqueue.connect() for each session"
            raise InvalidOptionError(msg)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio, or no loop
            msg = (
                "a session needs a running asyncio event loop: run the program with asyncio.run(main()) "
                'or with anyio.run(main, backend="asyncio")'
            )
            raise WrongLoopError(msg) from None
        tracing = _tracing_of(option=self._tracing)
        self._warn_of_open_znodes()
        try:
            zookeeper = await connect_zookeeper(self._hosts, connect_timeout=self._connect_timeout, **self._options)
        except AuthFailedError as error:
            raise AccessDeniedError(str(error)) from error
        except ZooKeeperError as error:
            raise ConnectionLostError(str(error)) from error
        runtime = self._core(zookeeper, tracing=tracing)
        runtime.limit_calls(self._operation_timeout)
        try:
            await runtime.start()
            await zookeeper.check_version(self._connect_timeout)
        except BaseException as error:  # nothing else would close the client
            await runtime.close()
            if isinstance(error, ZooKeeperError) and not isinstance(error, QueueError):
                raise ConnectionLostError(str(error)) from error
            raise
        self._runtime = runtime
        return QueueSession(runtime)

    def _warn_of_open_znodes(self) -> None:
        """Warn if the program has credentials in its environment, which only the command reads, and passes none."""
        if not self._options["auth"] and self._options["acl"] is None and (variable := set_in_environment()):
            text = (
                "a session with %s has no credentials, so everyone may change its new znodes: %s is set, but connect() "
                "does not read it; pass auth=, or acl=[zq.Acl.all('world', 'anyone')] if that is intended"
            )
            log.warning(text, self._hosts, variable)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runtime is not None:
            work = current_work.get()  # of the handler that has started this task, if there is one
            try:
                await self._runtime.close(awaited=work is not None and work.runtime is self._runtime)
            finally:
                if self._runtime.closed:  # otherwise it has refused a call by a handler
                    self._runtime = None


def connect(
    hosts: str,
    *,
    root: str = "/zms",
    session_timeout: Seconds = 10,
    connect_timeout: Seconds = 15,
    operation_timeout: Seconds = 30,
    tls: ssl.SSLContext | None = None,
    auth: Sequence[Auth] = (),
    acl: Sequence[Acl] | None = None,
    clock: Clock | None = None,
    janitor: bool = True,
    node: str | None = None,
    name: str | None = None,
    tracing: Tracing | bool | None = None,
) -> AbstractAsyncContextManager[QueueSession]:
    """Open a session: ``async with aiozkqueue.connect("h1:2181,h2:2181/chroot") as session``.

    On leaving, operations in flight are settled within the session timeout; then all locks are released.

    Args:
        hosts: the servers as ``host:port``, separated by commas, with an optional chroot after the last one.
        root: the path of the queues.
        session_timeout: how long a dead process keeps its messages, seconds. The server may change it.
        connect_timeout: how long to wait for the first connection, seconds.
        operation_timeout: how long a read, a put, or a change of settings waits while no server answers, or while none
            answers a change, seconds. A read raises `ConnectionLostError` then. Other calls raise `NotCommittedError`
            if nothing was applied, and `OutcomeUnknownError` if it may have been applied.
        tls: a context that verifies host names, as `ssl.create_default_context` returns it; None: no TLS.
        auth: credentials, which are sent on every connection.
        acl: the access control list of every znode that is created. By default it allows only the user of ``auth``
            (and clients with the same certificate, if one is used), or everyone without ``auth``.
        clock: replaces the system clock in tests.
        janitor: whether this session helps to clean the queues it uses (see `QueueConfig.clean_every`).
        node: the name by which queues with `QueueConfig.affinity` keep messages together, by default the host's name.
            Use one name for all sessions that may take each other's messages, and the same after a restart.
        name: a name of up to 100 characters for this session, such as the service's, which lists of consumers show
            with the host and the process. Several sessions may share a name.
        tracing: whether OpenTelemetry traces messages, whose headers then contain the context (see
            `aiozkqueue.tracing`). By default it does if the program has set up a tracer provider before it connects.

    Raises:
        ConnectionLostError: on entering, if no server answers within ``connect_timeout``, or if the server is older
            than ZooKeeper 3.6.
        AccessDeniedError: on entering, if the credentials are rejected.
        InvalidOptionError: at once, if an option is out of range or the hosts do not parse.
        WrongLoopError: on entering, if no asyncio event loop runs here (trio's, or none).
        RuntimeError: on leaving, if a handler of the session leaves the block; the session stays open. Another task
            that the handler has started may leave it, which cancels the handler.
        MissingExtraError: on entering, if ``tracing=True`` is given without the extra ``observability``.
    """
    parse_hosts(hosts)
    root = check_root(root)
    timeout = required_seconds(session_timeout, "session_timeout")
    first_wait = required_seconds(connect_timeout, "connect_timeout")
    operation_limit = required_seconds(operation_timeout, "operation_timeout")
    for option, given, length in (
        ("session_timeout", session_timeout, timeout),
        ("connect_timeout", connect_timeout, first_wait),
        ("operation_timeout", operation_timeout, operation_limit),
    ):
        if not length:
            msg = f"{option}={given!r}: give more than 0 seconds"
            raise InvalidOptionError(msg)
    if tls is not None and not isinstance(cast("object", tls), ssl.SSLContext):
        msg = f"tls takes an ssl.SSLContext, as ssl.create_default_context() returns, not {type(tls).__name__}"
        raise InvalidOptionError(msg)
    if clock is not None and not isinstance(cast("object", clock), Clock):
        msg = f"clock takes a Clock, such as aiozkqueue.testing.TestClock(), not {type(clock).__name__}"
        raise InvalidOptionError(msg)
    if node is not None and not is_storable(text(node, "node", "the name of a node")):
        msg = f"node={node!r}: give a name of valid Unicode, or leave it out for the host's name"
        raise InvalidOptionError(msg)
    if name is not None and not (
        text(name, "name", "the name of the session").isprintable() and 1 <= len(name) <= LONGEST_NAME
    ):
        msg = f"name={name!r}: give a name of 1 to {LONGEST_NAME} printable characters, or leave it out"
        raise InvalidOptionError(msg)
    if tracing is not None and not isinstance(tracing, bool) and not callable(getattr(tracing, "sending", None)):
        msg = f"tracing takes True, False, None or a Tracing, not {type(tracing).__name__}"
        raise InvalidOptionError(msg)
    return cast(
        "AbstractAsyncContextManager[QueueSession]",
        _Connecting(
            hosts,
            partial(
                _core,
                root=root,
                clock=Clock() if clock is None else clock,
                janitor=flag(janitor, "janitor"),
                node=node,
                name=None if name is None else plain(name),
            ),
            first_wait,
            tracing=tracing,
            operation_timeout=operation_limit,
            session_timeout=timeout,
            tls=tls,
            auth=_values_of(auth, Auth, "auth"),
            acl=None if acl is None else _values_of(acl, Acl, "acl"),
        ),
    )


def _core(zookeeper: ZooKeeper, *, name: str | None, **options: Any) -> SessionCore:  # noqa: ANN401 - those of the core
    """Return the core of a session of this process."""
    return SessionCore(zookeeper, about=this_process(name or "").encode(), **options)


def _values_of(given: object, kind: type[T], option: str) -> tuple[T, ...]:
    """Return the values of a list. Passwords among them never appear in errors. Raises: InvalidOptionError."""
    iterable = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    values = tuple(cast("Iterable[object]", given)) if iterable else (None,)
    for value in values:
        if not isinstance(value, kind):
            name = kind.__name__
            msg = f"{option} takes a list of {name}, such as {option}=[{name}.digest(user, password)]"
            raise InvalidOptionError(msg)
    return cast("tuple[T, ...]", values)


def _tracing_of(*, option: Tracing | bool | None) -> Tracing | None:
    """Return the tracing of a session: the given one, or OpenTelemetry if it is requested or set up.

    Raises:
        MissingExtraError: it is asked for, and not installed.
    """
    if option is None:
        api = sys.modules.get("opentelemetry.trace")
        if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return None  # the program has not set OpenTelemetry up
    elif isinstance(option, bool):
        if not option:
            return None
    else:
        return option
    try:
        from aiozkqueue.tracing import OpenTelemetry  # noqa: PLC0415 - an extra, for those who use it
    except ImportError:
        if option is None:
            return None
        raise
    return OpenTelemetry()
