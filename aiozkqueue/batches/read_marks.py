"""Marks that record which messages of a batch the tasks of a stream have read.

A task that has passed all rows of its share to Spark creates a znode below the batch's manifest. The znode's name holds
the stream, its run, and the range of messages. A batch is acknowledged only when such marks cover it, because Spark
also commits batches that no task has read: a file sink skips the batch numbers that its folder knows.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.zookeeper import (
    Check,
    Create,
    MultiError,
    NodeExistsError,
    apply_until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.zookeeper import ZooKeeper

_MARK: Final = re.compile(r"read-([0-9a-z]+)-([0-9a-z]+)-([0-9]{1,18})-([0-9]{1,18})")


class Evidence(enum.Enum):
    """The evidence that the marks of a batch provide for a stream that reports the batch as done."""

    READ = "read"
    """Tasks of this run have read all of it."""
    EARLIER = "earlier"
    """Tasks of earlier runs of the stream have read all of it, tasks of this run have not."""
    UNREAD = "unread"
    """No task of the stream has read some of it."""


class ReadMark(NamedTuple):
    """The messages of a batch that a task has read: from ``begin`` to before ``stop``, in the order of its pages."""

    stream: str
    run: str
    begin: int
    stop: int

    @property
    def name(self) -> str:
        """The name of its znode."""
        return f"read-{self.stream}-{self.run}-{self.begin}-{self.stop}"

    @classmethod
    def parse(cls, name: str) -> ReadMark | None:
        """Parse a znode's name; None: it is not a mark."""
        found = _MARK.fullmatch(name)
        return None if found is None else cls(found[1], found[2], int(found[3]), int(found[4]))


def weigh(names: Iterable[str], messages: int, stream: str, run: str) -> Evidence:
    """Decide from the names of a manifest's children whether tasks of a stream have read all of its ``messages``."""
    marks = [mark for mark in map(ReadMark.parse, names) if mark is not None and mark.stream == stream]
    if _covered([mark for mark in marks if mark.run == run], messages):
        return Evidence.READ
    return Evidence.EARLIER if _covered(marks, messages) else Evidence.UNREAD


def _covered(marks: Iterable[ReadMark], messages: int) -> bool:
    reached = 0
    for begin, stop in sorted((mark.begin, mark.stop) for mark in marks):
        if begin > reached:
            return False
        reached = max(reached, stop)
    return reached >= messages


class Reading(NamedTuple):
    """The data with which a task marks its share as read."""

    ledger: str
    """The path of the ledger's znode."""
    epoch: int
    """The version of that znode when the batch was passed to the query."""
    manifest: str
    mark: ReadMark

    def of(self, begin: int, stop: int) -> Reading:
        """Return the data for a share of it."""
        return self._replace(mark=self.mark._replace(begin=begin, stop=stop))

    async def note(self, zookeeper: ZooKeeper) -> None:
        """Create the mark. A repetition changes nothing.

        Raises:
            ClaimLostError: another process has taken the ledger over.
            NoNodeError: the batch no longer exists.
            NoAuthError, ClientClosedError: of the zookeeper package.
        """
        check, create = Check(self.ledger, self.epoch), Create(f"{self.manifest}/{self.mark.name}", b"")
        try:
            await apply_until_answered(zookeeper, [check, create])
        except MultiError as refusal:
            if refusal.index == 0:
                msg = f"{self.ledger}: this ledger has been taken over or released; its task must stop"
                raise ClaimLostError(msg) from refusal
            if not isinstance(refusal.error, NodeExistsError):
                raise refusal.error from refusal
