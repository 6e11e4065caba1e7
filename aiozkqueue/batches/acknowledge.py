"""Ends the messages of a batch: plain ones many at a time, and messages with further znodes one by one."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import BundleName, LockRecord, is_plain_at, name_at
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.operations.ledger_pages import count_messages, marks_below
from aiozkqueue.queue.commit.conditional import settle
from aiozkqueue.queue.commit.dispositions import CONSUME, Disposition
from aiozkqueue.queue.commit.unclaimed import dead_lettering, find, removal
from aiozkqueue.runtime.tasks import run_limited
from aiozkqueue.zookeeper import Delete, NotEmptyError

from .bundled import ending
from .epoch import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aiozkqueue.operations.ledger_pages import Entry, Manifest
    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Node, Operation

    from .bundled import LedgerBundles
    from .epoch import Epoch
    from .manifests import Manifests
    from .unreadable import Obstacles

#: Pages that are removed at a time: the server works on one while others are in transit.
MAX_CONCURRENT: Final = 4


class Held(NamedTuple):
    """The locks of a batch, and the disposition of its messages."""

    claims: frozenset[str]
    """The names in the locks: the batch, and the batches that it was divided from."""
    rejection: str | None = None
    """The reason why all of them become dead letters; None: they do not."""


def rejection_of(state: Manifest) -> str | None:
    """Return the reason why the message of a batch becomes a dead letter; None: it does not."""
    if not state.rejected:
        return None
    return f"the query failed {state.rejected} times on a batch of only this message"


class BatchRemover:
    """Ends the messages that a ledger holds."""

    def __init__(self, epoch: Epoch, manifests: Manifests, bundles: LedgerBundles, obstacles: Obstacles) -> None:
        self._epoch = epoch
        self._manifests = manifests
        self._bundles = bundles
        self._obstacles = obstacles
        self._runtime = epoch.runtime
        self._state = epoch.state
        self._reading = asyncio.Lock()  # held while a page's items are read with their payloads

    async def remove(self, batch: int) -> int:
        """Remove a batch that is done, with its messages; return how many messages there were.

        Raises: ClaimLostError: another process has taken the ledger over; AccessDeniedError.
        """
        pages = await self._manifests.pages_of(batch)
        state = await self._manifests.read(batch)
        held = Held(self._manifests.claims(batch, state), rejection_of(state))
        ended = await run_limited(MAX_CONCURRENT, [partial(self._end_page, page, held) for page in pages])
        await self._manifests.remove(batch)
        return sum(ended)

    async def _end_page(self, path: str, batch: Held) -> int:
        """Remove a page with its items; items that are no longer ours are left. Return the number of messages."""
        entries = await self._manifests.entries(path)
        messages = count_messages(entries)
        for _ in range(MOST_TRIES):
            marked = await self._reasons(path)
            entries = await self._without_mixed(path, entries, batch, marked)
            reasons = marked if batch.rejection is None else {entry.id: batch.rejection for entry in entries}
            plain = [
                entry for entry in entries if entry.is_bundle or (self._is_simple(entry) and entry.id not in reasons)
            ]
            if len(plain) < len(entries):
                plainly = set(plain)
                await self._end_separately(batch, [entry for entry in entries if entry not in plainly], reasons)
            for message_id in marked:
                await self._epoch.delete(f"{path}/{message_id}")
            operations: list[Operation] = [Delete(path)]
            for entry in plain:
                operations += ending(self._state.paths, entry)
            try:
                await self._epoch.change(operations, partial(self._epoch.gone, path))
            except RefusedError as refusal:
                if refusal.index == 0 and isinstance(refusal.error, NotEmptyError):
                    continue  # an abandoned task has marked a message since
                if refusal.index:
                    await self._end_separately(batch, plain, {})
                    await self._epoch.delete(path)
            return messages
        raise contradiction(self._state.name, path)

    def _is_simple(self, item: Entry) -> bool:
        """Whether an item has no further znodes than its lock."""
        state = self._state
        return not (state.snapshot.end_hooks or state.config.counts or item.version) and is_plain_at(item.place)

    async def _without_mixed(
        self, page: str, entries: list[Entry], batch: Held, marked: Collection[str]
    ) -> list[Entry]:
        """Return the contents of a page after its bundles that cannot end as a whole have become single items."""
        for bundle in [entry for entry in entries if entry.is_bundle and not self._ends_whole(entry, batch, marked)]:
            entries = await self._bundles.single_out(page, entries, bundle, batch.claims)
        return entries

    def _ends_whole(self, bundle: Entry, batch: Held, marked: Collection[str]) -> bool:
        """Whether all messages of a bundle end alike, and nothing is stored about any of them."""
        name = BundleName.parse(name_at(bundle.place))
        return (
            name is not None
            and not self._state.snapshot.end_hooks
            and batch.rejection is None
            and not any(name.may_hold(message_id) or message_id == name.id for message_id in marked)
        )

    async def _reasons(self, page: str) -> dict[str, str]:
        """Read which messages of a page are to be dead-lettered, with the reasons."""
        return {name: mark.words for name, mark in (await marks_below(self._epoch.zookeeper, page)).items()}

    async def _end_separately(self, batch: Held, entries: Sequence[Entry], reasons: Mapping[str, str]) -> None:
        """End items with attempts, keys, a history or a reason, and items and bundles whose lock was forced open."""
        for bundle in filter(attrgetter("is_bundle"), entries):
            await self._bundles.end(bundle, batch.claims)
        places = [entry.place for entry in entries if not entry.is_bundle]
        in_vain = 0
        while places:
            if in_vain == MOST_TRIES:
                raise contradiction(self._state.name, self._state.paths.at(places[0]))
            await self._epoch.zookeeper.sync(self._epoch.path)
            async with self._reading:
                found = await find(self._epoch.handle, places)
                held = [
                    snapshot
                    for snapshot in found
                    if snapshot.lock is not None and _claim_of(snapshot.lock) in batch.claims
                ]
                changes = [self._disposition(snapshot, reasons.get(snapshot.id)) for snapshot in held]
                fenced = [change._replace(operations=[self._epoch.check(), *change.operations]) for change in changes]
                settled = await settle(self._runtime, fenced)
            for snapshot, change in zip(held, settled, strict=True):
                if change.obstacle is not None:
                    self._obstacles.log_kept(snapshot, change.obstacle)
            before, places = (
                places,
                [
                    snapshot.place
                    for snapshot, change in zip(held, settled, strict=True)
                    if change.left and change.obstacle is None
                ],
            )
            in_vain = in_vain + 1 if len(places) == len(before) else 0
            if places:
                await self._epoch.require()

    def _disposition(self, snapshot: ItemSnapshot, reason: str | None) -> Change:
        if reason is None:
            return removal(self._runtime, self._state, snapshot, CONSUME)
        disposition = Disposition("dead", reason=f"stream {self._epoch.group!r}: {reason}")
        return dead_lettering(self._runtime, self._state, snapshot, disposition)


def _claim_of(lock: Node) -> str:
    return LockRecord.decode(lock.data).claim
