"""Decisions that messages of a batch become dead letters, made while a query handles the batch.

A decision is a mark below the page that names the message. The multi that creates it asserts the version of the batch's
znode, which each attempt at the batch changes. So a decision is of the attempt that was current when the batches were
read. A task that reads the message in a later attempt removes it: then the query decides again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, NotFoundError
from aiozkqueue.layout import BundleName, MalformedError, name_at
from aiozkqueue.operations.batch_writers import require_conflict
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.operations.ledger_marks import Mark
from aiozkqueue.operations.ledger_pages import Manifest, is_page, read_page
from aiozkqueue.queue.redelivery.bundles import read_bundle
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import (
    Check,
    Create,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
)

from .manifests import BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation

#: Messages that one multi marks.
TOGETHER: Final = 200


class _Page(NamedTuple):
    """A page of a batch that a query handles."""

    manifest: str
    version: int
    path: str


class Rejections:
    """Marks messages of the batches that a group's query handles."""

    def __init__(self, handle: QueueHandle[Runtime], group: str) -> None:
        self._handle = handle
        self._group = group
        self._pages: dict[str, _Page] = {}  # by the id of a single item
        self._bundles: list[tuple[BundleName, str, _Page]] = []  # with their places
        self._read: set[str] = set()  # places of bundles whose messages are known

    async def open(self) -> None:
        """Read which messages the batches hold. Raises: AccessDeniedError; PayloadError: a page does not decode."""
        zookeeper, ledger = self._handle.zookeeper, f"{self._handle.paths.ledgers}/{self._group}"
        await zookeeper.sync(self._handle.paths.base)
        for name in await below(zookeeper, ledger):
            if not name.startswith(BATCH):
                continue
            manifest = f"{ledger}/{name}"
            try:
                node = await zookeeper.read(manifest)
                state = Manifest.decode(node.data)
                if state.done or not state.attempts:
                    continue
                for page in filter(is_page, await below(zookeeper, manifest)):
                    await self._add(_Page(manifest, node.stat.version, f"{manifest}/{page}"))
            except NoNodeError:
                continue  # done since

    async def _add(self, page: _Page) -> None:
        for entry in await read_page(self._handle.zookeeper.read, page.path):
            bundle = BundleName.parse(name_at(entry.place))
            if bundle is None:
                self._pages[entry.id] = page
            else:
                self._bundles.append((bundle, entry.place, page))

    async def reject(self, reasons: Mapping[str, str]) -> None:
        """Mark messages to become dead letters when their batch is done. A repetition changes nothing.

        Raises:
            NotFoundError: a message is in no batch that the group's query handles; none was marked.
            ClaimLostError: the batch is done, or another attempt at it has begun; some messages may be marked.
            AccessDeniedError.
        """
        for message_id in reasons:
            await self._find(message_id)
        remaining = iter(sorted(reasons, key=lambda message_id: self._pages[message_id].path))
        while together := list(islice(remaining, TOGETHER)):
            for manifest in dict.fromkeys(self._pages[message_id].manifest for message_id in together):
                await self._mark(
                    {
                        message_id: reasons[message_id]
                        for message_id in together
                        if self._pages[message_id].manifest == manifest
                    }
                )

    async def _find(self, message_id: str) -> None:
        """Find the page of a message. Raises: NotFoundError."""
        if message_id in self._pages:
            return
        for name, place, page in self._bundles:
            if name.may_hold(message_id) and place not in self._read:
                self._read.add(place)
                state = await read_bundle(self._handle.zookeeper, self._handle.paths, place)
                try:
                    messages = [] if state is None else state.messages()
                except MalformedError:
                    messages = []
                self._pages.update((message.id, page) for message, _ in messages)
        if message_id not in self._pages:
            msg = (
                f"queue {self._handle.name!r}: message {message_id!r} is in no batch that a query of group "
                f"{self._group!r} handles: reject messages in the function of its foreachBatch, and name its group"
            )
            raise NotFoundError(msg)

    async def _mark(self, reasons: Mapping[str, str]) -> None:
        """Mark messages of one batch, all of them or none."""
        zookeeper = self._handle.zookeeper
        first = self._pages[next(iter(reasons))]
        for _ in range(MOST_TRIES):
            pages = {self._pages[message_id].path for message_id in reasons}
            marked = {f"{page}/{name}" for page in pages for name in await below(zookeeper, page)}
            operations: list[Operation] = [Check(first.manifest, first.version)]
            for message_id, reason in reasons.items():
                path = f"{self._pages[message_id].path}/{message_id}"
                data = Mark(reason, first.version).encode()
                operations.append(SetData(path, data) if path in marked else Create(path, data))
            try:
                await apply_until_answered(zookeeper, operations)
            except MultiError as refusal:
                if isinstance(refusal.error, NoAuthError):
                    raise access_denied(self._handle.name, refusal.error) from refusal
                if refusal.index == 0:
                    msg = (
                        f"queue {self._handle.name!r}: the batch is done, or another attempt at it has begun; "
                        "its messages cannot be rejected here any more"
                    )
                    raise ClaimLostError(msg) from refusal
                require_conflict(self._handle.name, refusal)
                continue  # another client has created or removed a mark since
            return
        raise contradiction(self._handle.name, first.manifest)
