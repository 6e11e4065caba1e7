"""What all handlers share: the queue session, the keys, and how long a request may wait for ZooKeeper."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, cast

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
from aiozkqueue.sampling import Sampler
from aiozkqueue.zookeeper import ConnectionLossError, NoAuthError, State, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from . import parameters, problems
from .gate import Gate
from .keys import Keys
from .names import Kind
from .service import QueueService
from .tokens import MessageIds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.queue.session import QueueSession

    from .metrics import Metrics

P = ParamSpec("P")


def _metrics_type() -> type[Metrics] | None:
    try:
        from .metrics import Metrics  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Metrics


_METRICS: Final = _metrics_type()

#: ZooKeeper does not answer.
_AWAY: Final = (
    TimeoutError,
    ConnectionLostError,
    ConnectionLossError,
    ZooKeeperSessionExpiredError,
    OutcomeUnknownError,
    SessionClosedError,
)

log: Final = logging.getLogger(__name__)

#: How often the moves of servers that are gone are looked for, seconds.
MOVES_LOOK: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the service behaves.

    Args:
        anonymous: what requests without a key may do, such as ``("queue|*|*",)``; nothing by default.
        rate: requests a second for each key; None: any number.
        body_limit: bytes that a request's body may have.
        batch_limit: messages that a request may send.
        patience: seconds that a request waits for ZooKeeper before it is answered with 503.
        separate_purge: whether emptying a queue needs the permission ``purge``; EmoDB asks for ``poll``.
    """

    anonymous: Sequence[str] = ()
    rate: float | None = None
    body_limit: int = 32 * 1024 * 1024
    batch_limit: int = 100_000
    patience: float = 10.0
    separate_purge: bool = False


class Backend:
    """The queue session of one server, while it is open."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._session: QueueSession | None = None
        self._gate: Gate | None = None
        self._services: dict[Kind, QueueService] = {}
        self._sampler: Sampler | None = None
        self.metrics: Metrics | None = None if _METRICS is None else _METRICS(lambda: self._sampler)
        """None where ``aiozkqueue[observability]`` is not installed."""
        self.leaving: asyncio.Event = asyncio.Event()
        """Set when the server is about to stop: who waits for messages is sent home."""

    @asynccontextmanager
    async def running(self, connecting: Callable[[], AbstractAsyncContextManager[QueueSession]]) -> AsyncIterator[None]:
        """Open the session; close it at the end."""
        async with connecting() as session:
            settings = self.settings
            self.leaving.clear()
            self._session = session
            self._gate = Gate(Keys(session.engine), anonymous=settings.anonymous, rate=settings.rate)
            ids = MessageIds(session.engine)
            self._services = {kind: QueueService(session, kind, ids) for kind in Kind}
            self._sampler = Sampler(session)
            tasks = [
                asyncio.create_task(_take_up_moves(session), name="moves of others"),
                asyncio.create_task(self._sampler.run(), name="figures of the queues"),
            ]
            try:
                yield
            finally:
                self.leaving.set()
                self._session = self._gate = self._sampler = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def session(self) -> QueueSession:
        """The session. Raises: ProblemError: it is not open."""
        if self._session is None:
            raise problems.unavailable()
        return self._session

    @property
    def gate(self) -> Gate:
        """Who lets requests in. Raises: ProblemError."""
        if self._gate is None:
            raise problems.unavailable()
        return self._gate

    @property
    def sampler(self) -> Sampler:
        """Who looks at the queues' figures. Raises: ProblemError."""
        if self._sampler is None:
            raise problems.unavailable()
        return self._sampler

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper answers now."""
        return self._session is not None and self._session.engine.zookeeper.state is State.CONNECTED

    def service(self, kind: Kind) -> QueueService:
        """One of the two services. Raises: ProblemError."""
        service = self._services.get(kind)
        if service is None or self._session is None:
            raise problems.unavailable()
        return service

    def patient(
        self, handler: Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]]
    ) -> Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]]:
        """Return a handler that answers 503 when ZooKeeper keeps it waiting longer than its client asks for."""

        @functools.wraps(handler)
        async def limited(request: Request, *args: P.args, **kwargs: P.kwargs) -> Response:
            try:
                async with asyncio.timeout(self.settings.patience):
                    await self.session.engine.zookeeper.wait_connected()  # so that nothing is begun that would hang
                async with asyncio.timeout(self.settings.patience + parameters.asked_to_wait(request)):
                    return await handler(request, *args, **kwargs)
            except problems.ProblemError as problem:
                return problem.response
            except (TimeoutError, QueueError, ZooKeeperError) as error:
                refusal = _problem_of(error)
                if refusal is None:
                    raise
                log.warning("%s %s: %r", request.method, request.url.path, error)
                return refusal.response

        return cast("Callable[Concatenate[Request, P], Coroutine[Any, Any, Response]]", limited)


def _problem_of(error: Exception) -> problems.ProblemError | None:
    """What a client is told of an error that is not its own; None of one that should not be."""
    if isinstance(error, _AWAY):
        return problems.unavailable()
    if isinstance(error, AccessDeniedError | NoAuthError):
        return problems.unavailable("ZooKeeper does not let this server use the queue")
    if isinstance(error, NotCommittedError):  # a full queue among them
        return problems.unavailable(str(error))
    if isinstance(error, ConfigConflictError | PayloadError):
        return problems.conflict(str(error))
    return None


async def _take_up_moves(session: QueueSession) -> None:
    """Go on with the moves of servers that are gone."""
    while True:
        try:
            await session.moves.resume()
        except (QueueError, ZooKeeperError) as error:
            log.warning("moves: %s", error)
        await asyncio.sleep(MOVES_LOOK)
