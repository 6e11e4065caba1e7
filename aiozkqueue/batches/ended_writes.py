"""The writes that have ended and have no record any more, so that none of their late tasks begins them again.

A write with neither `writeId` nor `txnAppId` has a record of its own only while it runs. When it ends, the multi that
removes its record adds it to a record that all such writes of a queue share. The multi that begins a write without a
record asserts the version of the shared one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import key_hash
from aiozkqueue.operations.batch_writers import WriterRecord
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import Check, Create, NoNodeError, SetData

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation

_NAME: Final = "ended writes"


class EndedWrites(NamedTuple):
    """The shared record of a queue, at the version read; -1: there is none."""

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

    def __contains__(self, writer: object) -> bool:
        """Whether the write of this writer has ended."""
        return writer in self.record.ended

    def unchanged(self) -> Operation:
        """Return the assertion that no write has ended since."""
        return self._to(self.record) if self.version < 0 else Check(self.path, self.version)

    def adding(self, writer: str) -> Operation:
        """Return the addition of a writer whose write has ended."""
        return self._to(self.record.ending(writer))

    def _to(self, record: WriterRecord) -> Operation:
        data = record.encode()
        return Create(self.path, data) if self.version < 0 else SetData(self.path, data, self.version)
