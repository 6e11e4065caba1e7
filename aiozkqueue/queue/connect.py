"""Opening a session, and closing it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, InvalidOptionError, WrongLoopError
from aiozkqueue.layout import check_root
from aiozkqueue.zookeeper import Acl, Auth, AuthFailedError, ZooKeeperError, parse_hosts
from aiozkqueue.zookeeper import connect as connect_zookeeper

from .options import required_seconds
from .runtime.clock import Clock
from .session import QueueSession
from .session_core import SessionCore
from .tracing import tracing_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from .options import Seconds
    from .tracing import Tracing

T = TypeVar("T")


class _Connecting:
    """What ``async with connect(...)`` enters and leaves."""

    def __init__(
        self,
        hosts: str,
        root: str,
        clock: Clock,
        connect_timeout: float,
        *,
        janitor: bool,
        node: str | None,
        tracing: Tracing | bool | None,
        **options: Any,  # noqa: ANN401 - handed on to the client's connect, which has their types
    ) -> None:
        self._hosts = hosts
        self._root = root
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._janitor = janitor
        self._node = node
        self._tracing = tracing
        self._options = options
        self._engine: SessionCore | None = None

    async def __aenter__(self) -> QueueSession:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio's, or none
            msg = (
                "no event loop of asyncio runs here, and a session needs one: run the program with asyncio.run(main()) "
                'or with anyio.run(main, backend="asyncio")'
            )
            raise WrongLoopError(msg) from None
        tracing = tracing_of(option=self._tracing)
        try:
            zookeeper = await connect_zookeeper(self._hosts, connect_timeout=self._connect_timeout, **self._options)
        except AuthFailedError as error:
            raise AccessDeniedError(str(error)) from error
        except ZooKeeperError as error:
            raise ConnectionLostError(str(error)) from error
        engine = SessionCore(
            zookeeper, self._root, self._clock, janitor=self._janitor, node=self._node, tracing=tracing
        )
        try:
            await engine.start()
        except BaseException:  # whatever ends it here, nobody else closes what is open
            await engine.close()
            raise
        self._engine = engine
        return QueueSession(engine)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._engine is not None:
            await self._engine.close()


def connect(
    hosts: str,
    *,
    root: str = "/zms",
    session_timeout: Seconds = 10,
    connect_timeout: Seconds = 15,
    tls: ssl.SSLContext | None = None,
    auth: Sequence[Auth] = (),
    acl: Sequence[Acl] | None = None,
    clock: Clock | None = None,
    janitor: bool = True,
    node: str | None = None,
    tracing: Tracing | bool | None = None,
) -> AbstractAsyncContextManager[QueueSession]:
    """Open a session: ``async with aiozkqueue.connect("h1:2181,h2:2181/chroot") as session``.

    ``root`` is where the queues lie. ``session_timeout`` is how long a dead process keeps its messages (the server
    may negotiate it), ``connect_timeout`` how long to wait for the first connection. ``tls`` is a context that
    verifies host names; ``auth`` is sent on every connection; ``acl`` is set on every znode made (with ``auth``:
    for that user only, and for who presents the same client certificate, where there is one; without: for everybody).
    ``clock`` replaces the system's, in tests.
    With ``janitor``, this session takes its turn at cleaning the queues it uses (see `QueueConfig.clean_every`).
    ``node`` names what queues with `QueueConfig.affinity` keep together, the host by default: one name for all that
    may take each other's messages, the same after a restart.
    ``tracing`` is whether messages are followed by OpenTelemetry (see `aiozkqueue.tracing`): by default if the program
    has set up a tracer provider before it connects. Their headers carry the context then.

    On leaving, what is under way is settled within the session timeout, then all locks are gone.

    Raises:
        ConnectionLostError: on entering, no server answered within ``connect_timeout``.
        AccessDeniedError: on entering, the credentials were refused.
        InvalidOptionError: at once, an option is out of range, or the hosts do not parse.
        WrongLoopError: on entering, no event loop of asyncio's runs here: trio's, say, or none.
        MissingExtraError: on entering, ``tracing=True`` without the extra ``observability``.
    """
    parse_hosts(hosts)
    check_root(root)
    timeout = required_seconds(session_timeout, "session_timeout")
    patience = required_seconds(connect_timeout, "connect_timeout")
    for option, given, length in (
        ("session_timeout", session_timeout, timeout),
        ("connect_timeout", connect_timeout, patience),
    ):
        if not length:
            msg = f"{option}={given!r}: give more than 0 seconds"
            raise InvalidOptionError(msg)
    if tls is not None and not isinstance(cast("object", tls), ssl.SSLContext):
        msg = f"tls takes an ssl.SSLContext, as ssl.create_default_context() returns, not {type(tls).__name__}"
        raise InvalidOptionError(msg)
    return cast(
        "AbstractAsyncContextManager[QueueSession]",
        _Connecting(
            hosts,
            root,
            clock or Clock(),
            patience,
            janitor=janitor,
            node=node,
            tracing=tracing,
            session_timeout=timeout,
            tls=tls,
            auth=_several(auth, Auth, "auth"),
            acl=None if acl is None else _several(acl, Acl, "acl"),
        ),
    )


def _several(given: object, kind: type[T], option: str) -> tuple[T, ...]:
    """Return what a list holds, whose values may be passwords, so that none is shown. Raises: InvalidOptionError."""
    values = tuple(cast("Iterable[object]", given)) if isinstance(given, Iterable) else (None,)
    for value in values:
        if not isinstance(value, kind):
            name = kind.__name__
            msg = f"{option} takes a list of {name}, such as {option}=[{name}.digest(user, password)]"
            raise InvalidOptionError(msg)
    return cast("tuple[T, ...]", values)
