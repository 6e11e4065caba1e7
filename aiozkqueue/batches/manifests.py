"""The manifests of a ledger's batches, and their pages."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.layout import LockRecord
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.operations.ledger_pages import Manifest, count_messages, is_page, owner_of_ledger, read_page
from aiozkqueue.zookeeper import Create, NoNodeError, NotEmptyError, below

from .epoch import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.operations.ledger_pages import Entry

    from .epoch import Epoch

#: The prefix of the names of manifests.
BATCH: Final = "batch-"
#: Marks that are removed at a time.
MARKS: Final = 250
_NUMBER: Final = re.compile("[0-9]{1,15}")


class Page(NamedTuple):
    """A page of a manifest, the number of its messages, and the items and bundles that it names."""

    path: str
    messages: int
    entries: Sequence[Entry]


class Manifests:
    """Lists, reads, creates and removes the batches of a ledger."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def path_of(self, number: int) -> str:
        """Return the path of a batch's manifest."""
        return f"{self._epoch.path}/{BATCH}{number:010d}"

    def lock_of(self, number: int) -> LockRecord:
        """Return the contents of the locks of a batch."""
        group = self._epoch.group
        return LockRecord(f"{group}/{number}", owner_of_ledger(group))

    def claims(self, number: int, state: Manifest) -> frozenset[str]:
        """Return the names in the locks of a batch: of the batch, and of the batches that it was divided from."""
        return frozenset(self.lock_of(batch).claim for batch in (number, *state.parents))

    async def batches(self) -> list[int]:
        """Return the numbers of the batches that have not been acknowledged."""
        children = await below(self._epoch.zookeeper, self._epoch.path)
        names = [name.removeprefix(BATCH) for name in children if name.startswith(BATCH)]
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    async def pages(self, number: int, *, sealed: bool = True) -> list[Page]:
        """Return the pages of a batch.

        Raises: ClaimLostError: there is no such batch any more, or another process has taken the ledger over.
        """
        zookeeper = self._epoch.zookeeper
        await zookeeper.sync(self.path_of(number))
        state = await self.read(number)
        if not state.done and (state.sealed or not sealed):
            paths = await self.pages_of(number)
            with suppress(NoNodeError):  # it is being acknowledged
                contents = await asyncio.gather(*(read_page(zookeeper.read, path) for path in paths))
                pages = [
                    Page(path, count_messages(entries), entries) for path, entries in zip(paths, contents, strict=True)
                ]
                if not sealed or sum(page.messages for page in pages) == state.messages:
                    return pages
        if self._epoch.began:
            await self._epoch.hold()
        msg = (
            f"queue {self._epoch.state.name!r}: batch {number} of stream {self._epoch.group!r} does not exist: it was "
            "acknowledged, or its ledger was released. Set failOnDataLoss=false to continue without this batch: "
            "messages that were released are still in the queue and come in a later batch"
        )
        raise ClaimLostError(msg)

    async def read(self, number: int) -> Manifest:
        """Read the state of a batch; it is neither sealed nor done if there is no such batch."""
        try:
            return Manifest.decode((await self._epoch.zookeeper.read(self.path_of(number))).data)
        except NoNodeError:
            return Manifest()

    async def pages_of(self, number: int) -> list[str]:
        """Return the paths of the pages of a batch, in order."""
        manifest = self.path_of(number)
        names = await below(self._epoch.zookeeper, manifest)
        return [f"{manifest}/{name}" for name in sorted(filter(is_page, names))]

    async def entries(self, page: str) -> list[Entry]:
        """Read a page of ours.

        Raises: ClaimLostError: another process has taken the ledger over, and removed the page first.
        """
        try:
            return await read_page(self._epoch.zookeeper.read, page)
        except NoNodeError:
            await self._epoch.require()
            return []

    async def remove(self, number: int) -> None:
        """Remove the manifest of a batch without pages, with the marks below it."""
        manifest = self.path_of(number)
        for _ in range(MOST_TRIES):
            marks = [f"{manifest}/{name}" for name in await below(self._epoch.zookeeper, manifest)]
            try:
                for start in range(0, len(marks), MARKS):
                    await self._epoch.delete(*marks[start : start + MARKS])
                await self._epoch.delete(manifest)
            except RefusedError as refusal:
                if isinstance(refusal.error, NotEmptyError):
                    continue  # an abandoned task has created a mark
                raise
            return
        raise contradiction(self._epoch.state.name, manifest)

    async def new(self, data: bytes = b"") -> int:
        """Begin a manifest. A lost reply may leave an extra empty one, which is used next.

        Raises: ClaimLostError: another has taken the ledger over, and may have removed it.
        """
        before = await self.batches()

        async def made() -> list[int]:
            return [number for number in await self.batches() if number not in before]

        async def is_made() -> bool:
            return bool(await made())

        for _ in range(MOST_TRIES):
            await self._epoch.change([Create(f"{self._epoch.path}/{BATCH}", data, sequential=True)], is_made)
            if numbers := await made():
                return numbers[0]
        raise contradiction(self._epoch.state.name, self._epoch.path)
