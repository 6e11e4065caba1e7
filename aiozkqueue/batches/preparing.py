"""The batch that is prepared while tasks read the previous one.

Its messages are locked and named in pages, but its manifest is not sealed: only a request for the batch seals it. So no
offset log knows it and no task has read it, and it may be released, or filled further by the next process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.operations.ledger_pages import count_messages, untouched_records, write_page
from aiozkqueue.runtime.tasks import run_limited
from aiozkqueue.zookeeper import Delete, NoAuthError, ServerError, SetData

from .acknowledge import MAX_CONCURRENT
from .bundled import releasing
from .epoch import RefusedError

if TYPE_CHECKING:
    from aiozkqueue.zookeeper import Operation

    from .epoch import Epoch
    from .making import BatchMaker
    from .manifests import Manifests


class BatchPreparer:
    """Prepares a batch, and releases it."""

    def __init__(self, epoch: Epoch, manifests: Manifests, maker: BatchMaker) -> None:
        self._epoch = epoch
        self._manifests = manifests
        self._maker = maker

    async def prepare(self, after: int, limit: int | None) -> None:
        """Begin to fill the batch that follows the given one, unless it is sealed already.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        await self._epoch.open()
        await self._epoch.hold()
        numbers = [number for number in await self._manifests.batches() if number > after]
        if numbers and (await self._manifests.read(numbers[0])).sealed:
            return
        await self._maker.extend(numbers[0] if numbers else None, limit)

    async def release_unsealed(self) -> int:
        """Release the messages of the batches that are not sealed; return how many.

        This does nothing if this process has not begun to fill one.

        Raises: ClaimLostError: another has taken the ledger over; AccessDeniedError.
        """
        if not self._maker.unsealed:
            return 0
        released = 0
        await self._epoch.hold()
        for number in await self._manifests.batches():
            if not (await self._manifests.read(number)).sealed:
                pages = await self._manifests.pages_of(number)
                released += sum(
                    await run_limited(MAX_CONCURRENT, [partial(self._release_page, page) for page in pages])
                )
                await self._manifests.remove(number)
        self._maker.forget()
        return released

    async def _release_page(self, page: str) -> int:
        """Remove a page and the locks that it names, except locks that were forced open; return how many messages."""
        epoch, paths = self._epoch, self._epoch.state.paths
        entries, wakeup = await self._manifests.entries(page), [SetData(paths.items, b"")]  # wakes idle consumers
        while True:
            untouched = await untouched_records(epoch.zookeeper, paths, entries)
            parts = [
                (number, operation)
                for number, entry in enumerate(entries)
                for operation in releasing(paths, entry, untouched)
            ]
            operations: list[Operation] = [Delete(page), *(operation for _, operation in parts), *wakeup]
            try:
                await epoch.change(operations, partial(epoch.gone, page))
            except RefusedError as refusal:
                if 0 < refusal.index <= len(parts) and not isinstance(refusal.error, NoAuthError | ServerError):
                    del entries[parts[refusal.index - 1][0]]  # it was forced open, and is no longer ours
                    await epoch.change([SetData(page, write_page(entries))])
                elif refusal.index > len(parts) and isinstance(refusal.error, NoAuthError):
                    wakeup = []  # without the right to wake consumers: they also poll
                else:
                    raise epoch.reason(refusal) from refusal
            else:
                return count_messages(entries)
