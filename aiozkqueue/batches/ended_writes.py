"""The attempts that have ended and have no record, so that none of their late tasks begins them again.

All of a queue share one record, and the multi that begins such an attempt asserts its version:

- A write with neither `writeId` nor `txnAppId` has a record only while it runs. The multi that removes it
  adds its writer here.
- If a micro-batch of a stream fails before a task has begun it, its driver knows neither the query nor the run, but
  only the origin (see `BatchWriter.begin`). A run begins after the failure of the one before, so the moment at which
  the driver made an attempt shows whether it is one that has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import key_hash
from aiozkqueue.operations.batch_writers import WriterRecord
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.zookeeper import Check, Create, MultiError, NoAuthError, NoNodeError, SetData, apply_until_answered

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation

_NAME: Final = "ended writes"


class AttemptOrigin(NamedTuple):
    """The origin of an attempt, and the moment at which its driver made it; empty: unknown."""

    origin: str = ""
    moment: str = ""
    """Its last word sorts in the order of time among those with the same words before."""

    def name_of(self, batch: int) -> str:
        """Return the name of the attempt at a batch."""
        return f"{self.origin} {batch} {self.moment}"


UNKNOWN_ORIGIN: Final = AttemptOrigin()


class EndedWrites(NamedTuple):
    """The shared record of a queue, at the version that was read; the version is -1 if no record exists."""

    path: str
    record: WriterRecord
    version: int

    @classmethod
    async def read(cls, handle: QueueHandle[Runtime]) -> EndedWrites:
        """Read the record, after a `sync` of the caller. Raises: AccessDeniedError."""
        path = f"{handle.paths.sinks}/{key_hash(_NAME)}"
        nothing = WriterRecord(name=_NAME)
        try:
            with translate_denials(handle.name):
                data, stat = await handle.zookeeper.read(path)
        except NoNodeError:
            return cls(path, nothing, -1)
        return cls(path, WriterRecord.decode(data) or nothing, stat.version)

    def __contains__(self, name: object) -> bool:
        """Whether this name was added."""
        return name in self.record.ended

    def has_failed(self, batch: int, made: AttemptOrigin) -> bool:
        """Whether a batch of this origin has failed since this moment."""
        mine = made.name_of(batch)
        same = mine.rpartition(" ")[0]
        return bool(made.moment) and any(
            ended > mine for ended in self.record.ended if ended.rpartition(" ")[0] == same
        )

    def unchanged(self) -> Operation:
        """Return the assertion that no write has ended since."""
        return self._to(self.record) if self.version < 0 else Check(self.path, self.version)

    def adding(self, name: str) -> Operation:
        """Return the addition of a writer whose write has ended, or of a failed attempt (`AttemptOrigin.name_of`)."""
        return self._to(self.record.ending(name))

    def _to(self, record: WriterRecord) -> Operation:
        data = record.encode()
        return Create(self.path, data) if self.version < 0 else SetData(self.path, data, self.version)


async def end_attempts(handle: QueueHandle[Runtime], batch: int, made: AttemptOrigin) -> None:
    """Refuse each later begin of this batch by an attempt that was made before this moment.

    Without the queue, this creates it, as the late begin of a task would. Raises: as `QueueState.open`.
    """
    while made.moment:
        await handle.state.refresh()
        await handle.state.open_or_create()
        await handle.zookeeper.ensure(handle.paths.sinks)
        ended = await EndedWrites.read(handle)
        name = made.name_of(batch)
        if name in ended:
            return
        try:
            await apply_until_answered(handle.zookeeper, [handle.state.snapshot.check, ended.adding(name)])
        except MultiError as refusal:
            if isinstance(refusal.error, NoAuthError):
                raise access_denied(handle.name, refusal.error) from refusal
        else:
            return
