"""A queue's dead letters: messages that were rejected or used up their attempts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from aiozkqueue.arguments import collection, positive, seconds, text
from aiozkqueue.errors import (
    AccessDeniedError,
    ConfigConflictError,
    DuplicateKeyError,
    InvalidOptionError,
    ItemNotEmptyError,
    MessageTooLargeError,
    NotRedrivenError,
    PayloadError,
    QueueError,
    QueueFullError,
    TransactionTooLargeError,
)
from aiozkqueue.queue.commit.conditional import Change, apply
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import read_sets, set_pages
from aiozkqueue.queue.message import DeadLetter
from aiozkqueue.queue.put.prepare import restored
from aiozkqueue.runtime.acl_errors import name_some, partly_denied
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.zookeeper import PAGE, Delete, changes, reads

from .listing import first_readable, walk
from .peek import log_unreadable
from .stats import content, count
from .transfer import Transfer, transfer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.codec import Codec
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import CallLimit, Node

    from .listing import Placed

T = TypeVar("T")

#: The errors of one dead letter, which do not concern the others.
_STAYS = (
    AccessDeniedError,
    ConfigConflictError,
    InvalidOptionError,
    MessageTooLargeError,
    PayloadError,
    TransactionTooLargeError,
)


class DeadLetters(Generic[T]):
    """The dead letters of one queue."""

    def __init__(self, handle: QueueHandle[Runtime], codec: Codec[T]) -> None:
        self._unchecked = handle
        self._codec = codec

    def __repr__(self) -> str:
        return f"<DeadLetters of queue {self._unchecked.name!r}>"

    @property
    def _handle(self) -> QueueHandle[Runtime]:
        """The handle of the queue. Raises: SessionClosedError, WrongLoopError."""
        self._unchecked.runtime.check()
        return self._unchecked

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._unchecked.runtime.limit(f"queue {self._unchecked.name!r}")

    @reads
    async def size(self) -> int:
        """Count the dead letters.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        handle = self._handle
        return 0 if await handle.state.is_marked() else await count(handle, handle.paths.dlq)

    @reads
    async def peek(self, limit: int = 10) -> list[DeadLetter[T]]:
        """Read up to ``limit`` of the oldest dead letters, without taking them.

        Dead letters that this user may not read are left out, with a warning in the log. Raises: as `size`;
        InvalidOptionError.
        """
        limit = positive(limit, "limit")
        handle = self._handle

        async def read(placed: Sequence[Placed]) -> list[DeadLetter[T] | AccessDeniedError | None]:
            return [
                found if isinstance(found, AccessDeniedError) else self._letter(entry, found[0])
                for entry, found in zip(
                    placed, await read_sets(handle, [(entry.path,) for entry in placed]), strict=True
                )
            ]

        folders = [] if await handle.state.is_marked() else [handle.paths.dlq]
        letters, unreadable = await first_readable(handle, folders, limit, read)
        log_unreadable(handle.state, unreadable)
        return letters

    def _letter(self, placed: Placed, node: Node | None) -> DeadLetter[T] | None:
        return None if node is None else DeadLetter(content(self._unchecked.state, placed.item, node, 0), self._codec)

    @changes
    async def redrive(
        self,
        ids: Collection[str] | None = None,
        *,
        limit: int | None = None,
        timeout: Seconds | None = 0,
        into: str | None = None,
    ) -> int:
        """Put dead letters back at the end of the queue, with no attempts counted; return how many.

        Each keeps its id, headers and time of put; its lifetime starts again, as the queue is configured. A dead letter
        that another client redrives or removes meanwhile is skipped. A dead letter stays if its unique key is taken, or
        if it cannot be removed because there are znodes below it. None is lost or duplicated.

        Args:
            ids: the ids of the dead letters; None: all.
            limit: the maximum number, the oldest first; those that stay do not count; None: no limit.
            timeout: how many seconds to wait for capacity in a queue with ``max_size`` (0: not at all; None: no limit).
            into: the name of another queue to put them into, each in one step; None: this queue.

        Raises:
            QueueFullError: messages that did not fit in time are still dead letters.
            PartlyDeniedError: this user may not read some of them; the others have been redriven.
            NotRedrivenError: some cannot be put into that queue, such as messages of a group into a sticky queue; the
                others have been redriven.
            InvalidNameError: ``into`` is not the name of a queue.
            PayloadError, ConfigConflictError, NotCommittedError, OutcomeUnknownError, InvalidOptionError; as `size`.
        """
        wait = seconds(timeout, "timeout")
        handle = self._handle
        runtime, state = handle.runtime, handle.state
        target = state if into is None else runtime.queue_state(into)
        deadline = Deadline(wait, runtime.clock)
        most = None if limit is None else positive(limit, "limit")
        moved = 0
        left_behind: dict[str, QueueError] = {}
        async for chosen in self._chosen(ids):
            letters = iter(chosen)
            while page := list(islice(letters, PAGE if most is None else min(PAGE, most - moved))):
                await state.open()
                await target.open_or_create()
                async for back in self._transfers(page, target, left_behind):
                    outcomes = await transfer(runtime, back, deadline)
                    moved += _moved(back, outcomes, moved, left_behind)
            if moved == most:
                break
        if left_behind:
            raise _not_all(state.name, target.name, left_behind, moved)
        return moved

    async def _transfers(
        self, page: Sequence[Placed], target: QueueState, left_behind: dict[str, QueueError]
    ) -> AsyncIterator[list[Transfer]]:
        """Yield the transfers of those dead letters that can be put into the target, some MB at a time.

        Record the others.
        """
        entries, into = iter(page), QueueHandle(self._unchecked.runtime, target)
        async for _, sets in set_pages(self._unchecked, [(entry.path,) for entry in page]):
            back: list[Transfer] = []
            for found in sets:
                entry = next(entries)
                try:
                    if isinstance(found, QueueError):
                        raise found
                    if found[0] is not None:
                        back.append(await self._back(into, entry, found[0]))
                except _STAYS as error:
                    left_behind[entry.item.id] = error
            yield back

    async def _back(self, into: QueueHandle[Runtime], entry: Placed, node: Node) -> Transfer:
        """Return the transfer of a dead letter that can be put into the target. Raises: its error otherwise."""
        put = restored(into, entry.item, node)
        if put.plan is not None:
            await put.plan.prepare()
        return Transfer(entry.item.id, [put], Change(self._unchecked.state, [Delete(entry.path, node.stat.version)]))

    @changes
    async def purge(self, ids: Collection[str] | None = None) -> int:
        """Remove dead letters permanently, and return their number.

        Raises: as `size`; NotCommittedError, OutcomeUnknownError, InvalidOptionError.
        """
        handle, removed = self._handle, 0
        async for page in self._chosen(ids):
            removed += sum(await apply(handle.runtime, [Change(handle.state, [Delete(entry.path)]) for entry in page]))
        return removed

    async def _chosen(self, ids: Collection[str] | None) -> AsyncIterator[list[Placed]]:
        """Yield the dead letters with these ids, or all, the oldest first, up to `PAGE` at a time."""
        wanted = None
        if ids is not None:
            wanted = frozenset(
                text(given, "ids", "the ids of messages") for given in collection(ids, "ids", "message ids")
            )
        handle = self._handle
        await handle.zookeeper.sync(handle.paths.base)  # a lagging server may not know all
        folders = [] if await handle.state.is_marked() else [handle.paths.dlq]
        async for listed in walk(handle, folders):
            chosen = listed if wanted is None else [entry for entry in listed if entry.item.id in wanted]
            for start in range(0, len(chosen), PAGE):
                yield chosen[start : start + PAGE]


def _moved(
    back: Sequence[Transfer], outcomes: Sequence[bool | QueueError], before: int, left_behind: dict[str, QueueError]
) -> int:
    """Return how many of these transfers were made; record those that never can be. Raises: QueueError."""
    moved = 0
    for letter, outcome in zip(back, outcomes, strict=True):
        if isinstance(outcome, _STAYS):
            left_behind[letter.id] = outcome
        elif isinstance(outcome, DuplicateKeyError | ItemNotEmptyError):
            continue  # its key is taken again, or it cannot be removed
        elif isinstance(outcome, QueueFullError):
            msg = f"{outcome}; {before + moved} dead letters were redriven before, the others are unchanged"
            raise QueueFullError(msg) from outcome
        elif isinstance(outcome, QueueError):
            raise outcome
        else:
            moved += outcome
    return moved


def _not_all(source: str, target: str, left: Mapping[str, QueueError], done: int) -> QueueError:
    """Return the error for dead letters that are left, while the others have been put back."""
    if all(isinstance(error, AccessDeniedError) for error in left.values()):
        return partly_denied(source, "put back", [*left], done, next(iter(left.values())))
    first = next(error for error in left.values() if not isinstance(error, AccessDeniedError))
    msg = (
        f"queue {source!r}: {done} of {done + len(left)} dead letters put into {target!r}. The others cannot be put "
        f"there and are unchanged: {name_some([*left])}. The first error: {first}"
    )
    return NotRedrivenError(msg, left, done)
