"""Queues of other programs, as users hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiozkqueue.arguments import collection, seconds, text
from aiozkqueue.dialects.curator import has_id
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.operations.listing import list_items
from aiozkqueue.queue.commit.conditional import apply
from aiozkqueue.queue.commit.dispositions import REMOVED
from aiozkqueue.queue.commit.unclaimed import find_pages, removal
from aiozkqueue.queue.put.foreign import prepare_foreign
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.zookeeper import changes

from .direct_puts import send_puts
from .queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.codec import Codec
    from aiozkqueue.dialects import Dialect
    from aiozkqueue.operations.alter import Alteration
    from aiozkqueue.queue.destination import Undecodable
    from aiozkqueue.queue.options import PutOptions

    from .core import SessionCore
    from .leases import Leases

T = TypeVar("T")


class ForeignQueue(Queue[T]):
    """A queue shared with another program's clients; made by `QueueSession.kazoo_queue`.

    It is a destination like any other: in transactions, with consumers and listeners, policies, dead letters and
    history. A message's id is its item's name, which the server completes; the id that `put` returns only names the
    put. A failed message keeps its place, priority and due time: while it waits for its retry, this session holds its
    lock, which other clients respect and which ends with the session. Plain messages have no headers.
    """

    def __init__(self, runtime: SessionCore, dialect: Dialect, codec: Codec[T], undecodable: Undecodable) -> None:
        super().__init__(runtime, dialect.path, codec, undecodable, dialect)
        self._layout: Dialect = dialect
        runtime.foreign(dialect)

    @property
    def leases(self) -> Leases[T]:
        """Not available: a lease is a lock that does not end with a session. Raises: InvalidOptionError."""
        msg = f"queue {self.name!r}: leases are not supported on another program's queue; use a transaction"
        raise InvalidOptionError(msg)

    async def cancel(self, **_: object) -> Alteration:
        """Not available. Raises: InvalidOptionError."""
        msg = f"queue {self.name!r}: another program's queue does not store the ids of puts; take the message instead"
        raise InvalidOptionError(msg)

    async def update(self, value: T, *, id: str | None = None, key: str | None = None) -> Alteration:
        """Not available. Raises: InvalidOptionError."""
        del value
        return await self.cancel(id=id, key=key)


class CuratorQueue(ForeignQueue[T]):
    """A queue shared with Curator's clients; made by `QueueSession.curator_queue`."""

    async def put_multi(
        self, values: Iterable[T], *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]
    ) -> str:
        """Put several messages as one item, as Curator's ``putMulti`` does: all of them are stored, or none.

        The first aiozkqueue consumer that takes the item splits it, so its messages are delivered one by one, in order.

        ``timeout`` is as for `put`.

        Raises: as `put`; InvalidOptionError: an item of a simple queue holds one message.
        """
        runtime, wait = self._core, seconds(timeout, "timeout")
        self._warn_of_transaction(runtime)
        listed = collection(values, f"queue {self.name!r}: put_multi", "messages")
        payloads = [self._binding.codec.encode(value, self.name) for value in listed]
        if len(payloads) != 1 and self._layout.prefix == "qn-":
            msg = f"queue {self.name!r}: an item of {self._layout.title()} holds one message; put them one by one"
            raise InvalidOptionError(msg)
        put = prepare_foreign(self._handle, payloads, options)
        await send_puts(runtime, [put], Deadline(wait, runtime.clock))
        return put.id

    @changes
    async def remove(self, key: str) -> int:
        """Remove the items with this ``key=`` that no consumer holds; return how many. For ``kind="id"`` only.

        Raises: InvalidOptionError: the queue is of another kind, or the key is not a str; AccessDeniedError,
        NotCommittedError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        handle, dialect = self._handle, self._layout
        runtime, state = handle.runtime, handle.state
        has_id(dialect, "", text(key, "key", "the key of an item"))
        if not await state.open_existing():
            return 0
        placed = await list_items(handle, [state.paths.items], lambda name: has_id(dialect, name, key))
        removed = 0
        async for page in find_pages(handle, [state.paths.place_of(item.path) for item in placed]):
            changes = [removal(runtime, state, snapshot, REMOVED) for snapshot in page if not snapshot.in_flight]
            removed += sum(await apply(runtime, changes))
        return removed
