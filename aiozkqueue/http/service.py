"""What the service does with queues: EmoDB's operations on a queue session. Knows nothing of HTTP.

No state is kept here between two calls, but for knowing that a queue is there, and configured: claims are leases, whose
tokens are the message ids; moves are records in ZooKeeper. Any server can go on with what another began.

Looking makes no queue: what is only asked about is not created by the question.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import QueueConfig, leased_place, parse_lock
from aiozkqueue.queue.claims.found import find_pages
from aiozkqueue.queue.operators.admin import count, lanes
from aiozkqueue.queue.operators.listing import list_children, list_items

from .names import Kind, http_name, native_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.layout import ItemName
    from aiozkqueue.queue.operators.moves import MoveStatus
    from aiozkqueue.queue.queue import Queue
    from aiozkqueue.queue.session import QueueSession

    from .tokens import MessageIds

#: Messages that are handed over at once.
MANY = 1000
#: Queues that are known to be there; what is beyond is asked for again.
REMEMBERED = 10_000


class Polled(NamedTuple):
    """A message as it is shown."""

    id: str
    """Acknowledges it."""
    body: bytes
    """The payload as it is stored; see `as_json`."""


class QueueService:
    """One of the two services, on a session."""

    def __init__(self, session: QueueSession, kind: Kind, ids: MessageIds) -> None:
        self.kind = kind
        self._session = session
        self._ids = ids
        self._known: set[str] = set()

    async def send(self, messages: Mapping[str, Sequence[bytes]]) -> None:
        """Put messages, all of one queue after the other."""
        queues = [(await self._ready(name), payloads) for name, payloads in messages.items() if payloads]
        for queue, payloads in queues:
            for start in range(0, len(payloads), MANY):  # each is a request, and a short step for the event loop
                await queue.put_many(payloads[start : start + MANY])

    async def poll(self, name: str, *, lifetime: int, limit: int, wait: int) -> list[Polled]:
        """Claim messages for ``lifetime`` seconds; with 0, show what could be claimed."""
        if not lifetime:
            return await self._claimable(name, limit)
        if not wait and name not in self._known and not await self._plain(name).exists():
            return []
        queue = await self._ready(name)
        signer = await self._ids.signer()  # first: nobody could acknowledge what is claimed without it
        leases = await queue.leases.take(limit, lifetime=lifetime, timeout=wait)
        places = [leased_place(queue.name, lease.token) for lease in leases]
        return [
            Polled(signer.message_id(queue.name, place), lease.body)
            for place, lease in zip(places, leases, strict=True)
        ]

    async def peek(self, name: str, limit: int) -> list[Polled]:
        """Show messages, claimed ones too."""
        return await self._shown(name, [place for place, _ in await self._places(name)], limit)

    async def acknowledge(self, name: str, ids: Sequence[str]) -> None:
        """Remove messages for good. Raises: InvalidOptionError: an id is malformed, or another queue's."""
        queue = self._plain(name)
        tokens = await self._ids.lease_tokens(queue.name, ids)  # of all of them, before anything is acknowledged
        for start in range(0, len(tokens), MANY):
            await queue.leases.acknowledge(tokens[start : start + MANY])

    async def renew(self, name: str, ids: Sequence[str], lifetime: int) -> None:
        """Lengthen claims, or with 0 end them. Raises: as `acknowledge`."""
        queue = self._plain(name)
        tokens = await self._ids.lease_tokens(queue.name, ids)
        for start in range(0, len(tokens), MANY):
            await queue.leases.renew(tokens[start : start + MANY], lifetime=lifetime)

    async def size(self, name: str) -> int:
        """Count the messages."""
        return await self._plain(name).size()

    async def claimed(self, name: str) -> int:
        """Count the messages that somebody has claimed."""
        store = self._plain(name).store
        return await count(self._session.engine, store, store.paths.locks)

    async def unclaim_all(self, name: str) -> None:
        """End all claims."""
        queue = self._plain(name)
        if await queue.exists():
            await queue.release_claims()

    async def purge(self, name: str) -> None:
        """Remove all messages, claimed ones too; what a transaction or delivery of the Python API holds stays."""
        await self._plain(name).purge()

    async def move(self, source: str, target: str) -> str:
        """Begin to move all messages; return the reference."""
        await self._ready(target)
        return await self._session.moves.start(native_name(self.kind, source), native_name(self.kind, target))

    async def move_status(self, reference: str) -> MoveStatus:
        """Tell how far a move is. Raises: UnknownMoveError."""
        return await self._session.moves.status(reference)

    def http_name(self, native: str) -> str:
        """Return what a queue is called over HTTP."""
        named = http_name(native)
        return native if named is None else named[1]

    # -- inside

    def _plain(self, name: str) -> Queue[bytes]:
        return self._session.queue(native_name(self.kind, name))

    async def _ready(self, name: str) -> Queue[bytes]:
        """Return a queue that is configured as this service needs it; in the end it is there."""
        queue = self._plain(name)
        if name in self._known:
            return queue
        if self.kind is Kind.DEDUPQ and not (await queue.configuration()).collapse:
            await queue.configure(QueueConfig(collapse=True))
            if not (await queue.configuration()).collapse:
                msg = f"queue {queue.name!r} cannot collapse equal messages as it is configured"
                raise ConfigConflictError(msg)
        if len(self._known) < REMEMBERED:
            self._known.add(name)
        return queue

    async def _claimable(self, name: str, limit: int) -> list[Polled]:
        """Show what a poll would claim now: nobody has it, it is due, and of equal ones there is one."""
        engine, store = self._session.engine, self._plain(name).store
        locked = {parse_lock(lock) for lock in await list_children(engine, store, store.paths.locks)}
        now = engine.server_clock.now()
        free = [
            (place, item)
            for place, item in await self._places(name)
            if item.id not in locked
            and (item.due is None or item.due <= now)
            and (item.expires is None or item.expires > now)
        ]
        if self.kind is Kind.DEDUPQ:  # the newest of its key is what is delivered
            newest = {item.key: item.id for _, item in free if item.key is not None}
            free = [(place, item) for place, item in free if item.key is None or newest[item.key] == item.id]
        return await self._shown(name, [place for place, _ in free], limit)

    async def _places(self, name: str) -> list[tuple[str, ItemName]]:
        engine, store = self._session.engine, self._plain(name).store
        base = f"{store.paths.base}/"
        placed = await list_items(engine, store, await lanes(engine, store))
        return [(one.path.removeprefix(base), one.item) for one in placed]

    async def _shown(self, name: str, places: Sequence[str], limit: int) -> list[Polled]:
        """Read so many of these; those that are gone by now are passed over."""
        queue = self._plain(name)
        signer = await self._ids.signer()
        shown: list[Polled] = []
        async for page in find_pages(self._session.engine, queue.store, places[: 2 * limit]):
            shown += [Polled(signer.message_id(queue.name, one.place), one.body) for one in page]
            if len(shown) >= limit:
                break
        return shown[:limit]


def as_json(body: bytes) -> bytes:
    """Return a payload as JSON: as it is, or as a string where another program put something else."""
    try:
        body.decode()
        json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(body.decode("utf-8", "replace")).encode()
    return body


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)
