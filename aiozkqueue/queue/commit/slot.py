"""The commit slot: a znode that only this client writes, its idempotency register for multis.

Every multi begins with ``setData(slot, stamp, version)``, and a slot carries one multi at a time. So the client can
always find out whether a multi was applied:

- Its reply is lost: the same multi is sent again in the same ZooKeeper session. ``BadVersion`` on the slot with our
  stamp in it means that the first copy was applied. Success means that it was not.
- The session ends first: a session created *after* the server's verdict reads the slot. No request of the old
  session can still be applied, and the new session sees everything that was.
- The multi is refused after a copy of it was lost: the slot is written again in a separate request (*sealed*) before
  the refusal is reported. From then on no late copy can be applied.
"""

from __future__ import annotations

import enum
import logging
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.zookeeper import (
    AuthFailedError,
    BadVersionError,
    ConnectionLossError,
    Create,
    MultiError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    NotConnectedError,
    RequestTooLargeError,
    ServerError,
    SessionExpiredError,
    SetData,
    Stat,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.layout import ClientPaths
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeper

log: Final = logging.getLogger(__name__)


class MultiFate(enum.Enum):
    """The fate of a multi that was not refused."""

    APPLIED = enum.auto()
    NOT_APPLIED = enum.auto()
    """It has not been and never will be applied.

    It was never sent, or the session ended, or the slot's version was not the expected one.
    """
    UNKNOWN = enum.auto()
    """The slot is gone, because the slots of dead clients are removed, or it can no longer be read."""


class Sent(NamedTuple):
    """The fate of a multi and its results; None if nothing needs them, or if the reply was lost."""

    fate: MultiFate
    results: list[Result] | None = None
    why: str = "its commit slot has been removed, by clean-up after a day without commits or by the restore of a backup"
    """Why its fate is unknown."""


class RefusedError(Exception):
    """One operation of the multi was refused, and no copy of the multi can be applied any more."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(index, error)
        self.index = index
        """The index among the operations given to `Slot.begin`."""
        self.error = error


class Sending(NamedTuple):
    """A multi that has been sent."""

    multi: list[Operation]
    generation: int
    results: int | None
    """How many results of the reply are decoded; None: all."""
    reply: Awaitable[list[Result]]
    sent: float
    """The time of sending, by `ServerClock.local`."""


class Slot:
    """One commit slot. ``about`` is the data of the client's znode: where the client runs."""

    def __init__(
        self, zookeeper: ZooKeeper, paths: ClientPaths, number: int, clock: ServerClock, about: bytes = b""
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._about = about
        self._clock = clock
        self.path: str = paths.slot(number)
        self._version: int | None = None  # of the znode, as last reported; None: it must be created or read first
        self._newest = (0, 0)  # the last generation that has seen the slot, and the transaction that wrote it
        self._stamps = count(1)
        self._in_doubt = False  # whether a copy of the current multi was lost, and its fate is not known

    @property
    def ready(self) -> bool:
        """Whether a multi can be sent immediately."""
        return self._version is not None

    def begin(self, operations: Sequence[Operation], generation: int, *, needs_results: bool) -> Sending:
        """Send one multi now; `finish` returns its fate, and its results if ``needs_results``.

        The slot must be `ready`, and must carry no other multi.
        """
        assert self._version is not None  # noqa: S101 - the slot is ready
        multi = [self._stamp(self._version), *operations]
        results = None if needs_results else 1  # the first is the slot's own
        sent = self._clock.local()
        reply = self._zookeeper.multi(multi, generation=generation, results=results)
        return Sending(multi, generation, results, reply, sent)

    async def finish(self, sending: Sending) -> Sent:
        """Return the fate of a multi, after sending it again if necessary.

        Raises:
            RefusedError: one of the operations was refused.
            RequestTooLargeError, ServerError: the multi was refused as a whole, and no copy of it can be applied any
                more.
            NoAuthError, AuthFailedError: an ACL refuses access to the slot itself, or the server refuses the
                credentials. Nothing was applied: if a copy of the multi was lost before, its fate is unknown instead.
            ClientClosedError: the client was closed in the meantime; the fate is unknown.
        """
        self._in_doubt = False
        try:
            return await self._decide(sending)
        except (AuthFailedError, NodeError, RequestTooLargeError, ServerError) as error:
            if not self._in_doubt:
                raise
            self._version = None
            return Sent(MultiFate.UNKNOWN, why=f"its commit slot can no longer be read: {error}")

    async def _decide(self, sending: Sending) -> Sent:
        multi, generation, wanted, reply, sent = sending
        while True:
            try:
                results = await reply
            except MultiError as refusal:
                return Sent(await self._fate_of_refused(multi[0], refusal, generation))
            except ConnectionLossError as loss:
                self._in_doubt = self._in_doubt or not isinstance(loss, NotConnectedError)
                if not self._in_doubt:  # it never left
                    return Sent(MultiFate.NOT_APPLIED)
                over = not await self._reconnected(generation)
            except SessionExpiredError:
                over = True
            except (RequestTooLargeError, ServerError):  # about the request as a whole
                if self._in_doubt and await self._seal(multi[0], generation) is MultiFate.APPLIED:
                    return Sent(MultiFate.APPLIED)
                self._in_doubt = False
                raise
            else:
                self._note_version(results[0], generation, sent)
                return Sent(MultiFate.APPLIED, results[1:] if wanted is None else None)
            if over:
                return Sent(await self._read_verdict(multi[0], generation) if self._in_doubt else MultiFate.NOT_APPLIED)
            reply = self._zookeeper.multi(multi, generation=generation, results=wanted)

    async def _fate_of_refused(self, stamp: Operation, refusal: MultiError, generation: int) -> MultiFate:
        """Return the fate of a refused multi. Raises: RefusedError."""
        if refusal.index == 0:
            return await self._fate_of_refused_stamp(stamp, refusal.error, generation)
        if self._in_doubt and await self._seal(stamp, generation) is MultiFate.APPLIED:
            return MultiFate.APPLIED
        raise RefusedError(refusal.index - 1, refusal.error) from refusal

    async def _seal(self, stamp: Operation, generation: int) -> MultiFate:
        """Write the slot on its own, so that no late copy of a lost multi can be applied any more.

        Return APPLIED if the lost copy turns out to have been applied after all.
        """
        assert self._version is not None  # noqa: S101 - a stamp was sent with it
        seal = self._stamp(self._version)
        while True:
            try:
                results = await self._zookeeper.multi([seal], generation=generation)
            except MultiError as refusal:
                return await self._fate_of_refused_stamp(stamp, refusal.error, generation)
            except ConnectionLossError:
                pass
            except SessionExpiredError:
                return await self._read_verdict(stamp, generation)
            else:
                self._note_version(results[0], generation)
                return MultiFate.NOT_APPLIED
            if not await self._reconnected(generation):
                return await self._read_verdict(stamp, generation)

    async def _fate_of_refused_stamp(self, stamp: Operation, error: ZooKeeperError, generation: int) -> MultiFate:
        if isinstance(error, BadVersionError):
            # The refusal came over this connection, so a read on it cannot return older data.
            return await self._compare_stamp(stamp, generation)
        if isinstance(error, NoNodeError):  # removed, as the slots of dead clients are
            self._version = None
            return MultiFate.UNKNOWN if self._in_doubt else MultiFate.NOT_APPLIED
        raise error

    async def _read_verdict(self, stamp: Operation, generation: int) -> MultiFate:
        """Read the slot in a session created after the server's verdict on the session that sent."""
        generation = await self._zookeeper.wait_connected(after=generation)
        # No reply reveals how current the servers were when the session was created. If the session has since moved to
        # a server that lags, a read without a sync could return older data.
        await self._zookeeper.sync(self.path)
        return await self._compare_stamp(stamp, generation)

    async def _compare_stamp(self, stamp: Operation, generation: int) -> MultiFate:
        """Return from the slot's content whether the multi that began with ``stamp`` was the last one applied."""
        assert isinstance(stamp, SetData)  # noqa: S101 - `_stamp` makes it
        try:
            node = await self._zookeeper.read(self.path)
        except NoNodeError:
            self._version = None
            return MultiFate.UNKNOWN if self._in_doubt else MultiFate.NOT_APPLIED
        await self._adopt(node.stat, generation)
        return MultiFate.APPLIED if node.data == stamp.data else MultiFate.NOT_APPLIED

    async def _adopt(self, stat: Stat, generation: int) -> None:
        """Adopt the version that was read.

        No server shows a session an older state than before, unless a backup has been restored. The session's locks
        are then those of the backup, which it does not know, so it ends.
        """
        self._version = stat.version
        if self._newest[0] == generation and stat.mzxid < self._newest[1]:
            log.error(
                "%s: the servers have older data than this session has seen, as after the restore of a backup: the "
                "session ends, and a new one begins; earlier messages may be redelivered",
                self.path,
                extra={"slot": self.path},
            )
            await self._zookeeper.end_session(generation)
        self._newest = (generation, stat.mzxid)

    def _note_version(self, result: Result, generation: int, sent: float | None = None) -> None:
        if not isinstance(result, Stat):  # not a valid answer to a write: read the version before the next multi
            self._version = None
            return
        self._version = result.version  # as reported, not counted: the server's number wraps after 2^31 writes
        self._newest = (generation, result.mzxid)
        self._clock.observe(result.mtime, sent)

    async def _reconnected(self, generation: int) -> bool:
        """Wait for a connection; return False if the session has ended."""
        try:
            await self._zookeeper.wait_connected(generation=generation)
        except SessionExpiredError:
            return False
        return True

    async def prepare(self, generation: int) -> bool:
        """Create the slot, or read the version of the existing one; return False if the session has ended.

        It may have to be called again until the slot is `ready`.
        """
        sent: float | None = self._clock.local()
        try:
            await self._zookeeper.multi([Create(self.path)], generation=generation)
        except ConnectionLossError:
            return await self._reconnected(generation)
        except SessionExpiredError:
            return False
        except MultiError as refusal:
            if isinstance(refusal.error, NoNodeError):
                await self._make_folder(generation)
                return True
            if not isinstance(refusal.error, NodeExistsError):
                raise refusal.error from refusal
            sent = None  # it was written earlier, perhaps long ago
        stat = await self._zookeeper.exists(self.path)
        if stat is not None:
            await self._adopt(stat, generation)
            if sent is not None and stat.mzxid >> 32 == self._zookeeper.last_zxid >> 32:  # not another leader's clock
                self._clock.observe(stat.mtime, sent)
        return True

    async def sample_clock(self, generation: int) -> None:
        """Learn ZooKeeper's time by a write of the slot alone. If its reply is lost, the slot must be prepared again.

        A late copy of it refuses the next multi, which is then sent again.

        Raises: NoAuthError: an ACL refuses access to the slot; ServerError, ClientClosedError.
        """
        assert self._version is not None  # noqa: S101 - the slot is ready
        stamp, sent, self._version = self._stamp(self._version), self._clock.local(), None
        try:
            (result,) = await self._zookeeper.multi([stamp], generation=generation)
        except (ConnectionLossError, SessionExpiredError):
            return
        except MultiError as refusal:
            if not isinstance(refusal.error, BadVersionError | NoNodeError):
                raise refusal.error from refusal
        else:
            self._note_version(result, generation, sent)

    async def _make_folder(self, generation: int) -> None:
        """Create the client's znode, which describes where the client runs."""
        await self._zookeeper.ensure(self._paths.clients)
        with suppress(ConnectionLossError, SessionExpiredError):  # the next attempt creates it
            try:
                await self._zookeeper.multi([Create(self._paths.base, self._about)], generation=generation)
            except MultiError as refusal:
                if not isinstance(refusal.error, NodeExistsError | NoNodeError):
                    raise refusal.error from refusal

    def _stamp(self, version: int) -> SetData:
        return SetData(self.path, b"%d" % next(self._stamps), version)
