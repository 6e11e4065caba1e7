"""A shared limit: sessions lease blocks of slots on one timeline, a znode that each changes at the version it read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout.errors import MalformedError
from aiozkqueue.layout.rates import RateRecord
from aiozkqueue.runtime.reply_limit import ReplyLimit
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    ConnectionLossError,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    Stat,
    parent_of,
)
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

if TYPE_CHECKING:
    from random import Random

    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.zookeeper import ZooKeeper

log: Final = logging.getLogger(__name__)

#: Seconds of a session's longest pause after another session has changed the timeline first.
LONGEST_PAUSE: Final = 0.1
#: Refusals in a row after which the pauses grow, and their longest, seconds.
MANY_REFUSALS: Final = 50
LONGEST_GROWN_PAUSE: Final = 5.0
#: Microseconds and slots by which a block is ahead of its lease only if the leader's clock was set back, or by mistake.
FAR: Final = 60_000_000
FAR_SLOTS: Final = 100


class Block(NamedTuple):
    """Leased slots, by the local monotonic clock in seconds."""

    first: float
    step: float
    size: int


class Timeline:
    """The timeline of one shared rate."""

    def __init__(self, zookeeper: ZooKeeper, clock: Clock, path: str, rate: float, random: Random) -> None:
        self._zookeeper = zookeeper
        self._reply_limit = ReplyLimit(clock)
        self._path = path
        self._none_deleted: Check | None = None
        """The check that no timeline was deleted since; None: to be made before the timeline is read."""
        self._step = max(1, round(1_000_000 / rate))  # µs
        self._random = random
        self._leased = -1  # the zxid of this session's last lease: a new timeline counts its versions from 0 again
        self._spare = 0  # the last slots of that block, which this session has not used

    async def lease(self, count: int, unused: int = 0) -> Block:
        """Lease ``count`` slots behind those of all sessions.

        The last ``unused`` slots of the last block passed unused. They are given back if no session has leased since.

        It waits while there is no connection. A lease whose reply is lost is given up: its slots stay unused. If the
        reply comes too late, they are given back in the same way.

        Raises: AccessDeniedError.
        """
        self._spare += unused
        pause = LONGEST_PAUSE / 16
        refused = 0
        while True:
            try:
                guard = await self._guard()
                block = None if guard is None else await self._try_to_lease(count, guard)
            except (ConnectionLossError, ZooKeeperSessionExpiredError):
                await self._zookeeper.wait_connected()
                continue
            except NoAuthError as error:
                raise self._denied(error) from error
            if block is not None:
                return block
            refused += 1
            if refused == MANY_REFUSALS:
                log.warning(
                    "rate %s: no call can begin, because its record was changed by other sessions, or refused by the "
                    "servers, %d times in a row; if few programs use this rate, compare the data of the servers",
                    self._path,
                    refused,
                )
            await asyncio.sleep(self._random.uniform(0, pause))
            pause = min(LONGEST_PAUSE if refused < MANY_REFUSALS else LONGEST_GROWN_PAUSE, 2 * pause)

    async def _guard(self) -> Check | None:
        """Return the check that no timeline is deleted from now on; None if the folder was missing."""
        if self._none_deleted is None:
            folder = parent_of(self._path)
            found = await self._zookeeper.exists(folder)
            if found is None:
                await self._zookeeper.ensure(self._path)
            else:
                self._none_deleted = Check(folder, found.version)
        return self._none_deleted

    async def _try_to_lease(self, count: int, guard: Check) -> Block | None:
        """Lease slots; return None if another session was faster, or the reply came too late."""
        try:
            node = await self._zookeeper.read(self._path)
        except NoNodeError:
            await self._zookeeper.ensure(self._path)
            return None
        after = self._read(node.data).end(node.stat.mtime)
        if node.stat.mzxid == self._leased:
            after -= self._spare * self._step
        record = RateRecord(after, count * self._step)
        limit, sent = self._reply_limit.seconds, self._reply_limit.now()
        write = SetData(self._path, record.encode(), node.stat.version)
        try:
            _, stat = await self._zookeeper.multi([guard, write])
        except MultiError as error:
            if isinstance(error.error, BadVersionError | NoNodeError):
                self._none_deleted = guard if error.index else None
                return None
            if isinstance(error.error, NoAuthError):
                raise self._denied(error.error) from error
            raise
        took = self._reply_limit.answered(sent)
        if not isinstance(stat, Stat):
            return None
        self._leased, self._spare = stat.mzxid, count if took > limit else 0
        if took > limit:
            return None
        # The server had applied it by then, so a slot is never used before its time.
        ahead = record.begin(stat.mtime) - stat.mtime * 1000
        if ahead > FAR + FAR_SLOTS * self._step:
            log.warning(
                "rate %s: the next call begins in %d s: the clock of ZooKeeper's leader was probably set back; to "
                "continue now, delete this znode and restart the programs with this rate",
                self._path,
                ahead // 1_000_000,
            )
        first = sent + took + ahead / 1_000_000
        return Block(first, self._step / 1_000_000, count)

    def _read(self, data: bytes) -> RateRecord:
        try:
            return RateRecord.decode(data)
        except MalformedError as error:
            log.warning("%s is not the record of a rate, and is replaced: %s", self._path, error)
            return RateRecord()

    def _denied(self, error: NoAuthError) -> AccessDeniedError:
        return AccessDeniedError(f"rate {self._path}: {error}; {error.advice}")
