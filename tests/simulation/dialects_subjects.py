"""Objects for the public coroutines of other programs' queues, for every kind with additional methods."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.admin import QueueAdmin
from aiozkqueue.dialects.framing import unframe
from aiozkqueue.errors import NoReplyError
from aiozkqueue.layout import decode
from aiozkqueue.session.internals import handle_of
from tests.simulation.features_subjects import Ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import ModuleType

#: The paths of the queues and of the locks.
PATH, LOCKS = "/curators", "/curators-locks"
KAZOO = "/kazoos"


@asynccontextmanager
async def of_curator_queue(session: zq.QueueSession) -> AsyncIterator[Ready]:
    """A queue with ids, two of which are equal, and a dead letter."""
    queue = session.curator_queue(PATH, lock_path=LOCKS, kind="id", policy=zq.ConsumeTimes(5, backoff=zq.Fixed(0)))
    for body in (b"dead", b"a", b"b"):
        await queue.put(body, key="same")
    async with session.transaction() as tx:
        message = await tx.take(queue)
        assert message is not None
        tx.reject(message, "bad")
    yield Ready(queue, session, {"options": {"key": "new"}})


@asynccontextmanager
async def of_kazoo_queue(session: zq.QueueSession) -> AsyncIterator[Ready]:
    """A queue with locks."""
    queue = session.kazoo_queue(KAZOO, policy=zq.ConsumeTimes(5, backoff=zq.Fixed(0)))
    for body in (b"dead", b"a", b"b"):
        await queue.put(body)
    async with session.transaction() as tx:
        message = await tx.take(queue)
        assert message is not None
        tx.reject(message, "bad")
    yield Ready(queue, session, {})


class ForeignAdmin(QueueAdmin):
    """The tools of operators for another program's queue."""


@asynccontextmanager
async def of_kazoo_admin(session: zq.QueueSession) -> AsyncIterator[Ready]:
    """The tools of operators for a queue with locks."""
    async with of_kazoo_queue(session) as ready:
        yield Ready(ForeignAdmin(handle_of(ready.subject)), session, {})


@asynccontextmanager
async def of_shards(session: zq.QueueSession) -> AsyncIterator[Ready]:
    """A queue of limited size, with room for one more message."""
    shards = session.curator_shards(PATH, lock_path=lambda shard: f"{LOCKS}/{shard.rpartition('/')[2]}")
    await shards.put(b"a")
    yield Ready(shards, session, {})


SUBJECTS: dict[type | ModuleType, Callable[[zq.QueueSession], Any]] = {
    zq.CuratorQueue: of_curator_queue,
    zq.CuratorShards: of_shards,
    zq.ForeignQueue: of_kazoo_queue,
    ForeignAdmin: of_kazoo_admin,
}

#: Arguments that differ for one coroutine.
IN: dict[str, dict[str, Any]] = {"CuratorQueue.remove": {"key": "same"}}

#: Coroutines that these queues do not support, with the errors that they raise.
REFUSED: dict[str, type[zq.QueueError]] = {
    "ForeignQueue.cancel": zq.InvalidOptionError,
    "ForeignQueue.update": zq.InvalidOptionError,
    "Queue.call": NoReplyError,  # the message is stored, and no consumer handles it
}


def messages_at(path: str, data: bytes) -> list[str]:
    """Return the messages, or the dead letter, in a znode of another program's queue, each with its place."""
    above, _, name = path.rpartition("/")
    if above.startswith(PATH) and not above.startswith(LOCKS) and data:
        return [f"{above}: {body.decode()}" for body in unframe(data)]
    if above == f"{KAZOO}/entries":
        return [f"{above}: {data.decode()}"]
    if "/.foreign/" in path and name.startswith("item-"):
        return [f"{above}: {decode(data)[1].decode()}"]
    return []
