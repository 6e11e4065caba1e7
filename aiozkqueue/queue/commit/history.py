"""The history of a queue: a record of each message that has come to its end, written in the multi that ends it.

So there is a record exactly when the message ended: never one of a commit that was rolled back, never two, never none.
Clean-up (`cleaning`) takes the old ones away. How they are read: `records`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from aiozkqueue.layout import End, History, HistoryRecord
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import Create, NoAuthError, NodeExistsError

from .attached import AttachedOp

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError

    from .dispositions import Disposition

_OUTCOMES: Final = {"consume": End.FINISHED, "dead": End.DEAD, "remove": End.REMOVED}

#: About what a record without its payload takes in a multi, bytes.
RECORD_WEIGHT = 500


class HistoryHook:
    """Writes the records of one queue, as far as its configuration wants any."""

    def __init__(self, store: QueueState, zookeeper: ZooKeeper, *, client: str, about: bytes) -> None:
        self._store = store
        self._zookeeper = zookeeper
        self._client = client
        self._host, self._pid = process_of(about)
        self.payload: bool = False
        """Whether payloads are kept."""

    def follow(self) -> None:
        """Take note of the queue's configuration."""
        store, history = self._store, self._store.config.history
        others = tuple(one for one in store.end_hooks if one is not self)
        store.end_hooks = (*others, self) if history else others
        self.payload = isinstance(history, History) and history.payload

    def weight(self, claim: Claim, disposition: Disposition) -> int:
        """About how many bytes the record takes."""
        if disposition.kind not in _OUTCOMES:
            return 0
        return RECORD_WEIGHT + (len(claim.raw) if self.payload and disposition.kind != "dead" else 0)

    def attached_ops(self, claim: Claim, disposition: Disposition, moment: Callable[[], int]) -> Iterable[AttachedOp]:
        """Make the record of an end; none of a release."""
        outcome = disposition.outcome or _OUTCOMES.get(disposition.kind)
        if outcome is None:
            return ()
        header = claim.header
        keeps = self.payload and outcome is not End.DEAD
        record = HistoryRecord(
            id=claim.id,
            ended=moment(),
            outcome=outcome,
            put=claim.created if header.enqueued_at is None else header.enqueued_at,
            claimed=claim.since,
            attempts=claim.attempt if claim.handed else claim.attempts,
            client=self._client,
            host=self._host,
            pid=self._pid,
            key=header.key,
            group=header.group,
            reason=disposition.reason,
            headers=header.headers if keeps else {},
            payload=claim.body if keeps else None,
        )
        return (AttachedOp(Create(self._store.paths.record(record.place), record.encode()), self),)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Make the hour of a record; one of the same message in the same millisecond goes again a moment later."""
        if isinstance(error, NoAuthError):
            raise denied(self._store.name, error)
        if isinstance(error, NodeExistsError):
            return None
        return self._zookeeper.ensure(operation.path.rpartition("/")[0])


def process_of(about: bytes) -> tuple[str, int]:
    """Read host and process number of what a session tells of itself; nothing of what is no such thing."""
    return session_of(about)[1:]


def session_of(about: bytes) -> tuple[str, str, int]:
    """Read as `process_of` does, and first the session's own name, where it tells that, too."""
    try:
        fields: object = json.loads(about)
    except (ValueError, RecursionError):
        return "", "", 0
    if not isinstance(fields, dict):
        return "", "", 0
    told = cast("dict[str, object]", fields)
    client, host, pid = (told.get(name) for name in ("client", "host", "pid"))
    return (
        client if isinstance(client, str) else "",
        host if isinstance(host, str) else "",
        pid if type(pid) is int and pid > 0 else 0,
    )
