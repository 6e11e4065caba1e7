"""aiozk's own public client, its recipes included, on this package's session.

For programs that already speak aiozk. What differs from stock: a write is sent once, and a lost connection raises
`aiozk.exc.ConnectError` instead of sending it again; `Transaction` tells the paths that were truly created and which
operation failed; container znodes are containers.
"""

# pyright: basic, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# aiozk has no types: what comes from it is checked where it leaves this module.

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import aiozk
from aiozk import exc, protocol
from aiozk.features import Features
from aiozk.recipes.proxy import RecipeProxy
from aiozk.states import States
from aiozk.transaction import Result as AiozkResult
from aiozk.transaction import Transaction as AiozkTransaction

from aiozkqueue.zookeeper import errors, wire
from aiozkqueue.zookeeper.hosts import parse_hosts
from aiozkqueue.zookeeper.interface import State
from aiozkqueue.zookeeper.session import Session

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from aiozkqueue.zookeeper.auth import Auth

_OLDEST_SERVER = (3, 6, 0)
_CREATES = frozenset({wire.CREATE, wire.CREATE2})
#: exists, getData, getACL, getChildren, sync, getChildren2: these may be sent again.
_REPEATABLE = frozenset({3, 4, 6, 8, 9, 12})
_STATES = {State.CONNECTED: States.CONNECTED, State.SUSPENDED: States.SUSPENDED}


class Client(aiozk.ZKClient):  # type: ignore[misc]  # aiozk has no types
    """`aiozk.ZKClient`: create, get, set, delete, exists, get_children, begin_transaction, recipes, and the rest.

    ``servers`` may end in a chroot, to which ``chroot`` is added. ``connect_timeout`` is for `start`, seconds, None
    for ever. Raises aiozk's exceptions.

    Raises:
        InvalidOptionError: ``servers`` cannot be meant.
    """

    def __init__(
        self,
        servers: str,
        chroot: str | None = None,
        session_timeout: float = 10.0,
        default_acl: Sequence[Any] | None = None,
        *,
        connect_timeout: float | None = 15.0,
        tls: ssl.SSLContext | None = None,
        auth: Sequence[Auth] = (),
        max_request: int = wire.MAX_REQUEST,
    ) -> None:
        # Not aiozk's own initialisation, which makes its own session: "h1:x" would hang that one's start() for ever.
        ensemble = parse_hosts(servers)
        self.chroot: str | None = ensemble.chroot or None
        if chroot:
            self.chroot = self.normalize_path(chroot)
        unrestricted = protocol.AUTHED_UNRESTRICTED if auth else protocol.UNRESTRICTED_ACCESS
        self.default_acl: list[Any] = list(default_acl or [unrestricted])
        self.stat_cache: dict[str, Any] = {}
        self.session: AiozkSession = AiozkSession(
            Session(ensemble, timeout=session_timeout, tls=tls, auth=auth, max_request=max_request)
        )
        self.recipes: RecipeProxy = RecipeProxy(self)
        self._connect_timeout = connect_timeout

    @property
    def features(self) -> Features:
        """What the oldest server supported can do; asking each server would need a connection of its own."""
        return Features(_OLDEST_SERVER)

    async def start(self) -> None:
        """Connect, and create the chroot if it is not there.

        Raises:
            aiozk.exc.NoServersError: no server has answered in ``connect_timeout`` seconds.
            aiozk.exc.AuthFailed: the credentials were refused.
        """
        await self.session.start(self._connect_timeout, self._prepare)

    async def _prepare(self) -> None:
        if self.chroot:
            await self.ensure_path("/")

    def begin_transaction(self) -> Transaction:
        """Collect operations; `Transaction.commit` sends them, all or nothing."""
        return Transaction(self)


class Result(AiozkResult):  # type: ignore[misc]  # aiozk has no types
    """aiozk's sets of paths, with the names that sequential znodes truly got; falsy when nothing was applied.

    ``results`` holds, in the order of the operations, what each gave: a path, a stat, or None; of a transaction that
    was refused, the exceptions (the first that is no `aiozk.exc.RolledBack` is the reason).
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []


class Transaction(AiozkTransaction):  # type: ignore[misc]  # aiozk has no types
    """aiozk's transaction, which drops the names of sequential znodes and the error of each operation."""

    async def commit(self) -> Result:
        """Send everything, once.

        Raises:
            ValueError: there is nothing to send.
            aiozk.exc.ConnectError: the connection was lost; applied or not, nobody knows.
        """
        if not self.request.requests:
            raise ValueError("No operations to commit.")
        response = await self.client.send(self.request)
        result = Result()
        for request, reply in zip(self.request.requests, response.responses, strict=True):
            result.results.append(self._result(result, request, reply))
        return result

    def _result(self, result: Result, request: Any, reply: Any) -> object:  # noqa: ANN401 - aiozk has no types
        path = self.client.denormalize_path(request.path)
        if isinstance(reply, (protocol.CreateResponse, protocol.Create2Response)):
            path = self.client.denormalize_path(reply.path)
            result.created.add(path)
            return path
        if isinstance(reply, protocol.SetDataResponse):
            result.updated.add(path)
            return reply.stat
        if isinstance(reply, Exception):
            return reply
        (result.deleted if isinstance(reply, protocol.DeleteResponse) else result.checked).add(path)
        return None

    async def __aexit__(self, exc_type: object, exception: BaseException | None, tb: object) -> None:
        """Commit on a clean exit.

        Raises:
            aiozk.exc.TransactionFailed: refused; the cause is the first failing operation's error.
        """
        if exception is not None:
            return
        result = await self.commit()
        if not bool(result):
            reasons = (e for e in result.results if not isinstance(e, exc.RolledBack))
            raise exc.TransactionFailed from next(reasons, None)


class AiozkSession:
    """What aiozk's client and recipes use of its session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.state: AiozkState = AiozkState(session)

    async def start(self, within: float | None, prepare: Callable[[], Any]) -> None:
        """Connect. Raises as `Client.start`."""
        try:
            await self._session.open(within, prepare)
        except errors.ConnectionLossError as error:
            raise exc.NoServersError(str(error)) from error
        except errors.ZooKeeperError as error:
            raise self._translated(error) from error

    async def close(self) -> None:
        """End the session, connected or not, within a second."""
        await self._session.close()

    async def ensure_safe_state(self, writing: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002 - aiozk's own
        """Wait until connected."""
        await self._session.wait_connected()

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - aiozk has no types
        """Send one of aiozk's requests and give its response; only what changes nothing is sent again after a loss."""
        for single in getattr(request, "requests", (request,)):
            if single.opcode in _CREATES and single.flags & protocol.CreateRequest.CONTAINER_FLAG:
                single.opcode = wire.CREATE_CONTAINER  # create2 with this flag makes a znode that is never collected
        path = getattr(request, "path", None)
        wanted = wire.Request(bytes(request.serialize()), _decoder(request.opcode), path)
        try:
            if request.opcode in _REPEATABLE:
                return await self._session.call(wanted)
            await self._session.wait_connected()
            return await self._session.submit(wanted)
        except errors.ZooKeeperError as error:
            raise self._translated(error) from error

    def add_watch_callback(self, event_type: int, path: str, callback: Callable[[str], object]) -> None:
        """Call back at each event of this type, until removed."""
        self._session.watches.one_shot[event_type, path].add(callback)

    def remove_watch_callback(self, event_type: int, path: str, callback: Callable[[str], object]) -> None:
        """Call back no more; nothing happens if it was not wanted."""
        one_shot = self._session.watches.one_shot
        one_shot[event_type, path].discard(callback)
        if not one_shot[event_type, path]:
            del one_shot[event_type, path]

    def _translated(self, error: errors.ZooKeeperError) -> Exception:
        code = wire.code_of(error)
        translated: Exception
        if code is not None:
            translated = exc.get_response_error(code)
        elif isinstance(error, errors.ConnectionLossError):
            server = self._session.ensemble.servers[0]
            translated = exc.ConnectError(server.host, server.port)
        elif isinstance(error, errors.SessionExpiredError):
            translated = exc.SessionLost(str(error))
        elif isinstance(error, errors.AuthFailedError):
            translated = exc.AuthFailed(str(error))
        else:
            translated = exc.ZKError(str(error))
        return translated


class AiozkState:  # noqa: PLW1641 - compared with a name, as aiozk's own
    """aiozk's state machine, as its recipes wait for it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def current_state(self) -> str:
        """One of aiozk's states."""
        return str(_STATES.get(self._session.state, States.LOST))

    def wait_for(self, *states: str) -> asyncio.Future[None]:
        """A future that is done as soon as one of these states is reached."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look(_state: object = None, _generation: object = None) -> None:
            if self.current_state in states and not future.done():
                future.set_result(None)

        off = self._session.states.on_change(look)
        future.add_done_callback(lambda _future: off())
        look()
        return future

    def remove_waiting(self, future: asyncio.Future[None], *_states: str) -> None:
        """Wait no longer."""
        future.cancel()

    def __eq__(self, state: object) -> bool:
        return self.current_state == state


def _decoder(opcode: int) -> Callable[[bytes, int], Any]:
    response = protocol.response_xref[wire.CREATE2 if opcode == wire.CREATE_CONTAINER else opcode]

    def decode(reply: bytes, offset: int) -> object:
        # aiozk's records trust every length; reading past the end is what stops them.
        try:
            return response.deserialize(reply[offset:])
        except (struct.error, UnicodeDecodeError, KeyError, MemoryError) as error:
            raise errors.ProtocolError(f"a reply to opcode {opcode} that cannot be read: {error!r}") from error

    return decode
