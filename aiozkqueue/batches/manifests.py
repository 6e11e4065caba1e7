"""The manifests of a ledger's batches, and their pages."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.operations.ledger_pages import Manifest, count_messages, is_page, read_page
from aiozkqueue.zookeeper import Create, NoNodeError, NotEmptyError, below

from .bundled import Bundles
from .epoch import BATCH, RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.operations.ledger_pages import Entry

#: Marks that are removed at a time.
MARKS: Final = 250
_NUMBER: Final = re.compile("[0-9]{1,15}")


class Page(NamedTuple):
    """A page of a manifest, the number of its messages, and the items and bundles that it names."""

    path: str
    messages: int
    entries: Sequence[Entry]


class Manifests(Bundles):
    """Lists, reads, creates and removes batches."""

    async def batches(self) -> list[int]:
        """Return the numbers of the batches that have not been acknowledged."""
        names = [
            name.removeprefix(BATCH) for name in await below(self._zookeeper, self._path) if name.startswith(BATCH)
        ]
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    async def pages(self, number: int, *, sealed: bool = True) -> list[Page]:
        """Return the pages of a batch.

        Raises: ClaimLostError: there is no such batch any more, or another process has taken the ledger over.
        """
        manifest = self._manifest(number)
        await self._zookeeper.sync(manifest)
        state = await self._read(number)
        if not state.done and (state.sealed or not sealed):
            paths = await self._pages_of(number)
            with suppress(NoNodeError):  # it is being acknowledged
                contents = await asyncio.gather(*(read_page(self._zookeeper.read, path) for path in paths))
                pages = [
                    Page(path, count_messages(entries), entries) for path, entries in zip(paths, contents, strict=True)
                ]
                if not sealed or sum(page.messages for page in pages) == state.messages:
                    return pages
        if self._epoch is not None:
            await self._hold()
        msg = (
            f"queue {self._state.name!r}: batch {number} of stream {self._group!r} does not exist: it was "
            "acknowledged, or its ledger was released. Set failOnDataLoss=false to continue without this batch: "
            "messages that were released are still in the queue and come in a later batch"
        )
        raise ClaimLostError(msg)

    async def _read(self, number: int) -> Manifest:
        try:
            return Manifest.decode((await self._zookeeper.read(self._manifest(number))).data)
        except NoNodeError:
            return Manifest()

    async def _pages_of(self, number: int) -> list[str]:
        manifest = self._manifest(number)
        return [f"{manifest}/{name}" for name in sorted(filter(is_page, await below(self._zookeeper, manifest)))]

    async def _remove_manifest(self, manifest: str) -> None:
        """Remove a manifest without pages, with the marks below it."""
        while True:
            marks = [f"{manifest}/{name}" for name in await below(self._zookeeper, manifest)]
            try:
                for start in range(0, len(marks), MARKS):
                    await self._delete(*marks[start : start + MARKS])
                await self._delete(manifest)
            except RefusedError as refusal:
                if isinstance(refusal.error, NotEmptyError):
                    continue  # an abandoned task has created a mark
                raise
            return

    async def _new(self, data: bytes = b"") -> int:
        """Begin a manifest. A lost reply may leave an extra empty one, which is used next.

        Raises: ClaimLostError: another has taken the ledger over, and may have removed it.
        """
        before = await self.batches()

        async def made() -> list[int]:
            return [number for number in await self.batches() if number not in before]

        async def is_made() -> bool:
            return bool(await made())

        while True:
            await self._change([Create(f"{self._path}/{BATCH}", data, sequential=True)], is_made)
            if numbers := await made():
                return numbers[0]
