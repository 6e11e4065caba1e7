"""Unique keys: a znode ``keys/<hash>`` that comes and goes with the message that bears the key.

It is created in the multi that puts the message, and deleted in the one that ends it, whichever that is. So of two puts
of one key the second is refused by ZooKeeper itself, and there is no moment at which a look could have been too early.
The item's name says that it has one (``-k<hash>-u1-``), so that whoever removes the item need not read it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import DuplicateKeyError
from aiozkqueue.layout import ItemName
from aiozkqueue.queue.runtime.log_context import about
from aiozkqueue.zookeeper import Create, Delete, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError

from .attached import AttachedOp
from .put_plan import PutHook

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .puts import Put

log: Final = logging.getLogger(__name__)


class UniqueKey(PutHook):
    """The key's znode, created beside the item."""

    __slots__ = ("_dropped", "_id", "_store", "hash", "holder", "ignore")

    def __init__(self, store: QueueState, key: str, message_id: str, *, ignore: bool) -> None:
        self._store = store
        self._id = message_id
        self._dropped = False
        self.hash: str = key
        self.ignore: bool = ignore
        """Whether a put that is refused is left out, rather than failed."""
        self.holder: str | None = None
        """The message that bears the key already, where the put was left out for it."""

    @property
    def dropped(self) -> bool:
        """Whether the put is left out, since a message with its key is there."""
        return self._dropped

    def operation(self) -> Operation:
        """Create the key."""
        return Create(self._store.paths.key(self.hash), self._id.encode())

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Find out whose key it is."""
        if isinstance(error, NodeExistsError):
            return self._look()
        return self._store.repair(operation, error)

    async def _look(self) -> None:
        """Refuse, or leave out, what has its key taken; what refused it may be gone, or may never have been applied."""
        holder = await self._store.key_holder(self.hash)
        if holder is None:
            return
        if not self.ignore:
            raise taken(self._store, holder)
        self._dropped, self.holder = True, holder


def taken(store: QueueState, holder: str) -> DuplicateKeyError:
    """Make the error for a key that another message bears."""
    return DuplicateKeyError(
        f"queue {store.name!r}: message {holder} bears this unique key, and waits or is being handled; "
        'cancel or update it, or put with unique="ignore" to leave it at that'
    )


def bearer(seen: dict[tuple[str, str], str], put: Put) -> str | None:
    """Return the id of an earlier put of one unit that bears the unique key of this one; None when none does.

    ``seen`` holds the ids by queue and key, and takes note of this one.

    Raises:
        DuplicateKeyError: one does, and this one is not to be left out for it.
    """
    key = unique_key(put)
    if key is None:
        return None
    earlier = seen.setdefault((put.store.name, key.hash), put.id)
    if earlier == put.id:
        return None
    if not key.ignore:
        raise taken(put.store, earlier)
    return earlier


def stored_as(put: Put) -> str:
    """Return the id of the message that there is because of a put: its own, or that for which it was left out."""
    key = unique_key(put)
    return put.id if key is None or key.holder is None else key.holder


def unique_key(put: Put) -> UniqueKey | None:
    """Return the unique key that a put creates."""
    if put.plan is not None:
        for attached_op in put.plan.attached_ops:
            if isinstance(attached_op, UniqueKey):
                return attached_op
    return None


class _FreedKey:
    """Answers for the key's deletion."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Go on without the key when it is gone, or cannot be removed: the message has to end all the same."""
        claim = self._claim
        if isinstance(error, NoNodeError | NotEmptyError | NoAuthError) and claim.fields is not None:
            if not isinstance(error, NoNodeError):
                log.error(
                    "queue %s: the unique key of message %s cannot be freed, and refuses further puts: %s; delete %s "
                    "and what lies below it",
                    claim.store.name,
                    claim.id,
                    error,
                    operation.path,
                    extra=about(claim),
                )
            claim.fields = replace(claim.fields, unique=False)
            return None
        return claim.store.repair(operation, error)


def freed_by(claim: Claim) -> AttachedOp | None:
    """Return what frees the unique key of a message that ends; None when it has none."""
    fields = claim.fields
    if fields is None or not fields.unique or fields.key is None:
        return None
    return AttachedOp(Delete(claim.store.paths.key(fields.key)), _FreedKey(claim))


def freed_with(paths: QueuePaths, name: str) -> list[Operation]:
    """Return what frees the unique key of an item that is removed by its name alone."""
    fields = ItemName.parse(name) if "-u" in name else None
    return [Delete(paths.key(fields.key))] if fields is not None and fields.unique and fields.key is not None else []
