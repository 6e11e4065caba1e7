"""The bundles that a ledger holds: locked, ended, and replaced by single items.

A page locks a whole bundle: one multi creates the page, the lock, and the record that shows consumers that the bundle
has been claimed. It also writes the record once, which makes its version 1. A ledger writes nothing else into the
record. So the record at version 1 proves that no other program has touched the bundle since, and each later multi about
the bundle deletes it at that version.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import BundleRecord, LockRecord, MalformedError, single_place
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.operations.ledger_pages import UNTOUCHED, Entry, is_untouched, read_page, write_page
from aiozkqueue.queue.redelivery.bundles import (
    Dissolved,
    dissolve,
    log_obstructed,
    read_bundle,
    removal,
    replacement,
)
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoNodeError,
    NotEmptyError,
    SetData,
    until_answered,
)

from .epoch import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.redelivery.bundles import BundleState
    from aiozkqueue.zookeeper import Operation

    from .epoch import Epoch

log: Final = logging.getLogger(__name__)


def locking(paths: QueuePaths, entry: Entry, lock: LockRecord) -> list[Operation]:
    """Return the operations that lock an item or an untouched bundle for a ledger."""
    path, data = paths.at(entry.place), lock.encode()
    operations: list[Operation] = [Check(path, entry.version), Create(paths.lock(entry.id), data)]
    if entry.is_bundle:
        record, data = paths.bundle_record(entry.id), BundleRecord(lock.claim).encode()
        operations += [Create(record, data), SetData(record, data, 0)]
    return operations


def ending(paths: QueuePaths, entry: Entry) -> list[Operation]:
    """Return the operations that end all messages of a plain item or an untouched bundle that a ledger holds."""
    operations: list[Operation] = [Delete(paths.at(entry.place), entry.version), Delete(paths.lock(entry.id))]
    if entry.is_bundle:
        operations.append(Delete(paths.bundle_record(entry.id), UNTOUCHED))
    return operations


def releasing(paths: QueuePaths, entry: Entry, untouched: Mapping[str, int]) -> list[Operation]:
    """Return the operations that release a plain item or an untouched bundle that a ledger holds."""
    operations: list[Operation] = [Check(paths.at(entry.place), entry.version), Delete(paths.lock(entry.id))]
    if entry.is_bundle:
        record = paths.bundle_record(entry.id)
        operations.append(Delete(record, untouched.get(record, UNTOUCHED)))
    return operations


class LedgerBundles:
    """Changes single bundles for a ledger."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._runtime = epoch.runtime
        self._state = epoch.state

    async def dissolve(self, place: str) -> list[Entry]:
        """Dissolve a bundle that no client holds; return the single items that its messages have become.

        Another client may have done so first, or may take them: the page that locks them finds out.
        """
        zookeeper, paths = self._epoch.zookeeper, self._state.paths
        now = await self._runtime.server_clock.learned(paths.due)
        with translate_denials(self._state.name):
            state = await read_bundle(zookeeper, paths, place)
            if state is None or await dissolve(zookeeper, paths, place, self._runtime.ids, now=now) is Dissolved.HELD:
                return []
        return _singles(place, state)

    async def single_out(
        self, page: str, entries: Sequence[Entry], bundle: Entry, claims: Collection[str]
    ) -> list[Entry]:
        """Replace a bundle of a page by its messages as locked single items; return the new contents of the page.

        ``claims`` are the names in the locks of the page's batch. A bundle whose lock was forced open leaves the page.

        Raises: ClaimLostError, AccessDeniedError.
        """
        position, obstructed = entries.index(bundle), False
        paths = self._state.paths
        now = await self._runtime.server_clock.learned(paths.due)
        for _ in range(MOST_TRIES):
            state = await self._read_bundle(bundle)
            singles: list[Entry] = []
            operations: list[Operation] = []
            if state is not None and state.lock is not None and _is_ours(state, claims):
                lock, singles = state.lock.data, _singles(bundle.place, state)
                operations = [
                    Delete(paths.lock(bundle.id)),
                    *replacement(paths, bundle.place, state, now, obstructed=obstructed),
                    *(Create(paths.lock(single.id), lock) for single in singles),
                ]
            after = [*entries[:position], *singles, *entries[position + 1 :]]
            write = SetData(page, write_page(after))
            try:
                await self._epoch.change([write, *operations], partial(self._has, page, after))
            except RefusedError as refusal:
                if isinstance(refusal.error, NoNodeError | BadVersionError) and not refusal.index:  # of the page
                    raise refusal.error from refusal
                obstructed = self._obstructed_by(refusal, bundle, before=obstructed)
            else:
                return after
        raise contradiction(self._state.name, page)

    async def end(self, bundle: Entry, claims: Collection[str]) -> None:
        """End the messages of a bundle, unless its lock was forced open.

        Raises: ClaimLostError, AccessDeniedError.
        """
        paths, obstructed = self._state.paths, False
        for _ in range(MOST_TRIES):
            state = await self._read_bundle(bundle)
            if state is None or not _is_ours(state, claims):
                return
            operations = [*removal(paths, bundle.place, state, obstructed=obstructed), Delete(paths.lock(bundle.id))]
            try:
                await self._epoch.change(operations, partial(self._epoch.gone, paths.lock(bundle.id)))
            except RefusedError as refusal:
                obstructed = self._obstructed_by(refusal, bundle, before=obstructed)
            else:
                return
        raise contradiction(self._state.name, paths.at(bundle.place))

    async def _read_bundle(self, bundle: Entry) -> BundleState | None:
        read = partial(read_bundle, self._epoch.zookeeper, self._state.paths, bundle.place)
        return await until_answered(self._epoch.zookeeper, read)

    def _obstructed_by(self, refusal: RefusedError, bundle: Entry, *, before: bool) -> bool:
        """Return whether znodes below a bundle obstruct its removal, after a change of the bundle was refused.

        The caller reads the bundle again. ``before``: whether they were known to obstruct it.

        Raises: AccessDeniedError, or the error of the refusal, if the change must not be tried again.
        """
        if isinstance(refusal.error, NotEmptyError) and not before:
            log_obstructed(self._state.paths, bundle.place)
            return True
        if not isinstance(refusal.error, NoNodeError | BadVersionError):
            raise self._epoch.reason(refusal) from refusal
        return before

    async def _has(self, page: str, entries: Sequence[Entry]) -> bool:
        """Whether a page has these contents."""
        try:
            return await read_page(self._epoch.zookeeper.read, page) == list(entries)
        except NoNodeError:
            return False


def _is_ours(state: BundleState, claims: Collection[str]) -> bool:
    """Whether a bundle has the lock of these claims, and no other program has written its record."""
    record, lock = state.record, state.lock
    return (
        record is not None
        and is_untouched(record.version)
        and lock is not None
        and LockRecord.decode(lock.data).claim in claims
    )


def _singles(place: str, state: BundleState) -> list[Entry]:
    """Return the items that the messages of a bundle become; none if it becomes a dead letter."""
    try:
        messages = state.messages()
    except MalformedError:
        return []
    return [
        Entry(single_place(place, message.id, message.position), 1 if attempts else 0) for message, attempts in messages
    ]
