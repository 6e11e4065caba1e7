"""Unique keys: a znode ``keys/<hash>`` that exists as long as the message with the key does.

The multi that puts the message creates it, and the multi that ends the message deletes it. So ZooKeeper itself refuses
the second of two puts with one key, and no earlier check can be out of date. The item's name contains the key
(``-k<hash>-u1-``), so the item need not be read when it is removed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import DuplicateKeyError
from aiozkqueue.layout import ItemName, KeyHolder, has_field, item_field, name_at
from aiozkqueue.queue.state.hooks import AttachedOp
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    until_answered,
)

from .put import PlainPuts
from .put_plan import PutHook

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeper, ZooKeeperError

    from .put import Put

log: Final = logging.getLogger(__name__)


class UniqueKey(PutHook):
    """The key's znode, created with the item."""

    __slots__ = ("_dropped", "_id", "_state", "hash", "holder", "ignore")

    def __init__(self, state: QueueState, key: str, message_id: str, *, ignore: bool) -> None:
        self._state = state
        self._id = message_id
        self._dropped = False
        self.hash: str = key
        self.ignore: bool = ignore
        """Whether a refused put is left out instead of failing."""
        self.holder: str | None = None
        """The id of the message that holds the key, if the put was left out because of it."""

    @property
    def dropped(self) -> bool:
        """Whether the put is left out because a message with its key exists."""
        return self._dropped

    def operation(self, item: str) -> Operation:
        """Return the create of the key's znode, which has the item's time of expiry."""
        end = item_field(name_at(item), "e")
        return Create(self._state.paths.key(self.hash), KeyHolder(self._id, int(end) if end else None).encode())

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Find the holder of the key."""
        if isinstance(error, NodeExistsError):
            return self.read_holder()
        return self._state.repair(operation, error)

    async def read_holder(self, freed: Collection[str] = ()) -> None:
        """Refuse the put or leave it out if its key is held; the holder may have ended, or may never have existed.

        A holder that has expired, and that no consumer handles, is ended. ``freed`` has the ids of messages that the
        write of the put ends. Raises: DuplicateKeyError, AccessDeniedError.
        """
        holder = await self._state.key_holder(self.hash)
        if holder is None or holder.id in freed:
            return
        if holder.expires is not None and await self._state.free_key(self.hash, holder):
            return
        if not self.ignore:
            raise key_taken(self._state, holder.id)
        self._dropped, self.holder = True, holder.id


def key_taken(state: QueueState, holder: str) -> DuplicateKeyError:
    """Return the error for a key that another message holds."""
    return DuplicateKeyError(
        f"queue {state.name!r}: message {holder} already has this unique key, and is waiting or being handled; "
        'cancel or update it, or use unique="ignore" to keep it',
        holder,
    )


def earlier_holder(holders: dict[tuple[str, str], str], put: Put) -> str | None:
    """Return the id of an earlier put of the same unit with the unique key of this put; None if there is none.

    ``holders`` maps queues and keys to ids. This put is added to it.

    Raises:
        DuplicateKeyError: there is one, and this put is not to be left out because of it.
    """
    key = unique_key(put)
    if key is None:
        return None
    earlier = holders.setdefault((put.state.name, key.hash), put.id)
    if earlier == put.id:
        return None
    if not key.ignore:
        msg = (
            f"queue {put.state.name!r}: two messages of this commit have the same unique key; put one of them, or use "
            'unique="ignore" to leave out the later one'
        )
        raise DuplicateKeyError(msg)
    return earlier


def stored_id(put: Put) -> str:
    """Return the id of the message that results from a put: its own, or that of the holder of its key."""
    key = unique_key(put)
    return put.id if key is None or key.holder is None else key.holder


def unique_key(put: Put) -> UniqueKey | None:
    """Return the unique key that a put creates."""
    if put.plan is not None:
        for hook in put.plan.hooks:
            if isinstance(hook, UniqueKey):
                return hook
    return None


def has_unique_keys(puts: Sequence[Put]) -> bool:
    """Return whether any of the puts has a unique key."""
    return type(puts) is not PlainPuts and any(unique_key(put) is not None for put in puts)


async def leave_out_held(zookeeper: ZooKeeper, puts: Iterable[Put], freed: Collection[str] = ()) -> None:
    """Leave those puts out, or refuse them, whose unique keys are held; expired holders are ended.

    ``freed`` has the ids of messages that the write of the puts ends.

    Raises: DuplicateKeyError, AccessDeniedError, OutcomeUnknownError, SessionClosedError.
    """
    for put in puts:
        if (key := unique_key(put)) is not None:
            await until_answered(zookeeper, partial(key.read_holder, freed))


class _FreedKey:
    """Handles a refused deletion of a key."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Continue without the key if it is gone or cannot be removed: the message must end regardless."""
        claim = self._claim
        if isinstance(error, NoNodeError | NotEmptyError | NoAuthError) and claim.fields is not None:
            if not isinstance(error, NoNodeError):
                log.error(
                    "queue %s: the unique key of message %s cannot be freed, and blocks further puts: %s; delete %s "
                    "and the znodes below it",
                    claim.state.name,
                    claim.id,
                    error,
                    operation.path,
                    extra=claim.log_ids(),
                )
            claim.fields = replace(claim.fields, unique=False)
            return None
        return claim.state.repair(operation, error)


def freed_by(claim: Claim) -> AttachedOp | None:
    """Return the operation that frees the unique key of an ended message; None if it has none."""
    fields = claim.fields
    if fields is None or not fields.unique or fields.key is None:
        return None
    return AttachedOp(Delete(claim.state.paths.key(fields.key)), _FreedKey(claim))


def freed_with(paths: QueuePaths, name: str) -> list[Operation]:
    """Return the operations that free the unique key of an item that is removed by its name alone."""
    fields = ItemName.parse(name) if has_field(name, "u") else None
    return [Delete(paths.key(fields.key))] if fields is not None and fields.unique and fields.key is not None else []
