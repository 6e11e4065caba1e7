"""The records of tags: each combination is stored once in a queue, and read once by each session.

A put asserts, in the multi that creates the item, that its record exists at version 0. So records can be swept during
puts (`operations.tag_sweep`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import decode_tags, tags_digest
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    read_separately,
    until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.layout import QueuePaths, Tags
    from aiozkqueue.zookeeper import ZooKeeper

log: Final = logging.getLogger(__name__)

#: Combinations of tags that a session remembers per queue; beyond that, it forgets all.
MOST_KNOWN = 10_000
#: Maximum number of records that a session warns about.
MOST_WARNED = 100
#: Seconds until a record that this user may not read is read again: no event reports that an ACL has changed.
UNREADABLE_FOR = 60.0
#: Records read in one request.
PAGE = 200


class TagRecords:
    """The combinations of tags of one queue that a session knows."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._declared: set[str] = set()
        self._known: dict[str, Tags] = {}
        self._unreadable: dict[str, float] = {}  # unreadable records, and when they are read again
        self._warned: set[str] = set()

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
                await until_answered(self._zookeeper, lambda: self._store(path, data))
                break
            except MultiError as refusal:
                raise_unless_overtaken(refusal)
        if len(self._declared) >= MOST_KNOWN:
            self._declared.clear()
        self._declared.add(digest)

    async def _store(self, path: str, data: bytes) -> None:
        [node] = await self._zookeeper.read_many([path])
        if node is None:
            await self._zookeeper.ensure(self._paths.filters)
            await self._zookeeper.multi([Create(path, data)])
        elif node.stat.version or node.data != data:  # about to be swept, or inconsistent with its name
            await self._zookeeper.multi([Delete(path, node.stat.version), Create(path, data)])

    def forget(self, digest: str) -> None:
        """Record that a record may have been removed."""
        self._declared.discard(digest)

    async def read(self, digests: Iterable[str], generation: int) -> dict[str, Tags]:
        """Return the tags of these digests, except those whose record is missing or does not match its digest."""
        known: dict[str, Tags] = {}
        missing: list[str] = []
        for digest in digests:
            tags = self._known.get(digest)
            if tags is not None:
                known[digest] = tags
            elif not self._is_unreadable(digest):
                missing.append(digest)
        if len(self._known) + len(missing) > MOST_KNOWN:
            self._known.clear()
            self._unreadable.clear()
        for start in range(0, len(missing), PAGE):
            page = missing[start : start + PAGE]
            records = await read_records(self._zookeeper, self._paths, page, generation)
            for digest, data in records.items():
                if (tags := self._decode(digest, data)) is not None:
                    known[digest] = self._known[digest] = tags
        return known

    def _decode(self, digest: str, data: bytes | NoAuthError | None) -> Tags | None:
        """Return the tags of a record; None, with a warning, if it is unreadable or does not match its name."""
        if data is None:
            return None
        if isinstance(data, NoAuthError):
            if len(self._unreadable) >= MOST_KNOWN:
                self._unreadable.clear()
            self._unreadable[digest] = time.monotonic() + UNREADABLE_FOR
            self._warn(digest, f"may not be read by this user ({data})")
            return None
        if tags_digest(data) != digest:
            self._warn(digest, "does not match its name")
            return None
        return decode_tags(data)

    def _is_unreadable(self, digest: str) -> bool:
        """Whether a recent read of the record was refused."""
        return digest in self._unreadable and time.monotonic() < self._unreadable[digest]

    def _warn(self, digest: str, trouble: str) -> None:
        """Log, once for each record, that its messages are not for consumers with filters."""
        if digest in self._warned or len(self._warned) >= MOST_WARNED:
            return
        self._warned.add(digest)
        log.warning(
            "queue %s: the record of tags %s %s; consumers with filters skip its messages, others take them. Let this "
            "user read the record, or delete it: the next session that puts such a message creates it again",
            self._paths.name,
            self._paths.tags(digest),
            trouble,
            extra={"queue": self._paths.name},
        )


async def read_records(
    zookeeper: ZooKeeper, paths: QueuePaths, digests: Sequence[str], generation: int | None = None
) -> dict[str, bytes | NoAuthError | None]:
    """Read records of tags; None: the record is missing.

    A record that this user may not read does not affect the others.
    """
    records = [paths.tags(digest) for digest in digests]
    try:
        nodes = await zookeeper.read_many(records, generation=generation)
    except NoAuthError:
        answers = await read_separately(zookeeper, [(path,) for path in records], generation=generation)
        alone = [answer if isinstance(answer, NoAuthError) else answer[0] for answer in answers]
        return {
            digest: node if node is None or isinstance(node, NoAuthError) else node.data
            for digest, node in zip(digests, alone, strict=True)
        }
    return {digest: None if node is None else node.data for digest, node in zip(digests, nodes, strict=True)}


def raise_unless_overtaken(refusal: MultiError) -> None:
    """Return if another client was faster. Raises: the error of the refusal otherwise."""
    if not isinstance(refusal.error, NodeExistsError | NoNodeError | BadVersionError):
        raise refusal.error from refusal
