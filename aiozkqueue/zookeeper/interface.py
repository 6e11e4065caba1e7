"""The narrow, typed ZooKeeper interface of the layers above, which another implementation can replace."""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper.auth import Acl

#: A version that no znode reaches, because it would take 2^31 writes: an operation that asserts it is refused.
NO_VERSION: Final = 2**31 - 1


class Stat(NamedTuple):
    """A znode's stat, with ZooKeeper's own names. Times are milliseconds of the server's clock."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int

    @property
    def children_created(self) -> int:
        """How many children were ever created: ``cversion`` counts creations and deletions together."""
        return (self.cversion + self.num_children) % 2**32 // 2


class Silence(enum.Enum):
    """Why a server has not answered a four-letter command."""

    UNREACHABLE = "unreachable"
    FROZEN = "frozen"  # it accepts connections, but answers nothing in time
    CLOSED = "closed"  # it accepts connections, and closes them


class TlsFailure(NamedTuple):
    """Why TLS with a server fails, so that it has not answered a four-letter command."""

    why: str
    advice: str | None
    """The remedy, if it is known."""


#: The answer of a server to a four-letter command, or the reason why it did not answer.
Answer: TypeAlias = str | Silence | TlsFailure


class Node(NamedTuple):
    """A znode as read."""

    data: bytes
    stat: Stat


class Versioned(NamedTuple):
    """A znode as read, with only the part of its stat that shows whether it has changed."""

    data: bytes
    ctime: int
    version: int


class Create(NamedTuple):
    """Create a znode; with ``sequential`` the server appends ten digits to the path; the result is the true path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    container: bool = False


class CreateAs(Create):
    """Create a znode with this ACL instead of the client's."""

    acl: Sequence[Acl]

    @classmethod
    def like(cls, acl: Sequence[Acl], path: str, data: bytes) -> CreateAs:
        """Create a persistent znode."""
        operation = cls(path, data)
        operation.acl = acl
        return operation


class Delete(NamedTuple):
    """Delete a znode at a version (-1: at any)."""

    path: str
    version: int = -1


class SetData(NamedTuple):
    """Replace a znode's data at a version (-1: at any)."""

    path: str
    data: bytes
    version: int = -1


class Check(NamedTuple):
    """Assert that a znode exists at a version (-1: at any)."""

    path: str
    version: int = -1


Operation = Create | Delete | SetData | Check

# Constructors in C instead of Python, because every message needs some creates and deletes.
new_create: Callable[[tuple[str, bytes, bool, bool, bool]], Create] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Create,
)
new_delete: Callable[[tuple[str, int]], Delete] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Delete,
)

#: The result of an operation of a multi: the path for ``Create``, the new stat for ``SetData``, None for the others.
Result = str | Stat | None


class State(enum.Enum):
    """The state of a client. Requests are sent only while ``CONNECTED``."""

    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection; the session may live
    LOST = "lost"  # the server has ended the session; the next one is being opened
    FAILED = "failed"  # credentials refused permanently
    CLOSED = "closed"


class EventKind(enum.Enum):
    """What a watch reports."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4
    MISSED = 0  # the connection was lost: the watch is armed again, but missed events are not replayed


class WatchEvent(NamedTuple):
    """An event and its path."""

    kind: EventKind
    path: str


class Watch(Protocol):
    """A persistent watch, armed until cancelled, across reconnections and sessions."""

    def cancel(self) -> None:
        """Stop the callbacks at once and remove the watch from the server in the background. Idempotent."""
        ...


class Collector(Protocol):
    """Receives a listing as it arrives, and keeps the relevant part."""

    def take(self, names: list[str]) -> None:
        """Take some names; the collector owns the list. It runs on the loop and must not block."""
        ...


C = TypeVar("C", bound=Collector)


class ZooKeeper(Protocol):
    """One client of an ensemble: a connection, the ZooKeeper session on it, and later sessions when that one ends.

    ``generation`` is the number of the ZooKeeper session. State that depends on a session carries its number. A request
    with a ``generation`` fails with `SessionExpiredError`, unsent, if that session has ended.
    """

    @property
    def state(self) -> State:
        """Whether requests can be sent now."""
        ...

    @property
    def generation(self) -> int:
        """The number of the current ZooKeeper session, from 1."""
        ...

    @property
    def session_id(self) -> int:
        """The id of the current ZooKeeper session, as in the owner of ephemeral znodes."""
        ...

    @property
    def session_timeout(self) -> float:
        """The session timeout negotiated with the server, seconds."""
        ...

    @property
    def last_zxid(self) -> int:
        """The newest zxid seen; its upper 32 bits are the leader's epoch."""
        ...

    @property
    def last_received(self) -> float:
        """When anything last arrived from a server, by the event loop's time; 0 if nothing has.

        While the server drops requests because it has too much to do, this is the time of the first one.
        """
        ...

    @property
    def last_answered(self) -> float:
        """As `last_received`; while a change waits for its answer, not later than the last answer to a change.

        Servers may answer reads, and accept connections, but lose each change.
        """
        ...

    @property
    def throttled(self) -> bool:
        """Whether `wait_connected` waits before a request that was dropped is sent again."""
        ...

    @property
    def max_request(self) -> int:
        """The maximum size of a request that the server accepts, bytes."""
        ...

    def request_size(self, operations: Sequence[Operation]) -> int:
        """Return the size of a multi of these operations on the wire, bytes, including the root and the ACLs."""
        ...

    def path_size(self, path: str) -> int:
        """Return the bytes of a path as the server stores it, including the chroot."""
        ...

    def multi(
        self, operations: Sequence[Operation], *, generation: int | None = None, results: int | None = None
    ) -> Awaitable[list[Result]]:
        """Send all or nothing, once, **when called**; the client never sends it again.

        It returns the results of the first ``results`` operations; None: of all. Other results are not decoded.

        Raises (when awaited): MultiError, ConnectionLossError, NotConnectedError, SessionExpiredError,
        RequestTooLargeError, ClientClosedError. An awaiter that is cancelled does not take the request back.
        """
        ...

    async def read(self, path: str, *, generation: int | None = None) -> Node:
        """Return data and stat. Reads are repeated after a lost connection. Raises: NoNodeError."""
        ...

    async def read_many(self, paths: Sequence[str], *, generation: int | None = None) -> list[Node | None]:
        """Read several znodes in one request (multi-read), in order; None for a znode that does not exist."""
        ...

    async def read_versioned(self, paths: Sequence[str], *, generation: int | None = None) -> list[Versioned | None]:
        """As `read_many`, at half the cost of its decoding."""
        ...

    async def children(self, path: str, *, generation: int | None = None) -> list[str]:
        """Return the names of the children, unordered. Raises: NoNodeError."""
        ...

    async def children_into(self, path: str, collector: Callable[[], C], *, generation: int | None = None) -> C:
        """Pass the names of the children to a collector as they arrive, and return it: a listing is never held whole.

        ``collector`` makes one. After a lost connection the znode is listed again, into a new collector: the returned
        one has received every name of one listing exactly once. Raises: NoNodeError, and the errors of the collector.
        """
        ...

    async def exists(self, path: str, *, generation: int | None = None) -> Stat | None:
        """Return the stat; None if the znode does not exist."""
        ...

    @property
    def makes_open(self) -> bool:
        """Whether everyone has access to the znodes that it creates."""
        ...

    async def acl(self, path: str) -> list[Acl]:
        """Return the ACL of a znode. Raises: NoNodeError, NoAuthError."""
        ...

    @property
    def authenticated(self) -> bool:
        """Whether credentials are sent."""
        ...

    async def ask_servers(self, word: str) -> dict[str, Answer]:
        """Return each server's answer to a four-letter command, or why it has not answered."""
        ...

    async def smaller_limits(self) -> dict[str, int]:
        """Return the request limits of those servers where it is smaller than this client expects, bytes."""
        ...

    async def ensure(self, path: str) -> None:
        """Create the missing persistent znodes of a path."""
        ...

    async def sync(self, path: str) -> None:
        """Let the server catch up with the leader before the next read."""
        ...

    async def watch(
        self,
        path: str,
        callback: Callable[[WatchEvent], None],
        *,
        recursive: bool = False,
        created: Callable[[str, list[str]], None] | None = None,
    ) -> Watch:
        """Arm a persistent watch; armed on return. The callbacks run on the loop and must not block.

        With ``created``, a recursive watch reports new znodes by calling it instead, with their folder and their names,
        in order: those that one folder got in one transaction come together if they arrive together.

        After every reconnection, and in every new session, it is armed again and receives `EventKind.MISSED`, before
        any event of the new connection.
        """
        ...

    def on_state(self, callback: Callable[[State, int], None]) -> Callable[[], None]:
        """Call back with each new state and the generation; return a function that removes the callback."""
        ...

    async def wait_connected(self, *, generation: int | None = None, after: int | None = None) -> int:
        """Wait until connected and return the generation.

        With ``generation``, raise SessionExpiredError once that session has ended. With ``after``, wait for a
        session newer than that one, created after the server's verdict on it.
        """
        ...

    def log_outages_with(self, main: ZooKeeper) -> None:
        """Log only those outages that ``main``, another client of this process with these servers, does not log."""
        ...

    async def end_session(self, generation: int) -> None:
        """End this ZooKeeper session at the server, with its ephemeral znodes, unless it has ended.

        The client continues with a new one, for which this waits.
        """
        ...

    def kill(self) -> None:
        """Drop the connection at once and open no other; the server ends the session at its timeout. Idempotent."""
        ...

    async def close(self) -> None:
        """End the session and the connection, connected or not, within a second or so. Idempotent."""
        ...
