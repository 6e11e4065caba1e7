"""A session on an event loop in a separate thread, for Spark's synchronous readers and writers."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, TypeVarTuple

from anyio.from_thread import start_blocking_portal

from aiozkqueue.errors import ConnectionLostError, InvalidOptionError, NotFoundError
from aiozkqueue.operations.similar import absence
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.session.connect import connect
from aiozkqueue.session.credentials import credentials_of_environment, credentials_of_file
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import (
    Auth,
    ConnectionLossError,
    MultiError,
    NoAuthError,
    RenewedContext,
    SessionExpiredError,
    State,
    TlsFiles,
)

from .orphans import TICK, end_with_parent

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from concurrent.futures import Future

    from anyio.from_thread import BlockingPortal

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.zookeeper import ZooKeeper

    from .options import Options, Servers

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVarTuple("A")


class Link(NamedTuple):
    """An open session, with calls into its event loop."""

    portal: BlockingPortal
    session: QueueSession
    options: Options
    zookeeper: ZooKeeper

    @classmethod
    def of(cls, portal: BlockingPortal, session: QueueSession, options: Options) -> Link:
        """Return the link to one queue of a session."""
        return cls(portal, session, options, portal.call(_zookeeper_of, session))

    def call(self, function: Callable[[*A], Awaitable[T]], *arguments: *A) -> T:
        """Call a function on the session's loop, and wait for its result. Raises: as `result_of`."""
        return self.result_of(self.start(function, *arguments))

    def start(self, function: Callable[[*A], Awaitable[T]], *arguments: *A) -> Future[T]:
        """Call a function on the session's loop, without waiting. The end of the session cancels it."""
        return self.portal.start_task_soon(function, *arguments)

    def each_of(self, values: AsyncIterator[T]) -> Iterator[T]:
        """Yield the values of an iterator that runs on the session's loop. Raises: as `result_of`."""
        while (value := self.call(_next_of, values)) is not None:
            yield value

    def result_of(self, future: Future[T]) -> T:
        """Wait for the result of a call.

        Raises:
            ConnectionLostError: there was no connection for `Servers.outage_timeout` seconds. Errors of the function
                are raised as errors of this library.
        """
        try:
            return self._result_of(future)
        except NoAuthError as error:
            raise access_denied(self.options.queue, error) from error
        except MultiError as refusal:
            if not isinstance(refusal.error, NoAuthError):
                raise
            raise access_denied(self.options.queue, refusal.error) from refusal
        except (ConnectionLossError, SessionExpiredError) as error:
            msg = f"queue {self.options.queue!r}: the connection was lost: {error}"
            raise ConnectionLostError(msg) from error

    def _result_of(self, future: Future[T]) -> T:
        lost: float | None = None
        try:
            while True:
                done, _ = wait([future], TICK)
                if done:
                    return future.result()
                if self.zookeeper.state is State.CONNECTED:
                    lost = None
                    continue
                lost = lost or time.monotonic()
                if time.monotonic() - lost >= self.options.outage_timeout:
                    msg = (
                        f"queue {self.options.queue!r}: no server of {self.options.hosts} has been reachable for "
                        f"{self.options.outage_timeout:g} seconds. Restart the query or the job when ZooKeeper is "
                        "available again, or set a larger outageTimeout"
                    )
                    log.warning(msg, extra={"queue": self.options.queue})
                    raise ConnectionLostError(msg)
        finally:
            future.cancel()

    @property
    def runtime(self) -> SessionCore:
        """The session's core, for code that runs on its loop."""
        return core_of(self.session)

    @property
    def state(self) -> QueueState:
        """The session's state of the queue."""
        return self.handle.state

    @property
    def handle(self) -> QueueHandle[SessionCore]:
        """The handle of the queue."""
        return core_of(self.session).handle(self.options.queue)


@contextmanager
def opened(servers: Servers) -> Iterator[tuple[BlockingPortal, QueueSession]]:
    """Open a session for the block. It does no clean-up, because only long-lived sessions clean.

    Raises: as `connect`; InvalidOptionError: a file that an option names cannot be used.
    """
    end_with_parent()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            connect(
                servers.hosts,
                root=servers.root,
                session_timeout=servers.session_timeout,
                connect_timeout=servers.connect_timeout,
                tls=_tls(servers),
                auth=_auth(servers),
                janitor=False,
            )
        ) as session,
    ):
        yield portal, session


@contextmanager
def linked(options: Options) -> Iterator[Link]:
    """Open a session for the work on one queue. Raises: as `opened`."""
    with opened(options) as (portal, session):
        yield Link.of(portal, session, options)


async def require_queue(link: Link) -> None:
    """Check that the queue exists. Raises: NotFoundError."""
    if not await link.state.exists():
        raise NotFoundError(await absence(core_of(link.session), link.options.queue))


async def _next_of(values: AsyncIterator[T]) -> T | None:
    return await anext(values, None)


async def _zookeeper_of(session: QueueSession) -> ZooKeeper:
    return core_of(session).zookeeper


def _auth(servers: Servers) -> list[Auth]:
    if servers.auth_file is None:
        return credentials_of_environment()
    try:
        return credentials_of_file(servers.auth_file, "authFile")
    except InvalidOptionError as error:
        msg = f"{error}; the file must be on the driver and every executor"
        raise InvalidOptionError(msg) from None


def _tls(servers: Servers) -> ssl.SSLContext | None:
    if servers.tls_ca is None and servers.tls_cert is None:
        return None
    try:
        return RenewedContext(TlsFiles(servers.tls_ca, servers.tls_cert, servers.tls_key))
    except OSError as error:  # includes ssl.SSLError
        msg = f"tlsCa, tlsCert or tlsKey is not a usable PEM file on this machine: {error}"
        raise InvalidOptionError(msg) from error
