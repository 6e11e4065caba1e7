"""EmoDB's operations on a queue session, independent of HTTP.

The only state between two calls is the knowledge that a queue exists and is configured. Claims are leases, whose tokens
are the message ids; moves are records in ZooKeeper. Any server can continue the work of another.

Reads and waiting polls do not create a queue. A name is cached only if its queue exists.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import QueueConfig, QueuePaths, leased_place
from aiozkqueue.operations.bundles import count_bundled
from aiozkqueue.operations.ended_locks import count_ended
from aiozkqueue.operations.stats import configuration, count, count_staged, stat_lanes, znodes_of
from aiozkqueue.queue.state.znodes import exists
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.session.internals import core_of, handle_of, state_of

from . import peeking
from .names import Kind, http_name, native_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aiozkqueue.errors import AccessDeniedError
    from aiozkqueue.operations.moves import MoveStatus
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.leases import Lease
    from aiozkqueue.session.queue import Queue
    from aiozkqueue.session.session import QueueSession

    from .purging import Purges
    from .tokens import MessageIds

#: The number of messages in one write.
MANY = 1000
#: Maximum number of queues that are cached as existing.
REMEMBERED = 10_000


class Polled(NamedTuple):
    """A message in a response."""

    id: str
    """The id that acknowledges the message."""
    body: bytes
    """The stored payload; see `as_json`."""
    lease: Lease[bytes] | None = None
    """The claim; None: the message was only shown."""


class QueueService:
    """One of the two services, on a session."""

    def __init__(self, session: QueueSession, kind: Kind, ids: MessageIds, purges: Purges) -> None:
        self.kind = kind
        self._session = session
        self._ids = ids
        self._purges = purges
        self._existing: set[str] = set()
        self._configured: set[str] = set()

    async def send(self, messages: Mapping[str, Sequence[bytes]], headers: Mapping[str, str]) -> None:
        """Put messages with these headers, queue by queue."""
        options: PutOptions = {"headers": headers} if headers else {}
        queues = [(await self._configured_queue(name), payloads) for name, payloads in messages.items() if payloads]
        for queue, payloads in queues:
            for start in range(0, len(payloads), MANY):  # each is one request and a short step of the event loop
                await queue.put_many(payloads[start : start + MANY], **options)

    async def poll(self, name: str, *, lifetime: int, limit: int, wait: int) -> list[Polled]:
        """Claim messages for ``lifetime`` seconds; with 0, show claimable messages."""
        if not lifetime:
            return await self._claimable(name, limit)
        start = asyncio.get_running_loop().time()
        if not await self._wait_until_exists(name, wait):
            return []
        remaining = max(0.0, wait - (asyncio.get_running_loop().time() - start))
        queue = await self._configured_queue(name)
        signer = await self._ids.signer()  # first, because messages cannot be acknowledged without it
        leases = await queue.leases.take(limit, lifetime=lifetime, timeout=remaining)
        places = [leased_place(queue.name, lease.token) for lease in leases]
        return [
            Polled(signer.message_id(queue.name, place), lease.body, lease)
            for place, lease in zip(places, leases, strict=True)
        ]

    async def peek(self, name: str, limit: int) -> list[Polled]:
        """Show messages, including claimed ones."""
        if not await self._exists(name):
            return []
        queue = self._queue(name)
        return await self._shown(queue, await peeking.everything(handle_of(queue), limit))

    async def acknowledge(self, name: str, ids: Sequence[str]) -> None:
        """Remove messages permanently. Raises: InvalidOptionError: an id is malformed, or belongs to another queue."""
        for tokens in await self._tokens(name, ids):
            await self._queue(name).leases.acknowledge(tokens)

    async def renew(self, name: str, ids: Sequence[str], lifetime: int) -> None:
        """Extend claims, or with 0 end them. Raises: as `acknowledge`."""
        for tokens in await self._tokens(name, ids):
            await self._queue(name).leases.renew(tokens, lifetime=lifetime)

    async def release(self, name: str, polled: Sequence[Polled]) -> None:
        """End the claims of a poll whose client has not received them. Those of later polls are unchanged."""
        leases = [message.lease for message in polled if message.lease is not None]
        queue = self._queue(name)
        for start in range(0, len(leases), MANY):
            await queue.leases.release(leases[start : start + MANY])

    async def size(self, name: str) -> int:
        """Count the messages."""
        return await self._queue(name).size() if await self._exists(name) else 0

    async def claimed(self, name: str) -> int:
        """Count the active claims that may be read: messages in flight, and retrying ones, which include leases."""
        if not await self._exists(name):
            return 0
        handle = handle_of(self._queue(name))
        locks = await count(handle, handle.paths.locks)
        if not locks:
            return 0
        config, in_bundles = await configuration(handle), 0
        if config is not None and config.bundled:  # the lock of a bundle holds several messages
            refused: list[AccessDeniedError] = []
            folders = znodes_of(await stat_lanes(handle, refused))
            in_bundles = (await count_bundled(handle, folders, refused)).in_flight
        staged = await count_staged(handle, config)
        return max(0, locks + in_bundles - staged - await count_ended(handle))

    async def unclaim_all(self, name: str) -> None:
        """End all claims."""
        if await self._exists(name):
            await self._queue(name).admin.release_claims()

    async def purge(self, name: str) -> bool:
        """Remove all messages, including claimed ones, except those held through the Python API.

        Return whether that is done. If not, it continues in this server; repeat the call to wait for it.
        """
        return await self.wait_for_purge(name, ()) is None

    async def wait_for_purge(self, name: str, tokens: Iterable[str]) -> str | None:
        """Purge as `purge`, or wait for a purge with one of these tokens; return its token if it continues."""
        return await self._purges.wait(self._queue(name), tokens) if await self._exists(name) else None

    async def move(self, source: str, target: str) -> str:
        """Start moving all messages; return the reference."""
        await self._configured_queue(target)
        return await self._session.admin.moves.start(native_name(self.kind, source), native_name(self.kind, target))

    async def move_status(self, reference: str) -> MoveStatus:
        """Return the progress of a move. Raises: UnknownMoveError."""
        return await self._session.admin.moves.status(reference)

    def http_name(self, native: str) -> str:
        """Return the name of a queue over HTTP."""
        named = http_name(native)
        return native if named is None else named[1]

    # -- internal

    async def _tokens(self, name: str, ids: Sequence[str]) -> list[list[str]]:
        """Return the lease tokens of all messages, `MANY` at a time; none if the queue does not exist.

        Raises: InvalidOptionError: an id is malformed, or belongs to another queue.
        """
        tokens = await self._ids.lease_tokens(native_name(self.kind, name), ids)
        if not tokens or not await self._exists(name):
            return []
        return [tokens[start : start + MANY] for start in range(0, len(tokens), MANY)]

    def _queue(self, name: str) -> Queue[bytes]:
        return self._session.queue(native_name(self.kind, name))

    async def _configured_queue(self, name: str) -> Queue[bytes]:
        """Return a queue with the configuration that this service needs; create it if necessary.

        A new queue makes no bundles, because a client claims single messages.
        """
        queue = self._queue(name)
        if name in self._configured:
            return queue
        settings = QueueConfig(bundle=1, collapse=True if self.kind is Kind.DEDUPQ else None)
        state_of(queue).create_with(settings)  # also after it was deleted
        if not await self._exists(name):
            await queue.configure(settings)
        if self.kind is Kind.DEDUPQ:
            await _collapse(queue)
        if len(self._configured) < REMEMBERED:
            self._configured.add(name)
        return queue

    async def _exists(self, name: str) -> bool:
        """Whether the queue exists; only existing queues are cached. Raises: AccessDeniedError."""
        if name in self._existing:
            return True
        found = await queue_exists(core_of(self._session), native_name(self.kind, name))
        if found and len(self._existing) < REMEMBERED:
            self._existing.add(name)
        return found

    async def _wait_until_exists(self, name: str, wait: float) -> bool:
        """Wait up to this many seconds for a queue; return whether it exists. Raises: AccessDeniedError."""
        if not wait or name in self._existing:
            return await self._exists(name)
        runtime, changed = core_of(self._session), asyncio.Event()
        base = QueuePaths(runtime.root, native_name(self.kind, name)).base
        watch = await runtime.zookeeper.watch(base, lambda _: changed.set())
        try:
            async with asyncio.timeout(wait):
                while not await self._exists(name):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
        finally:
            watch.cancel()
        return True

    async def _claimable(self, name: str, limit: int) -> list[Polled]:
        """Show the messages that a poll would claim now."""
        if not await self._exists(name):
            return []
        queue = self._queue(name)
        collapse = self.kind is Kind.DEDUPQ
        return await self._shown(queue, await peeking.claimable(handle_of(queue), limit, collapse=collapse))

    async def _shown(self, queue: Queue[bytes], found: Sequence[ItemSnapshot]) -> list[Polled]:
        signer = await self._ids.signer()
        return [Polled(signer.message_id(queue.name, item.place), item.body) for item in found]


async def _collapse(queue: Queue[bytes]) -> None:
    """Have a queue collapse equal messages. Raises: ConfigConflictError: it cannot."""
    if (await queue.configuration()).collapse:
        return
    await queue.configure(QueueConfig(collapse=True))
    if not (await queue.configuration()).collapse:
        msg = f"queue {queue.name!r} cannot collapse equal messages as it is configured"
        raise ConfigConflictError(msg)


async def queue_exists(runtime: SessionCore, native: str) -> bool:
    """Whether a queue of this name exists in ZooKeeper, without keeping state about it. Raises: AccessDeniedError."""
    with translate_denials(native):
        return await exists(runtime.zookeeper, QueuePaths(runtime.root, native))


def as_json(body: bytes) -> bytes:
    """Return a payload as JSON: unchanged, or as a string if it is not JSON."""
    try:
        json.loads(body.decode(), parse_constant=_refuse)  # bytes would be read in UTF-16 and with a mark, too
    except (ValueError, RecursionError):
        return json.dumps(body.decode("utf-8", "replace")).encode()
    return body


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)
