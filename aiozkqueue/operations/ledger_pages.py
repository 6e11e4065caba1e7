"""The contents of a ledger's znodes: its locks, the pages that name items, and the marks below a page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, InvalidNameError, NotFoundError, PayloadError
from aiozkqueue.layout import candidate_id, candidate_id_at, check_queue_name, is_bundle_at, messages_in, name_at
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    apply_until_answered,
    below,
    parent_of,
)

from .ledger_marks import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.layout import LockRecord, QueuePaths
    from aiozkqueue.zookeeper import Node, Operation, ZooKeeper

_OWNER: Final = "ledger:"
#: The version of the record of a bundle that a ledger has locked. A consumer's record begins at version 0, so a change
#: that was read while a consumer held the bundle is refused. Earlier programs left a ledger's record at version 0 too.
UNTOUCHED: Final = 1
#: The number of parts into which a batch is divided if its query fails.
_FAN: Final = 8


class Entry(NamedTuple):
    """An item or a bundle of a page: its place, and its version when it was locked."""

    place: str
    version: int = 0

    @property
    def id(self) -> str:
        """The id in its name, and in the name of its lock."""
        return candidate_id_at(self.place)

    @property
    def is_bundle(self) -> bool:
        """Whether it is a bundle."""
        return is_bundle_at(self.place)

    @property
    def messages(self) -> int:
        """The number of its messages."""
        return messages_in(name_at(self.place)) if is_bundle_at(self.place) else 1


class Manifest(NamedTuple):
    """The contents of a batch's own znode; an empty znode is a batch that is still being created."""

    messages: int | None = None
    """The number of its messages, stored as ``items``; None until it is sealed."""
    done: bool = False
    """Whether its messages are being removed: it must not be read any more."""
    attempts: int = 0
    """The number of times it was passed to a query."""
    chunk: int = 0
    """How many of its messages may be passed to a query at once, because one of them may make it fail; 0: all."""
    rejected: int = 0
    """The number of attempts after which its message was rejected and becomes a dead letter; 0: not rejected."""
    parent: int | None = None
    """The batch from which it is being split off, while messages are moved from there."""
    parents: tuple[int, ...] = ()
    """The batches from which it was split off, which the locks of its messages name."""

    @property
    def sealed(self) -> bool:
        """Whether it is final: no further message will be added."""
        return self.messages is not None

    def next_attempt(self, most: int | None) -> Manifest:
        """Return the manifest for the next attempt, if ``most`` attempts may fail; None: any number.

        After that, its first eighth is tried alone, and if that fails once, an eighth of that. The other parts follow
        in batches of their own. A batch of a single message is rejected after ``most`` attempts, so no message is
        rejected because of another one.
        """
        messages, counted = self.messages or 0, self._replace(attempts=self.attempts + 1)
        if most is None or self.rejected:
            return counted
        if messages <= 1:
            return counted._replace(rejected=self.attempts) if self.attempts >= most else counted
        chunk = self.chunk
        if self.attempts >= (1 if chunk else most):
            chunk = max(1, messages // _FAN)
        return self._replace(messages=chunk, chunk=chunk) if 0 < chunk < messages else counted

    def divided(self, number: int, chunk: int, kept: int, moved: int) -> tuple[Manifest, Manifest]:
        """Return this manifest, as batch ``number``, and its heir, which has received ``moved`` of its messages."""
        remainder = self._replace(messages=kept, chunk=chunk, attempts=0)
        return remainder, Manifest(moved, chunk=chunk, parents=(*self.parents, number))

    def encode(self) -> bytes:
        """Return the bytes to store."""
        fields = {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}
        return json.dumps({"items": fields.pop("messages", 0), **fields}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Decode the stored bytes. Raises: PayloadError."""
        if not data:
            return cls()
        try:
            fields = json.loads(data)
            parent = fields.get("parent")
            return cls(
                messages=int(fields["items"]),
                done=bool(fields.get("done")),
                attempts=int(fields.get("attempts", 0)),
                chunk=int(fields.get("chunk", 0)),
                rejected=int(fields.get("rejected", 0)),
                parent=None if parent is None else int(parent),
                parents=tuple(int(number) for number in fields.get("parents", ())),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise PayloadError(f"a batch of a ledger does not decode: {error!r}") from error


def owner_of_ledger(group: str) -> str:
    """Return the owner that a ledger's locks name."""
    return f"{_OWNER}{group}"


def path_of_ledger(paths: QueuePaths, group: str) -> str:
    """Return the path of a group's ledger. Raises: NotFoundError: no ledger can have this name."""
    try:
        return f"{paths.ledgers}/{check_queue_name(group, 'group')}"
    except InvalidNameError as error:
        raise absence_of(group, paths.name) from error


def absence_of(group: str, queue: str) -> NotFoundError:
    """Return the error that a queue has no ledger of this name."""
    return NotFoundError(f"queue {queue!r} has no ledger {group!r}; `aiozkqueue ledgers list {queue}` shows them")


def is_of_ledger(lock: LockRecord) -> bool:
    """Whether a lock belongs to a ledger: such a lock has no end, and is not a leftover."""
    return lock.owner.startswith(_OWNER)


def is_untouched(record: int) -> bool:
    """Whether no client has written the record of a bundle, which has this version, since a ledger has locked it."""
    return record <= UNTOUCHED


async def untouched_records(zookeeper: ZooKeeper, paths: QueuePaths, entries: Sequence[Entry]) -> dict[str, int]:
    """Return the versions, by path, of the records that no client has written since a ledger has locked the bundles."""
    records = [paths.bundle_record(entry.id) for entry in entries if entry.is_bundle]
    nodes = await zookeeper.read_many(records) if records else []
    return {
        record: node.stat.version
        for record, node in zip(records, nodes, strict=True)
        if node is not None and is_untouched(node.stat.version)
    }


def is_page(name: str) -> bool:
    """Whether a child of a manifest is a page; the other children are marks of tasks."""
    return name.isdigit()


def count_messages(entries: Sequence[Entry]) -> int:
    """Return the number of messages of these items and bundles."""
    return sum(entry.messages for entry in entries)


def write_page(entries: Sequence[Entry]) -> bytes:
    """Return the bytes of a page: a line for each item or bundle."""
    return "\n".join(
        entry.place if not entry.version else f"{entry.place} {entry.version}" for entry in entries
    ).encode()


async def read_page(read: Callable[[str], Awaitable[Node]], path: str) -> list[Entry]:
    """Read a page. Raises: NoNodeError; PayloadError: the data is not a page."""
    data = (await read(path)).data
    try:
        return [_entry(line) for line in data.decode().split("\n")] if data else []
    except ValueError as error:
        raise PayloadError(f"{path}: not a page of a ledger: {error}") from error


def _entry(line: str) -> Entry:
    """Read a line of a page. Raises: ValueError."""
    place, _, version = line.partition(" ")
    candidate_id(name_at(place))
    return Entry(place, int(version or 0))


async def marks_below(zookeeper: ZooKeeper, page: str) -> dict[str, Mark]:
    """Return the marks of a page's messages, by message."""
    names = await below(zookeeper, page)
    nodes = await zookeeper.read_many([f"{page}/{name}" for name in names]) if names else []
    return {name: Mark.decode(node.data) for name, node in zip(names, nodes, strict=True) if node is not None}


async def mark(zookeeper: ZooKeeper, page: str, message_id: str, reason: str, attempt: int) -> None:
    """Mark a message of a page to be dead-lettered when its batch is done; a repetition does nothing.

    ``attempt``: only while the batch's znode has this version, which each attempt changes; -1: any.

    Raises:
        ClaimLostError: another attempt at the batch has begun, or the batch is done.
        NoNodeError: the batch is done and removed.
        NoAuthError, ClientClosedError: of the zookeeper package.
    """
    await _once(zookeeper, page, Create(f"{page}/{message_id}", reason.encode()), NodeExistsError, attempt)


async def unmark(zookeeper: ZooKeeper, page: str, message_id: str, attempt: int) -> None:
    """Remove the mark of a message, if there is one. Raises: as `mark`."""
    await _once(zookeeper, page, Delete(f"{page}/{message_id}"), NoNodeError, attempt)


async def _once(zookeeper: ZooKeeper, page: str, operation: Operation, done: type[Exception], attempt: int) -> None:
    batch = parent_of(page)
    try:
        await apply_until_answered(zookeeper, [Check(batch, attempt), operation])
    except MultiError as refusal:
        if isinstance(refusal.error, BadVersionError):
            msg = f"{batch}: another attempt at this batch has begun, or it is done; its task must stop"
            raise ClaimLostError(msg) from refusal
        if refusal.index == 0 or not isinstance(refusal.error, done):
            raise refusal.error from refusal
