"""The batch that is prepared while tasks read the previous one.

Its messages are locked and named in pages, but its manifest is not sealed: only a request for the batch seals it. So no
offset log knows it and no task has read it, and it may be released, or filled further by the next process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.operations.ledger_pages import count_messages, untouched_records, write_page
from aiozkqueue.runtime.tasks import run_limited
from aiozkqueue.zookeeper import Delete, NoAuthError, SetData

from .acknowledge import MAX_CONCURRENT
from .bundled import releasing
from .epoch import RefusedError
from .making import BatchMaker

if TYPE_CHECKING:
    from aiozkqueue.zookeeper import Operation


class BatchPreparer(BatchMaker):
    """Prepares a batch, and releases it."""

    async def prepare(self, after: int, limit: int | None) -> None:
        """Begin to fill the batch that follows the given one, unless it is sealed already.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self.open()
        await self._hold()
        numbers = [number for number in await self.batches() if number > after]
        if numbers and (await self._read(numbers[0])).sealed:
            return
        await self._extend(numbers[0] if numbers else None, limit)

    async def release_unsealed(self) -> int:
        """Release the messages of the batches that are not sealed; return how many.

        This does nothing if this process has not begun to fill one.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        released = 0
        if self._unsealed:
            await self._hold()
        for number in await self.batches() if self._unsealed else ():
            if not (await self._read(number)).sealed:
                pages = await self._pages_of(number)
                released += sum(
                    await run_limited(MAX_CONCURRENT, [partial(self._release_page, page) for page in pages])
                )
                await self._remove_manifest(self._manifest(number))
        self._begun, self._unsealed = None, False
        return released

    async def _release_page(self, page: str) -> int:
        """Remove a page and the locks that it names, except locks that were forced open; return how many messages."""
        paths = self._state.paths
        entries, wakeup = await self._entries(page), [SetData(paths.items, b"")]  # wakes idle consumers
        while True:
            untouched = await untouched_records(self._zookeeper, paths, entries)
            parts = [
                (number, operation)
                for number, entry in enumerate(entries)
                for operation in releasing(paths, entry, untouched)
            ]
            operations: list[Operation] = [Delete(page), *(operation for _, operation in parts), *wakeup]
            try:
                await self._change(operations, partial(self._gone, page))
            except RefusedError as refusal:
                if 0 < refusal.index <= len(parts) and not isinstance(refusal.error, NoAuthError):
                    del entries[parts[refusal.index - 1][0]]  # it was forced open, and is no longer ours
                    await self._change([SetData(page, write_page(entries))])
                elif refusal.index > len(parts) and isinstance(refusal.error, NoAuthError):
                    wakeup = []  # without the right to wake consumers: they also poll
                else:
                    raise self._refused(refusal) from refusal
            else:
                return count_messages(entries)
