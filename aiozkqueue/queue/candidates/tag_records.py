"""The records of tags: each combination is stored once in a queue, and read once by each session.

A put asserts, in the multi that creates the item, that its record exists at version 0. So records can be swept during
puts. A sweep raises a record's version, which makes later puts renew it first. Then it lists the names with digests,
and removes a record that no item uses and no put has renewed. There is one sweep of a queue at a time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import decode_tags, name_digest, tags_digest
from aiozkqueue.zookeeper import (
    BadVersionError,
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SetData,
)

from .collectors import Matching

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.layout import QueuePaths, Tags
    from aiozkqueue.zookeeper import Operation, ZooKeeper

#: Combinations of tags that a session remembers per queue; beyond that, it forgets all.
MOST_KNOWN = 10_000
#: Records read in one request.
PAGE = 200
#: The lock of a sweep, next to the records.
_SWEEPING = ".sweeping"


class TagRecords:
    """The combinations of tags of one queue that a session knows."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._declared: set[str] = set()
        self._known: dict[str, Tags] = {}

    def declared(self, digest: str) -> bool:
        """Whether a producer of this session has seen a record."""
        return digest in self._declared

    async def declare(self, digest: str, data: bytes) -> None:
        """Make sure that a record exists at version 0. Idempotent.

        Raises: NoAuthError, ClientClosedError of the zookeeper package.
        """
        path = self._paths.tags(digest)
        while True:
            try:
                stat = await self._zookeeper.exists(path)
                if stat is None:
                    await self._zookeeper.ensure(self._paths.filters)
                    await self._zookeeper.multi([Create(path, data)])
                elif stat.version:  # about to be swept
                    await self._zookeeper.multi([Delete(path, stat.version), Create(path, data)])
                break
            except (ConnectionLossError, SessionExpiredError):
                await self._zookeeper.wait_connected()
            except MultiError as refusal:
                _raise_unless_overtaken(refusal)
        if len(self._declared) >= MOST_KNOWN:
            self._declared.clear()
        self._declared.add(digest)

    def forget(self, digest: str) -> None:
        """Record that a record may have been removed."""
        self._declared.discard(digest)

    async def read(self, digests: Iterable[str], generation: int) -> dict[str, Tags]:
        """Return the tags of these digests, except those whose record is missing or does not match its digest."""
        known: dict[str, Tags] = {}
        missing: list[str] = []
        for digest in digests:
            tags = self._known.get(digest)
            if tags is None:
                missing.append(digest)
            else:
                known[digest] = tags
        if len(self._known) + len(missing) > MOST_KNOWN:
            self._known.clear()
        for start in range(0, len(missing), PAGE):
            page = missing[start : start + PAGE]
            nodes = await self._zookeeper.read_many(
                [self._paths.tags(digest) for digest in page], generation=generation
            )
            for digest, node in zip(page, nodes, strict=True):
                if node is not None and tags_digest(node.data) == digest:
                    known[digest] = self._known[digest] = decode_tags(node.data)
        return known


async def sweep_tags(zookeeper: ZooKeeper, paths: QueuePaths, folders: Iterable[str], generation: int) -> int:
    """Remove the tag records that no item in these folders uses; return how many. Safe during puts.

    ``folders`` are all that hold items of the queue, with its dead letters both first and last: a message redriven from
    there must be seen in at least one place. Returns 0 at once while another sweep is running.

    Raises: ConnectionLossError, SessionExpiredError, NoAuthError of the zookeeper package: sweep again.
    """
    lock = f"{paths.filters}/{_SWEEPING}"
    if not await _try(zookeeper, [Create(lock, ephemeral=True)], generation):
        return 0
    try:
        digests = [name for name in await zookeeper.children(paths.filters, generation=generation) if name != _SWEEPING]
        marked: dict[str, bytes] = {}
        for digest in digests:
            [node] = await zookeeper.read_many([paths.tags(digest)], generation=generation)
            if node is not None:
                mark = SetData(paths.tags(digest), node.data, 0)
                if node.stat.version or await _try(zookeeper, [mark], generation):
                    marked[digest] = node.data
        # Later puts have renewed their records: only earlier items can depend on a marked one.
        used: set[str | None] = set()

        def note(name: str) -> bool:
            used.add(name_digest(name))
            return False

        for folder in folders:
            with suppress(NoNodeError):
                await zookeeper.children_into(folder, partial(Matching, note), generation=generation)
        removed = 0
        for digest, data in marked.items():
            path = paths.tags(digest)
            stat = await zookeeper.exists(path, generation=generation)
            if stat is None or not stat.version:
                continue
            if digest in used:
                await _try(zookeeper, [Delete(path, stat.version), Create(path, data)], generation)
            else:
                removed += await _try(zookeeper, [Delete(path, stat.version)], generation)
        return removed
    finally:
        await _try(zookeeper, [Delete(lock)], generation)


async def _try(zookeeper: ZooKeeper, operations: list[Operation], generation: int) -> bool:
    """Apply a change; False if another client was quicker."""
    try:
        await zookeeper.multi(operations, generation=generation)
    except MultiError as refusal:
        _raise_unless_overtaken(refusal)
        return False
    return True


def _raise_unless_overtaken(refusal: MultiError) -> None:
    if not isinstance(refusal.error, NodeExistsError | NoNodeError | BadVersionError):
        raise refusal.error from refusal
