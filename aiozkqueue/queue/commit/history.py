"""The history of a queue: a record of each message that has ended, written in the multi that ends it.

Each ended message therefore has exactly one record, and a commit that was rolled back leaves no record. The clean-up
removes old records (`aiozkqueue.operations.cleaning`). `aiozkqueue.operations.history` reads them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import End, History, HistoryRecord
from aiozkqueue.layout.processes import ProcessInfo
from aiozkqueue.queue.state.hooks import AttachedOp
from aiozkqueue.zookeeper import Create, NodeExistsError, NoNodeError, parent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import QueueSnapshot
    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError

    from .dispositions import Disposition

_OUTCOMES: Final = {"consume": End.FINISHED, "dead": End.DEAD, "remove": End.REMOVED}

#: The approximate size of a record without its payload in a multi, in bytes.
RECORD_WEIGHT = 500


class HistoryHook:
    """Writes the history of one queue, if its configuration asks for one."""

    def __init__(self, state: QueueState, zookeeper: ZooKeeper, *, client: str, about: bytes) -> None:
        self._state = state
        self._zookeeper = zookeeper
        self._client = client
        self._process = ProcessInfo.decode(about)
        self.payload: bool = False
        """Whether records keep payloads."""

    def configured(self, snapshot: QueueSnapshot) -> QueueSnapshot:
        """See `QueueFeature`."""
        history = snapshot.config.history
        self.payload = isinstance(history, History) and history.payload
        return replace(snapshot, end_hooks=(*snapshot.end_hooks, self)) if history else snapshot

    def weight(self, claim: Claim, disposition: Disposition) -> int:
        """Return the approximate size of the record in a multi, in bytes."""
        if disposition.kind not in _OUTCOMES:
            return 0
        return RECORD_WEIGHT + 4 * len(self._process.name) + (len(claim.raw) if self._keeps(disposition) else 0)

    def attached_ops(self, claim: Claim, disposition: Disposition, moment: Callable[[], int]) -> Iterable[AttachedOp]:
        """Return the create of an end's record; nothing for a release."""
        outcome = disposition.outcome or _OUTCOMES.get(disposition.kind)
        if outcome is None:
            return ()
        header, keeps = claim.header, self._keeps(disposition)
        record = HistoryRecord(
            id=claim.id,
            ended=moment(),
            outcome=outcome,
            put=header.put_at(claim.created),
            claimed=claim.claimed_at,
            attempts=claim.attempts_made,
            client=self._client,
            host=self._process.host,
            pid=self._process.pid,
            name=self._process.name,
            key=header.key,
            group=header.group,
            reason=disposition.reason,
            headers=header.headers if keeps else {},
            payload=claim.body if keeps else None,
        )
        return (AttachedOp(Create(self._state.paths.record(record.place), record.encode()), self),)

    def _keeps(self, disposition: Disposition) -> bool:
        """Return whether the record of an end keeps the payload, which no other znode keeps."""
        return self.payload and disposition.kind != "dead" and not disposition.replaced

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Create the record's parent znode, or retry when the record's name is taken: one a millisecond per message."""
        if isinstance(error, NodeExistsError):
            return None
        if isinstance(error, NoNodeError):
            return self._zookeeper.ensure(parent_of(operation.path))
        return self._state.repair(operation, error)
