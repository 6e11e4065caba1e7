"""The sweep of tag records, and the search for bad ones.

A sweep raises a record's version, which makes later puts renew it first. Then it lists the names with digests, and
removes a record that no item uses and no put has renewed. There is one sweep of a queue at a time. It changes
nothing in a queue that was deleted and created again in the meantime, because another sweep may have marked the records
there.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import name_digest, tags_digest
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.candidates.tag_records import PAGE, raise_unless_overtaken, read_records
from aiozkqueue.zookeeper import Check, Create, Delete, MultiError, NoAuthError, NoNodeError, SetData, below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Operation, ZooKeeper

#: The lock of a sweep, next to the records.
_SWEEPING: Final = ".sweeping"


async def bad_records(zookeeper: ZooKeeper, paths: QueuePaths, most: int) -> list[str]:
    """Return the digests of records, up to ``most``, that this user may not read or that do not match their names."""
    digests = [name for name in await below(zookeeper, paths.filters) if name != _SWEEPING][:most]
    bad: list[str] = []
    for start in range(0, len(digests), PAGE):
        records = await read_records(zookeeper, paths, digests[start : start + PAGE])
        bad += [
            digest
            for digest, data in records.items()
            if isinstance(data, NoAuthError) or (data is not None and tags_digest(data) != digest)
        ]
    return bad


async def sweep_tags(
    zookeeper: ZooKeeper, paths: QueuePaths, folders: Callable[[], Awaitable[Iterable[str]]], generation: int
) -> int:
    """Remove the tag records that no item in these folders uses; return how many. Safe during puts.

    ``folders`` returns all that hold items of the queue, with its dead letters both first and last: a message redriven
    from there must be seen in at least one place. It is called when the records are marked: a put that does not renew
    its record may be the first in its folder until then. Returns 0 at once while another sweep is running. If the
    configuration changes meanwhile, the rest is left to the next sweep.

    Raises: ConnectionLossError, SessionExpiredError, NoAuthError of the zookeeper package: sweep again.
    """
    lock = f"{paths.filters}/{_SWEEPING}"
    base = await zookeeper.exists(paths.base, generation=generation)
    # The configuration of a queue that is created again has another version.
    same = Check(paths.base, -1 if base is None else base.version)
    if not await _try(zookeeper, [same, Create(lock, ephemeral=True)], generation):
        return 0
    try:
        digests = [name for name in await zookeeper.children(paths.filters, generation=generation) if name != _SWEEPING]
        marked: dict[str, bytes] = {}
        for digest in digests:
            with suppress(NoAuthError):  # a record that this user may not read or change stays
                [node] = await zookeeper.read_many([paths.tags(digest)], generation=generation)
                if node is not None:
                    mark: list[Operation] = [same, SetData(paths.tags(digest), node.data, 0)]
                    if node.stat.version or await _try(zookeeper, mark, generation):
                        marked[digest] = node.data
        # Later puts have renewed their records: only earlier items can depend on a marked one.
        used: set[str | None] = set()

        def note(name: str) -> bool:
            used.add(name_digest(name))
            return False

        for folder in await folders():
            with suppress(NoNodeError):
                await zookeeper.children_into(folder, partial(Matching, note), generation=generation)
        removed = 0
        for digest, data in marked.items():
            path = paths.tags(digest)
            stat = await zookeeper.exists(path, generation=generation)
            if stat is None or not stat.version:
                continue
            if digest in used:
                await _try(zookeeper, [same, Delete(path, stat.version), Create(path, data)], generation)
            else:
                removed += await _try(zookeeper, [same, Delete(path, stat.version)], generation)
        return removed
    finally:
        await _unlock(zookeeper, paths.base, lock, generation)


async def _unlock(zookeeper: ZooKeeper, base: str, lock: str, generation: int) -> None:
    """Remove the lock of this session's sweep, and not that of a sweep of the queue that was created again."""
    while True:
        configuration, own = await zookeeper.read_many([base, lock], generation=generation)
        if configuration is None or own is None or own.stat.ephemeral_owner != zookeeper.session_id:
            return
        if await _try(zookeeper, [Check(base, configuration.stat.version), Delete(lock)], generation):
            return


async def _try(zookeeper: ZooKeeper, operations: list[Operation], generation: int) -> bool:
    """Apply a change; return False if another client was faster."""
    try:
        await zookeeper.multi(operations, generation=generation)
    except MultiError as refusal:
        raise_unless_overtaken(refusal)
        return False
    return True
