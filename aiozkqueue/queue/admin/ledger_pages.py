"""What a ledger's znodes hold: locks that are a ledger's, pages that name items, and what is marked below a page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import PayloadError
from aiozkqueue.layout import item_id
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.layout import LockRecord
    from aiozkqueue.zookeeper import Node, Operation, ZooKeeper

_OWNER: Final = "ledger:"
#: Into how many parts a batch is divided whose query fails.
_FAN: Final = 8


class Entry(NamedTuple):
    """An item of a page: its place, and its version when it was locked."""

    place: str
    version: int = 0


class Manifest(NamedTuple):
    """What a batch's own znode holds; an empty znode is a batch that is still being made."""

    items: int | None = None
    """How many messages it has; None until it is sealed."""
    done: bool = False
    """Whether its messages are being removed: it must be read no more."""
    attempts: int = 0
    """How often it was handed out to a query."""
    chunk: int = 0
    """How many of its messages may be handed out at once, since one of them may fail the query; 0: all."""
    rejected: int = 0
    """After how many attempts its message was rejected: it becomes a dead letter. 0: it was not."""
    parent: int | None = None
    """The batch that it is being divided from, while messages are moved from there."""
    parents: tuple[int, ...] = ()
    """The batches that it was divided from, which the locks of its messages name."""

    @property
    def sealed(self) -> bool:
        """Whether it will never get another message."""
        return self.items is not None

    def next_attempt(self, most: int | None) -> Manifest:
        """Return it as it is handed out next, where ``most`` attempts may fail; None: any number.

        After that, its first eighth is tried alone, and where that fails once, an eighth of that. The other parts
        follow in batches of their own. A message that is alone is rejected after ``most`` attempts, so that no message
        is rejected because of another one.
        """
        items, counted = self.items or 0, self._replace(attempts=self.attempts + 1)
        if most is None or self.rejected:
            return counted
        if items <= 1:
            return counted._replace(rejected=self.attempts) if self.attempts >= most else counted
        chunk = self.chunk
        if self.attempts >= (1 if chunk else most):
            chunk = max(1, items // _FAN)
        return self._replace(items=chunk, chunk=chunk) if 0 < chunk < items else counted

    def divided(self, number: int, chunk: int, kept: int, moved: int) -> tuple[Manifest, Manifest]:
        """Return it, as batch ``number``, and its heir, which has got ``moved`` of its messages."""
        left = self._replace(items=kept, chunk=chunk, attempts=0)
        return left, Manifest(moved, chunk=chunk, parents=(*self.parents, number))

    def encode(self) -> bytes:
        """Return the bytes to store."""
        fields = {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}
        return json.dumps({**fields, "items": self.items or 0}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what is stored. Raises: PayloadError."""
        if not data:
            return cls()
        try:
            fields = json.loads(data)
            parent = fields.get("parent")
            return cls(
                items=int(fields["items"]),
                done=bool(fields.get("done")),
                attempts=int(fields.get("attempts", 0)),
                chunk=int(fields.get("chunk", 0)),
                rejected=int(fields.get("rejected", 0)),
                parent=None if parent is None else int(parent),
                parents=tuple(int(one) for one in fields.get("parents", ())),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise PayloadError(f"a batch of a ledger does not decode: {error!r}") from error


def owner_of_ledger(group: str) -> str:
    """The owner that a ledger's locks name."""
    return f"{_OWNER}{group}"


def is_of_ledger(lock: LockRecord) -> bool:
    """Whether a lock is a ledger's: it has no end, and is nobody's leftover."""
    return lock.owner.startswith(_OWNER)


def is_page(name: str) -> bool:
    """Whether a child of a manifest is a page; the others are marks of tasks."""
    return name.isdigit()


def write_page(entries: Sequence[Entry]) -> bytes:
    """The bytes of a page: a line for each item."""
    return "\n".join(one.place if not one.version else f"{one.place} {one.version}" for one in entries).encode()


async def read_page(read: Callable[[str], Awaitable[Node]], path: str) -> list[Entry]:
    """Read a page. Raises: NoNodeError; PayloadError: what is stored there is none."""
    data = (await read(path)).data
    try:
        return [_entry(line) for line in data.decode().split("\n")]
    except ValueError as error:
        raise PayloadError(f"{path}: not a page of a ledger: {error}") from error


def _entry(line: str) -> Entry:
    """Read a line of a page. Raises: ValueError."""
    place, _, version = line.partition(" ")
    item_id(place.rpartition("/")[2])
    return Entry(place, int(version or 0))


async def mark(zookeeper: ZooKeeper, page: str, message_id: str, reason: str) -> None:
    """Write down that a message of a page is to be a dead letter when its batch is done; a repetition does nothing.

    Raises:
        NoNodeError: the batch is done.
        NoAuthError, ClientClosedError: of the zookeeper package.
    """
    await _once(zookeeper, Create(f"{page}/{message_id}", reason.encode()), NodeExistsError)


async def unmark(zookeeper: ZooKeeper, page: str, message_id: str) -> None:
    """Take back what was marked, if it was. Raises: NoAuthError, ClientClosedError of the zookeeper package."""
    await _once(zookeeper, Delete(f"{page}/{message_id}"), NoNodeError)


async def _once(zookeeper: ZooKeeper, operation: Operation, done: type[Exception]) -> None:
    while True:
        try:
            await zookeeper.multi([operation])
        except (ConnectionLossError, SessionExpiredError):
            await zookeeper.wait_connected()
        except MultiError as refusal:
            if not isinstance(refusal.error, done):
                raise refusal.error from refusal
            return
        else:
            return
