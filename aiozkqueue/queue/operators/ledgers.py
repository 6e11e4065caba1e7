"""The ledgers of a queue as operators see them: which there are, and how an abandoned one is released."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import NotFoundError
from aiozkqueue.layout import LockRecord, item_id
from aiozkqueue.queue.claims.pages import is_of_ledger, read_page
from aiozkqueue.zookeeper import (
    Check,
    ConnectionLossError,
    Delete,
    MultiError,
    NoNodeError,
    SessionExpiredError,
    SetData,
)

from .leftovers import below

if TYPE_CHECKING:
    from aiozkqueue.queue.engine import Engine
    from aiozkqueue.queue.store import QueueStore
    from aiozkqueue.zookeeper import Operation

#: Locks read at a time.
TOGETHER: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """What a stream holds of a queue."""

    group: str
    batches: int
    """Batches that have not been acknowledged."""
    messages: int
    """Messages in them, which nobody else can take."""
    client: str
    """The session that took it over last, and where that ran."""
    host: str
    pid: int
    changed: datetime
    """When that was, or when a batch was last begun, in ZooKeeper's time."""


async def ledgers(engine: Engine, store: QueueStore) -> list[LedgerInfo]:
    """Read what there is of each ledger of a queue that has been used."""
    zookeeper, found = engine.zookeeper, list[LedgerInfo]()
    for group in sorted(await below(zookeeper, store.paths.ledgers)):
        path = f"{store.paths.ledgers}/{group}"
        node = await zookeeper.read(path)
        manifests = await below(zookeeper, path)
        messages, changed = 0, node.stat.mtime
        for name in manifests:
            stat = await zookeeper.exists(f"{path}/{name}")
            changed = max(changed, 0 if stat is None else stat.ctime)
            for page in await below(zookeeper, f"{path}/{name}"):
                messages += len(await read_page(zookeeper.read, f"{path}/{name}/{page}"))
        about = json.loads(node.data)
        found.append(
            LedgerInfo(
                group=group,
                batches=len(manifests),
                messages=messages,
                client=str(about.get("client", "")),
                host=str(about.get("host", "")),
                pid=int(about.get("pid", 0)),
                changed=datetime.fromtimestamp(changed / 1000, UTC),
            )
        )
    return found


async def count_ledgers(engine: Engine, store: QueueStore) -> int:
    """Count the ledgers that hold a batch."""
    held = 0
    for group in await below(engine.zookeeper, store.paths.ledgers):
        stat = await engine.zookeeper.exists(f"{store.paths.ledgers}/{group}")
        held += stat is not None and stat.num_children > 0
    return held


async def release(engine: Engine, store: QueueStore, group: str) -> int:
    """Give back what a ledger holds; return how many messages. The stream that used it fails at its next change.

    Raises: NotFoundError: there is no such ledger.
    """
    zookeeper = engine.zookeeper
    path = f"{store.paths.ledgers}/{group}"
    try:
        node = await zookeeper.read(path)
        results = await zookeeper.multi([SetData(path, node.data)])
    except (NoNodeError, MultiError) as error:
        msg = f"queue {store.name!r} has no ledger {group!r}; `aiozkqueue ledgers list` shows those that there are"
        raise NotFoundError(msg) from error
    epoch = getattr(results[0], "version", -1)
    released = 0
    for name in sorted(await below(zookeeper, path)):
        for page in sorted(await below(zookeeper, f"{path}/{name}")):
            released += await _give_back(engine, store, Check(path, epoch), f"{path}/{name}/{page}")
        await _apply(engine, [Check(path, epoch), Delete(f"{path}/{name}")])
    return released


async def _give_back(engine: Engine, store: QueueStore, check: Check, page: str) -> int:
    zookeeper, paths = engine.zookeeper, store.paths
    locks = [paths.lock(item_id(one.place.rpartition("/")[2])) for one in await read_page(zookeeper.read, page)]
    ours: list[str] = []
    for start in range(0, len(locks), TOGETHER):
        nodes = await zookeeper.read_many(locks[start : start + TOGETHER])
        for lock, node in zip(locks[start : start + TOGETHER], nodes, strict=True):
            if node is not None and is_of_ledger(LockRecord.decode(node.data)):
                ours.append(lock)
    marks = [Delete(f"{page}/{name}") for name in await below(zookeeper, page)]
    bell = SetData(paths.items, b"")  # what wakes idle consumers
    await _apply(engine, [check, bell, *(Delete(lock) for lock in ours), *marks, Delete(page)])
    return len(ours)


async def _apply(engine: Engine, operations: list[Operation]) -> None:
    """Apply a change of a released ledger; one whose reply was lost is refused the second time."""
    while True:
        try:
            await engine.zookeeper.multi(operations)
        except (ConnectionLossError, SessionExpiredError):
            await engine.zookeeper.wait_connected()
            if await engine.zookeeper.exists(operations[-1].path) is None:
                return
        else:
            return
