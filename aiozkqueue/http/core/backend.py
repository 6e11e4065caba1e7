"""The parts that all handlers share: the queue session, the keys, and the time limit for ZooKeeper's answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, cast

from aiozkqueue.arguments import collection
from aiozkqueue.errors import (
    AccessDeniedError,
    ConfigConflictError,
    ConnectionLostError,
    NotCommittedError,
    OutcomeUnknownError,
    PayloadError,
    QueueError,
    SessionClosedError,
)
from aiozkqueue.runtime.acl_errors import exceeds_quota
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import ConnectionLossError, NoAuthError, ServerError, State, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from . import limits, parameters, problems
from .charts import Charts
from .gate import Gate
from .keys import Keys
from .limits import LoopShare
from .names import Kind
from .purging import Purges
from .remedies import text_of
from .service import QueueService
from .shared_readings import SharedReadings
from .tokens import MessageIds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.session.session import QueueSession

    from .metrics import Metrics

    #: Opens a session for the duration of a block.
    Connecting = Callable[[], AbstractAsyncContextManager[QueueSession]]

P = ParamSpec("P")


def _metrics_type() -> type[Metrics] | None:
    try:
        from .metrics import Metrics  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Metrics


_METRICS: Final = _metrics_type()

#: ZooKeeper does not answer.
_UNAVAILABLE: Final = (
    TimeoutError,
    ConnectionLostError,
    ConnectionLossError,
    ZooKeeperSessionExpiredError,
    OutcomeUnknownError,
    SessionClosedError,
)

log: Final = logging.getLogger(__name__)

#: Seconds without a connection to ZooKeeper after which requests are refused at once.
RECONNECT_GRACE: Final = 1.0
#: Seconds between two checks for moves of servers that no longer exist.
POLL_MOVES: Final = 5.0
#: The shortest time between two log records that this is refused, seconds.
LOGGED_EVERY: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the service."""

    anonymous: Sequence[str] = ()
    """The permissions of requests without a key, such as ``("queue|*|*",)``.

    Requests that another site makes a browser send have no permissions."""
    hosts: Sequence[str] | None = None
    """The host names that requests without a key may use, besides addresses and names that do not exist in public DNS.
    ``"*"``: any. None: names are not checked."""
    rate: float | None = None
    """The maximum number of requests per second for each key, and for each address without a key; None: unlimited."""
    body_limit: int = 32 * 1024 * 1024
    """The maximum size of the body of a batch, bytes. The limit of a single message, or of a list of ids, is 1 MiB."""
    batch_limit: int = 100_000
    """The maximum number of messages in a request."""
    request_timeout: float = 9.0
    """How long a request waits for ZooKeeper after the end of its body before it fails with 503, seconds."""
    separate_purge: bool = False
    """Whether emptying a queue needs the permission ``purge``; EmoDB requires ``poll``."""

    def __post_init__(self) -> None:
        """Refuse a text in place of a collection. Raises: InvalidOptionError."""
        collection(self.anonymous, "anonymous", "permissions, 'queue|VERB|NAME'")
        if self.hosts is not None:
            collection(self.hosts, "hosts", "host names")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server while its sessions are open."""

    session: QueueSession
    listing: QueueSession
    """The session for listings of deep queues. ZooKeeper answers the requests of a connection in their order, so all
    others would wait until a million names have been sent."""
    gate: Gate
    services: Mapping[Kind, QueueService]
    sampler: Sampler
    """The reader of the queues' figures."""
    charts: Charts
    """The samples that are stored for charts."""
    shared: SharedReadings
    """The readings that all visitors of the dashboard share."""
    purges: Purges


class Backend:
    """The queue sessions of one server, while they are open."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._parts: Parts | None = None
        self._disconnected_since = 0.0  # where the session is not connected
        self._given_up: set[asyncio.Task[Response]] = set()
        self.loop_share: LoopShare = LoopShare()
        """The share of the event loop for the parsing of bodies."""
        figures = (lambda: self._sampler, lambda: self._state)
        self.metrics: Metrics | None = None if _METRICS is None else _METRICS(*figures)
        """None if ``aiozkqueue[observability]`` is not installed."""
        self.leaving: asyncio.Event = asyncio.Event()
        """Set when the server is about to stop: requests that wait for messages are answered."""

    @asynccontextmanager
    async def running(self, connecting: Connecting, connecting_listing: Connecting) -> AsyncIterator[None]:
        """Open the two sessions; close them at the end."""
        async with connecting() as session, connecting_listing() as listing:
            self.leaving.clear()
            zookeeper = core_of(session).zookeeper
            core_of(listing).zookeeper.log_outages_with(zookeeper)
            self._parts = parts = _parts_of(session, listing, self.settings)
            self._disconnected_since = time.monotonic()
            off = zookeeper.on_state(self._state_changed)
            tasks = [
                asyncio.create_task(_take_up_moves(session), name="moves of servers that ended"),
                asyncio.create_task(parts.sampler.run(), name="figures of the queues"),
                asyncio.create_task(parts.charts.run(), name="samples for the charts"),
            ]
            for task in tasks:
                task.add_done_callback(_log_defect)
            try:
                yield
            finally:
                off()
                self.leaving.set()
                self._parts = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await parts.shared.close()
                if self._given_up:
                    await asyncio.wait(self._given_up, timeout=self.settings.request_timeout)

    def _state_changed(self, state: State, _: int) -> None:
        if state is State.SUSPENDED:
            self._disconnected_since = time.monotonic()

    @property
    def parts(self) -> Parts:
        """The parts of the server. Raises: ProblemError: its sessions are not open."""
        if self._parts is None:
            raise problems.unavailable()
        return self._parts

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper answers now and the server is not about to stop."""
        return self._state is State.CONNECTED and not self.leaving.is_set()

    @property
    def _sampler(self) -> Sampler | None:
        return None if self._parts is None else self._parts.sampler

    @property
    def _state(self) -> State | None:
        return None if self._parts is None else core_of(self._parts.session).zookeeper.state

    def limited(
        self,
        handler: Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]],
        reads: Callable[[Request], bool] = lambda _: True,
    ) -> Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]]:
        """Return a handler that answers 503 if ZooKeeper delays it for longer than its client asks for.

        ``reads`` returns whether a request needs ZooKeeper; if it does not, it is served without a connection.

        The time counts from the end of the request's body. The abandoned work is cancelled, but not awaited: a commit
        whose outcome is unknown takes up to ten more seconds to end.
        """

        @functools.wraps(handler)
        async def within_limit(request: Request, *args: P.args, **kwargs: P.kwargs) -> Response:
            limit = limits.RequestDeadline(self.settings.request_timeout + parameters.asked_to_wait(request))
            limits.attach(request, limit)
            try:
                if reads(request):
                    await self._wait_connected()  # so that no work begins that would hang
                return await self._within(limit, handler(request, *args, **kwargs))
            except problems.ProblemError as problem:
                return problem.response
            except (TimeoutError, QueueError, ZooKeeperError) as error:
                refusal = _problem_of(error)
                if refusal is None:
                    raise
                if self.connected:  # otherwise the session logs the outage
                    # The path may contain anything, including control characters of terminals.
                    log.warning("%r %r: %r", request.method, request.url.path, error)
                return refusal.response
            finally:
                limit.end()

        return cast("Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]]", within_limit)

    async def _wait_connected(self) -> None:
        """Wait for the end of a short interruption. Raises: ProblemError: the interruption takes longer."""
        zookeeper = core_of(self.parts.session).zookeeper
        if zookeeper.state is State.CONNECTED:
            return
        left = min(RECONNECT_GRACE, self.settings.request_timeout) - (time.monotonic() - self._disconnected_since)
        if left <= 0:
            raise problems.unavailable()
        async with asyncio.timeout(left):
            await zookeeper.wait_connected()

    async def _within(self, limit: limits.RequestDeadline, work: Coroutine[Any, Any, Response]) -> Response:
        task = asyncio.create_task(work)
        try:
            ends: list[asyncio.Future[Any]] = [task, limit.over]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.done():
            return task.result()
        task.cancel()
        self._given_up.add(task)
        task.add_done_callback(self._ended)
        raise TimeoutError

    def _ended(self, task: asyncio.Task[Response]) -> None:
        self._given_up.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, problems.ProblemError | QueueError | ZooKeeperError):
            log.error("a request failed after its response 503", exc_info=error)


def _parts_of(session: QueueSession, listing: QueueSession, settings: Settings) -> Parts:
    """Return the parts of a server with these sessions."""
    core = core_of(session)
    ids, purges, sampler = MessageIds(core), Purges(session), Sampler(session)
    return Parts(
        session,
        listing,
        Gate(Keys(core), anonymous=settings.anonymous, hosts=settings.hosts, rate=settings.rate),
        {kind: QueueService(session, kind, ids, purges) for kind in Kind},
        sampler,
        Charts(core, sampler),
        SharedReadings(),
        purges,
    )


def _problem_of(error: Exception) -> problems.ProblemError | None:
    """Return the response for an error that the client has not caused; None for a defect."""
    if isinstance(error, _UNAVAILABLE) and not isinstance(error.__cause__, ServerError):
        return problems.unavailable()
    if isinstance(error, AccessDeniedError | NoAuthError):
        what = "a quota of ZooKeeper" if exceeds_quota(error) else "an ACL"
        return problems.unavailable(f"{what} does not allow this; the log of this server names the znode")
    if isinstance(error, NotCommittedError):  # includes a full queue
        return problems.unavailable(text_of(error))
    if isinstance(error, ConfigConflictError | PayloadError):
        return problems.conflict(text_of(error))
    if isinstance(error, ZooKeeperError | ConnectionLostError):  # a server has answered, with another error
        return problems.unavailable("ZooKeeper refuses this; the log of this server names the znode and the error")
    return None


def _log_defect(task: asyncio.Task[None]) -> None:
    """Log the error of a task that should run until the server stops."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s: this task has failed; restart the server", task.get_name(), exc_info=error)


async def _take_up_moves(session: QueueSession) -> None:
    """Continue the moves of servers that no longer exist."""
    logged_at = float("-inf")
    while True:
        try:
            await session.admin.moves.resume()
        except (QueueError, ZooKeeperError) as error:
            now, connected = time.monotonic(), core_of(session).zookeeper.state is State.CONNECTED
            if connected and now - logged_at >= LOGGED_EVERY:  # otherwise the session logs the outage
                logged_at = now
                log.warning("unfinished moves are not continued: %s; the next try is in %g s", error, POLL_MOVES)
        await asyncio.sleep(POLL_MOVES)
