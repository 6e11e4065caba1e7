"""The claims of bundles: locks them with a mark, reads them, and dissolves those whose holder is gone.

A bundle is claimed with a mark, its record, in the multi that creates its lock. A bundle with a record but without a
lock was held by a session that died or was forced out, and is dissolved into single items.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import BundleName, BundleRecord, LockRecord, MalformedError, name_at
from aiozkqueue.queue.commit.orphan_locks import LockRef
from aiozkqueue.queue.redelivery.bundles import Dissolved, dissolve
from aiozkqueue.queue.state.bundle_hold import BundleHold
from aiozkqueue.zookeeper import (
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    RequestTooLargeError,
    ServerError,
    ZooKeeperError,
    apply_until_answered,
)

from .candidate_index import SET_ASIDE
from .claimer import AttachedOpError, ClaimResult, UnreadableError
from .orphan_locks import ReadFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.queue.state.bundle_hold import BundleHolder
    from aiozkqueue.zookeeper import Operation, Versioned

    from .claimer import Claimer
    from .services import ClaimServices

log: Final = logging.getLogger(__name__)

#: Seconds until a lost bundle is dissolved again if ZooKeeper has refused that.
AGAIN: Final = 5.0


class Locked(NamedTuple):
    """A bundle that this session has locked, with the data read under the lock."""

    hold: BundleHold
    bundle: Versioned


class BundleClaimer:
    """Claims bundles of one queue for one session.

    ``relist`` has the candidates listed again, after a bundle has become single items.
    """

    def __init__(self, services: ClaimServices, claimer: Claimer, relist: Callable[[], object]) -> None:
        self._state = services.state
        self._zookeeper = services.zookeeper
        self._server_clock = services.server_clock
        self._ids = services.ids
        self._budgets = services.budgets
        self._claimer = claimer
        self._relist = relist

    async def claim(
        self, holder: BundleHolder, places: Sequence[str], ids: Sequence[str], generation: int, check: Operation
    ) -> tuple[ClaimResult, list[Locked]]:
        """Claim these bundles, except those that are gone or must be dissolved. Their locks must be reserved.

        ``check`` asserts the configuration. The batch contains no claims yet, only the bundles that could not be
        locked.

        Raises: as `Claimer.claim`.
        """
        budget, size = self._budgets.of(generation), self._claimer.item_lock_size
        batch, locked = ClaimResult([], [], [], []), list[Locked]()
        claim_id = self._ids.next()
        pending = {place: lock for place, lock in zip(places, ids, strict=True) if _name_of(place) is not None}
        kept = 0
        try:
            try:
                nodes = await self._lock_existing(pending, claim_id, generation, check, batch)
            except ReadFailedError as failure:
                kept = len(places)  # the share of the budget is freed when the locks are gone
                raise failure.error from failure
            for place, bundle, record in zip(pending, nodes[::2], nodes[1::2], strict=True):
                name = _name_of(place)
                assert name is not None  # noqa: S101 - checked above
                kept += 1
                hold = BundleHold(
                    holder, self._state, place, name, claim_id, generation=generation, budget=budget, size=size
                )
                if bundle is None or not _is_ours(record, claim_id):
                    budget.free(size)
                    batch.lost.append(hold.id)
                    continue
                hold.created, hold.claimed_at = bundle.ctime, self._server_clock.now()
                locked.append(Locked(hold, bundle))
            return batch, locked
        finally:
            if kept < len(places):
                budget.free(size * (len(places) - kept))

    async def recover(self, hold: BundleHold) -> None:
        """Dissolve a bundle whose lock may still be ours; try again while ZooKeeper refuses that."""
        ours = LockRecord(hold.claim_id, self._ids.client).encode()
        while True:
            pause = AGAIN
            try:
                if await self._dissolve(hold.place, hold.generation, ours) is not Dissolved.REFUSED:
                    return
                pause = SET_ASIDE
            except ZooKeeperError as error:
                log.debug("bundle %s: %s", hold.id, error, extra={"queue": self._state.name})
                if not isinstance(error, NoAuthError | RequestTooLargeError | ServerError):
                    return  # the session has ended, and the lock with it
            await asyncio.sleep(pause)

    async def _lock_existing(
        self, pending: dict[str, str], claim_id: str, generation: int, check: Operation, batch: ClaimResult
    ) -> list[Versioned | None]:
        """Lock the bundles that can be claimed, and read them; ``pending`` and ``batch`` lose and get the others."""
        while pending:
            try:
                return await self._lock(list(pending), claim_id, generation, check)
            except UnreadableError as failure:
                for own in pending.values():
                    await self._abandon(own, generation)
                first, *rest = pending
                if rest:  # claim the first alone, and the others later
                    batch.lost.extend(pending.pop(place) for place in rest)
                else:
                    self._claimer.log_unreadable(f"of bundle {pending[first]}", failure.error)
                    batch.set_aside.append(pending.pop(first))
            except AttachedOpError as refused:
                place = list(pending)[refused.index // 2]
                own = pending.pop(place)
                if isinstance(refused.error, NoNodeError):  # it has ended
                    batch.gone.append(own)
                elif await self._try_to_dissolve(place, own, generation):  # its holder has died, or was forced out
                    batch.lost.append(own)
                else:
                    batch.set_aside.append(own)
        return []

    async def _lock(
        self, places: Sequence[str], claim_id: str, generation: int, check: Operation
    ) -> list[Versioned | None]:
        """Create the locks and the records; return the bundles and records read under the locks."""
        paths, lock, record = (
            self._state.paths,
            LockRecord(claim_id, self._ids.client).encode(),
            BundleRecord(claim_id).encode(),
        )
        operations: list[Operation] = [check]
        attached: list[Operation] = []
        reads: list[str] = []
        for place in places:
            name = _name_of(place)
            assert name is not None  # noqa: S101 - the caller checks it
            operations.append(Create(paths.lock(name.id), lock, ephemeral=True))
            attached += (Check(paths.at(place), -1), Create(paths.bundle_record(name.id), record))
            reads += (paths.at(place), paths.bundle_record(name.id))
        try:
            return await self._claimer.lock_and_read(operations, reads, generation, attached=attached)
        except ReadFailedError as failure:
            ids = [name.id for place in places if (name := _name_of(place)) is not None]
            refs = [LockRef(paths.lock(own), lock, self._state.forced_version) for own in ids]
            self._claimer.orphan_locks.remove_unread(refs, generation, failure)
            raise

    async def _abandon(self, own: str, generation: int) -> None:
        """Remove our lock on a bundle that this user may not read, and its record."""
        paths = self._state.paths
        operations = [Delete(paths.bundle_record(own), 0), Delete(paths.lock(own))]
        with suppress(MultiError):  # it was taken away in the meantime
            await apply_until_answered(self._zookeeper, operations, generation=generation)

    async def _try_to_dissolve(self, place: str, own: str, generation: int) -> bool:
        """Dissolve a bundle whose holder is gone; return False if it is to be left alone for a while."""
        try:
            return await self._dissolve(place, generation) not in (Dissolved.OBSTRUCTED, Dissolved.REFUSED)
        except NoAuthError as error:  # this user may not store its messages
            self._claimer.log_unreadable(f"of bundle {own}", error)
        except RequestTooLargeError as error:
            text = "queue %s: bundle %s is skipped: its messages cannot be stored as single items: %s"
            log.error(text, self._state.name, own, error, extra={"queue": self._state.name})  # noqa: TRY400 - the error says all
        return False

    async def _dissolve(self, place: str, generation: int, ours: bytes | None = None) -> Dissolved:
        now = self._server_clock.now()
        dissolved = await dissolve(
            self._zookeeper, self._state.paths, place, self._ids, now=now, ours=ours, generation=generation
        )
        self._relist()
        return dissolved


def _name_of(place: str) -> BundleName | None:
    return BundleName.parse(name_at(place))


def _is_ours(record: Versioned | None, claim_id: str) -> bool:
    """Whether a record is the one that this claim has created, and has not been written since."""
    if record is None or record.version:
        return False
    try:
        return BundleRecord.decode(record.data).claim == claim_id
    except MalformedError:
        return False
