"""The client that the layers above use: `connect`, and the class behind the `ZooKeeper` protocol."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from aiozkqueue.zookeeper import handshake, records, wire
from aiozkqueue.zookeeper.auth import CREATOR, OPEN, Acl, Auth
from aiozkqueue.zookeeper.call_limit import current_call
from aiozkqueue.zookeeper.errors import (
    ConnectionLossError,
    MultiError,
    NodeExistsError,
    NoNodeError,
    ProtocolError,
    SessionExpiredError,
)
from aiozkqueue.zookeeper.hosts import parse_hosts
from aiozkqueue.zookeeper.interface import (
    Answer,
    C,
    Create,
    Node,
    Operation,
    Result,
    Stat,
    State,
    Versioned,
    WatchEvent,
    ZooKeeper,
)
from aiozkqueue.zookeeper.paths import parent_of
from aiozkqueue.zookeeper.session import Session
from aiozkqueue.zookeeper.watches import Mode, Registration

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

T = TypeVar("T")

#: Another client may delete a parent before its child is created; a server that reports it missing this often is
#: broken.
_PARENT_TRIES = 8


async def connect(
    hosts: str,
    *,
    session_timeout: float = 10.0,
    connect_timeout: float | None = 15.0,
    tls: ssl.SSLContext | None = None,
    auth: Sequence[Auth] = (),
    acl: Sequence[Acl] | None = None,
    max_request: int = wire.MAX_REQUEST,
) -> ZooKeeperClient:
    """Open a client that is connected and authenticated, and whose chroot exists.

    The server may grant another ``session_timeout`` (seconds) than requested. ``acl`` applies to every znode that the
    client creates; by default only the creator has access with credentials, and everyone without. ``max_request`` is
    the server's jute.maxbuffer, bytes.

    Raises:
        InvalidOptionError: an option is invalid.
        ConnectionLossError: no server answered within ``connect_timeout`` seconds (None: no limit).
        AuthFailedError: the credentials were refused.
        ProtocolError: the server's answers are inconsistent.
    """
    session = Session(parse_hosts(hosts), timeout=session_timeout, tls=tls, auth=auth, max_request=max_request)
    client = ZooKeeperClient(session, acl=acl if acl is not None else CREATOR if auth else OPEN)
    await session.open(connect_timeout, partial(client.ensure, "/"))
    return client


class ZooKeeperClient:
    """The `ZooKeeper` protocol on a `Session`; paths are below the chroot."""

    def __init__(self, session: Session, *, acl: Sequence[Acl] = OPEN) -> None:
        self._session = session
        self._states = session.states
        self._chroot = session.ensemble.chroot
        self._acl = wire.encode_acl(acl)
        self._unanswered = 0  # the multis in flight
        self._waiting_since: float | None = None  # when the first of them was sent, or the last answer came
        self._lost_at = float("-inf")  # when the last multi was lost

    @property
    def state(self) -> State:
        """The state of the client."""
        return self._states.state

    @property
    def generation(self) -> int:
        """The number of the ZooKeeper session, from 1."""
        return self._states.generation

    @property
    def session_id(self) -> int:
        """The server's id of the session."""
        return self._session.session_id

    @property
    def session_timeout(self) -> float:
        """The session timeout negotiated with the server, seconds."""
        return self._session.timeout

    @property
    def last_zxid(self) -> int:
        """The newest zxid seen; its upper 32 bits are the leader's epoch."""
        return self._session.last_zxid

    @property
    def last_received(self) -> float:
        """See `ZooKeeper`."""
        return self._session.last_received

    @property
    def last_answered(self) -> float:
        """See `ZooKeeper`."""
        received, since = self._session.last_received, self._waiting_since
        if since is None:
            return received
        # A lost multi is sent again soon after the next connection, unless its caller has given up.
        lost = self._unanswered or asyncio.get_running_loop().time() - self._lost_at < self.session_timeout
        return min(received, since) if lost else received

    @property
    def throttled(self) -> bool:
        """See `ZooKeeper`."""
        return self._session.pause > 0

    @property
    def max_request(self) -> int:
        """The maximum size of a request that the server accepts, bytes."""
        return self._session.max_request

    def request_size(self, operations: Sequence[Operation]) -> int:
        """Return the size of a multi of these operations on the wire, bytes, including the chroot and the ACLs."""
        return wire.multi_size(operations, chroot=self._chroot, acl=self._acl)

    def path_size(self, path: str) -> int:
        """Return the bytes of a path as the server stores it."""
        return len(wire.full_path(path, self._chroot).encode())

    def multi(
        self, operations: Sequence[Operation], *, generation: int | None = None, results: int | None = None
    ) -> asyncio.Future[list[Result]]:
        """Send all or nothing, once, when called; see `ZooKeeper.multi`."""
        request = wire.multi(operations, chroot=self._chroot, acl=self._acl, results=results)
        return self._counted(self._session.submit(request, generation=generation))

    def _counted(self, reply: asyncio.Future[T]) -> asyncio.Future[T]:
        """Return the reply to a multi, which also the limit of the call counts while the call sends its changes."""
        if not reply.done():
            if self._waiting_since is None:
                self._waiting_since = reply.get_loop().time()
            self._unanswered += 1
            reply.add_done_callback(self._on_reply)
        call = current_call.get()
        if call is not None and call.changing:
            call.count(reply)
        return reply

    def _on_reply(self, reply: asyncio.Future[Any]) -> None:
        """Note the answer to a multi, or its loss."""
        self._unanswered -= 1
        now = reply.get_loop().time()
        if not reply.cancelled() and isinstance(reply.exception(), ConnectionLossError | SessionExpiredError):
            self._lost_at = now
        else:
            self._waiting_since = now if self._unanswered else None

    async def read(self, path: str, *, generation: int | None = None) -> Node:
        """Return data and stat of a znode.

        Raises:
            NoNodeError: there is no such znode.
        """
        return await self._session.call(wire.get_data(path, chroot=self._chroot), generation=generation)

    async def check_version(self, within: float) -> None:
        """Check that the server knows the requests that ZooKeeper 3.6 introduced.

        Older servers know all requests of a put. Without this check, only the first take would fail.

        Raises:
            UnsupportedServerError: the server is older. ConnectionLossError: no answer within this many seconds.
        """
        with anyio.move_on_after(within):
            return await self._session.call(records.set_watches(self.last_zxid, records.WatchSet([], [])))
        raise ConnectionLossError(
            f"no ZooKeeper server at {self._session.ensemble} answered a request that needs ZooKeeper 3.6 within "
            f"{within:g} s; a ClickHouse Keeper that does not support it closes the connection"
        )

    async def read_many(self, paths: Sequence[str], *, generation: int | None = None) -> list[Node | None]:
        """Read several znodes in one request, in order; None for a znode that does not exist."""
        return await self._session.call(wire.multi_read(paths, chroot=self._chroot), generation=generation)

    async def read_versioned(self, paths: Sequence[str], *, generation: int | None = None) -> list[Versioned | None]:
        """As `read_many`, at half the cost of its decoding."""
        request = wire.multi_read_versioned(paths, chroot=self._chroot)
        return await self._session.call(request, generation=generation)

    async def children(self, path: str, *, generation: int | None = None) -> list[str]:
        """Return the names of a znode's children, unordered.

        Raises:
            NoNodeError: there is no such znode.
        """
        return await self._session.call(wire.get_children(path, chroot=self._chroot), generation=generation)

    async def children_into(self, path: str, collector: Callable[[], C], *, generation: int | None = None) -> C:
        """Pass the children of a znode to a collector as they arrive, and return it; see `ZooKeeper.children_into`.

        Raises:
            NoNodeError: there is no such znode.
        """
        request = wire.collect_children(path, collector, chroot=self._chroot)
        return (await self._session.call(request, generation=generation)).result()

    async def exists(self, path: str, *, generation: int | None = None) -> Stat | None:
        """Return a znode's stat; None if it does not exist."""
        try:
            return await self._session.call(wire.exists(path, chroot=self._chroot), generation=generation)
        except NoNodeError:
            return None

    @property
    def makes_open(self) -> bool:
        """See `ZooKeeper`."""
        return self._acl == wire.encode_acl(OPEN)

    async def acl(self, path: str) -> list[Acl]:
        """Return the ACL of a znode.

        Raises:
            NoNodeError: there is no such znode.
            NoAuthError: this user may not read it.
        """
        return await self._session.call(records.get_acl(wire.full_path(path, self._chroot)))

    @property
    def authenticated(self) -> bool:
        """Whether credentials are sent."""
        return self._session.authenticated

    async def ask_servers(self, word: str) -> dict[str, Answer]:
        """Return each server's answer to a four-letter command, or why it has not answered."""
        session = self._session
        servers = session.ensemble.servers
        answers = await asyncio.gather(*(handshake.ask(server, word, session.tls) for server in servers))
        return {str(server): answer for server, answer in zip(servers, answers, strict=True)}

    async def smaller_limits(self) -> dict[str, int]:
        """Return the request limits of those servers where it is smaller than this client expects, bytes."""
        session = self._session
        servers = session.ensemble.servers
        limits = await asyncio.gather(*map(session.smaller_limit_of, servers))
        return {str(server): limit for server, limit in zip(servers, limits, strict=True) if limit is not None}

    async def ensure(self, path: str) -> None:
        """Create the missing persistent znodes of a path, and of the chroot.

        Raises:
            NoAuthError: the ACL of an existing znode does not allow it. ProtocolError: the server repeatedly reports a
                parent as missing that was just created.
        """
        await self._ensure(wire.full_path(path, self._chroot))

    async def _ensure(self, full_path: str) -> None:
        tries = 0
        while full_path != "/":
            try:
                await self._create(full_path)
            except NoNodeError:
                tries += 1
                if tries > _PARENT_TRIES:
                    raise ProtocolError(
                        f"the server does not find the parent of {full_path}, which was created {_PARENT_TRIES} times"
                    ) from None
                await self._ensure(parent_of(full_path))
            except ConnectionLossError as loss:
                if isinstance(loss.__cause__, ProtocolError):
                    raise
                await self._session.wait_connected()
            except SessionExpiredError:  # reported by the server; the next session is as good
                await self._session.wait_connected()
            else:
                return

    async def _create(self, full_path: str) -> None:
        """Create one znode, given its full path, unless it exists."""
        try:
            await self._session.call(wire.exists(full_path, chroot=""))
        except NoNodeError:
            try:
                await self._session.submit(wire.multi([Create(full_path)], chroot="", acl=self._acl))
            except MultiError as refused:
                if not isinstance(refused.error, NodeExistsError):
                    raise refused.error from None

    async def sync(self, path: str) -> None:
        """Bring the server up to date with the leader: later reads are at least as new as this call."""
        await self._session.call(records.sync(wire.full_path(path, self._chroot)))

    async def watch(
        self,
        path: str,
        callback: Callable[[WatchEvent], None],
        *,
        recursive: bool = False,
        created: Callable[[str, list[str]], None] | None = None,
    ) -> PersistentWatch:
        """Arm a persistent watch; armed on return. See `ZooKeeper.watch`."""
        full_path = wire.full_path(path, self._chroot)
        if chroot := len(self._chroot):
            callback = _without_chroot(callback, chroot)
            created = created and _names_without_chroot(created, chroot)
        registration = Registration(full_path, callback, recursive=recursive, created=created)
        watch = self._watch_of(registration)
        try:
            await watch.arm()
        except BaseException:
            watch.cancel()
            raise
        return watch

    def _watch_of(self, registration: Registration) -> PersistentWatch:
        return PersistentWatch(self._session, registration)

    def on_state(self, callback: Callable[[State, int], None]) -> Callable[[], None]:
        """Call back with each new state and the generation; return a function that removes the callback."""
        return self._states.on_change(callback)

    async def wait_connected(self, *, generation: int | None = None, after: int | None = None) -> int:
        """Wait until connected and return the generation; see `ZooKeeper.wait_connected`."""
        return await self._session.wait_connected(generation=generation, after=after)

    def log_outages_with(self, main: ZooKeeper) -> None:
        """Log only those outages that ``main``, another client of this process with these servers, does not log."""
        self._session.log_outages_with(main)

    async def end_session(self, generation: int) -> None:
        """End this session at the server and wait for the next one; see `ZooKeeper.end_session`."""
        with suppress(SessionExpiredError):
            await self._session.call(wire.CLOSE, generation=generation)  # the server then closes the connection
        await self._session.wait_connected(after=generation)

    def kill(self) -> None:
        """Drop the connection at once and open no other; the server ends the session at its timeout. Idempotent."""
        self._session.kill()

    async def close(self) -> None:
        """End the session and the connection, connected or not, within a second. Idempotent."""
        await self._session.close()


def _without_chroot(callback: Callable[[WatchEvent], None], length: int) -> Callable[[WatchEvent], None]:
    return lambda event: callback(event._replace(path=event.path[length:] or "/"))


def _names_without_chroot(created: Callable[[str, list[str]], None], length: int) -> Callable[[str, list[str]], None]:
    return lambda folder, names: created(folder[length:] or "/", names)


class PersistentWatch:
    """A watch of `ZooKeeperClient.watch`."""

    def __init__(self, session: Session, registration: Registration) -> None:
        self._session = session
        self._registration = registration
        session.watches.add(registration)

    async def arm(self) -> None:
        """Send it to the server; afterwards the session arms it again on each new connection."""
        path = self._registration.path
        recursive = self._session.watches.mode(path) is Mode.RECURSIVE
        await self._session.call(self._add_request(path, recursive=recursive))

    def cancel(self) -> None:
        """Stop the callbacks at once and remove the watch from the server in the background. Idempotent."""
        watches, path = self._session.watches, self._registration.path
        before = watches.mode(path)
        watches.remove(self._registration)
        mode = watches.mode(path)
        if mode is before:
            return
        # Nothing waits for the answers: a watch that remains at the server only causes events that are ignored.
        self._session.submit(self._remove_request(path))
        if mode is Mode.PERSISTENT:
            self._session.submit(self._add_request(path, recursive=False))

    def _add_request(self, path: str, *, recursive: bool) -> wire.Request[None]:
        return records.add_watch(path, recursive=recursive)

    def _remove_request(self, path: str) -> wire.Request[None]:
        return records.remove_watches(path)
