"""The attempts of a query at a batch. A batch that keeps failing is divided, until one message is left to reject."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import name_at
from aiozkqueue.operations.ledger_pages import Entry, Manifest, count_messages, is_page, write_page
from aiozkqueue.zookeeper import Create, Delete, SetData, below

if TYPE_CHECKING:
    from collections.abc import Collection

    from .bundled import LedgerBundles
    from .epoch import Epoch
    from .manifests import Manifests

log: Final = logging.getLogger(__name__)


class BatchAttempts:
    """Counts the attempts at the batches of a ledger."""

    def __init__(self, epoch: Epoch, manifests: Manifests, bundles: LedgerBundles) -> None:
        self._epoch = epoch
        self._manifests = manifests
        self._bundles = bundles

    async def count(self, number: int, most: int | None) -> None:
        """Count an attempt at a batch. After too many, divide the batch, or reject its only message.

        ``most`` is the number of attempts that may fail (see `Manifest.next_attempt`); None: any number.

        Raises: ClaimLostError: there is no such batch any more, or another process has taken the ledger over.
        """
        manifests, queue = self._manifests, self._epoch.state.name
        what, extra = f"queue {queue}: batch {number} of stream {self._epoch.group!r}", {"queue": queue}
        heirs = [batch for batch in await manifests.batches() if (await manifests.read(batch)).parent == number]
        if heirs:
            await self._divide(number, heirs[0])  # finish an interrupted division
        await manifests.pages(number)
        before = await manifests.read(number)
        after = before.next_attempt(most)
        if after.rejected and not before.rejected:
            log.error("%s: its only message is rejected after %d attempts", what, after.rejected, extra=extra)
        if after.messages != before.messages:
            log.warning("%s: %s of its %s messages are tried alone", what, after.messages, before.messages, extra=extra)
            heir = Manifest(0, parent=number, chunk=after.chunk)
            await self._divide(number, await manifests.new(heir.encode()))
            after = (await manifests.read(number)).next_attempt(None)
        await self._epoch.change([SetData(manifests.path_of(number), after.encode())])

    async def _divide(self, number: int, heir: int) -> None:
        """Keep the first messages in a batch, as recorded in its heir, and move the others to that heir.

        Each change can be repeated, so any process that finds an heir can finish. The locks are unchanged.
        """
        epoch, manifests = self._epoch, self._manifests
        manifest, target = manifests.path_of(number), manifests.path_of(heir)
        state, pages = await manifests.read(number), await manifests.pages(number, sealed=False)
        chunk = (await manifests.read(heir)).chunk
        claims = manifests.claims(number, state)
        for name in await below(epoch.zookeeper, manifest):
            if not is_page(name):  # a mark for the undivided batch
                await epoch.delete(f"{manifest}/{name}")
        remaining = chunk
        for page in pages:
            first, remainder = await self._cut(page.path, remaining, claims)
            remaining -= count_messages(first)
            if remainder:
                create = Create(f"{target}/{name_at(page.path)}", write_page(remainder))
                marks = [Delete(f"{page.path}/{mark}") for mark in await below(epoch.zookeeper, page.path)]
                rest = SetData(page.path, write_page(first)) if first else Delete(page.path)
                await epoch.change([create, *marks, rest], partial(epoch.exists, create.path))
        kept, moved = [
            sum(page.messages for page in await manifests.pages(part, sealed=False)) for part in (number, heir)
        ]
        left, right = state.divided(number, chunk, kept, moved)
        await epoch.change([SetData(manifest, left.encode()), SetData(target, right.encode())])

    async def _cut(self, page: str, remaining: int, claims: Collection[str]) -> tuple[list[Entry], list[Entry]]:
        """Return the first items of a page, with up to ``remaining`` messages, and the others.

        If the cut is inside a bundle, the messages of the bundle become locked single items.
        """
        entries, index = await self._manifests.entries(page), 0
        while remaining and index < len(entries):
            entry = entries[index]
            if entry.messages > remaining:
                entries = await self._bundles.single_out(page, entries, entry, claims)
            else:
                remaining, index = remaining - entry.messages, index + 1
        return entries[:index], entries[index:]
