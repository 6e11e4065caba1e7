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

    @property
    def sealed(self) -> bool:
        """Whether it will never get another message."""
        return self.items is not None

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps({"items": self.items or 0, **({"done": True} if self.done else {})}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what is stored. Raises: PayloadError."""
        if not data:
            return cls()
        try:
            fields = json.loads(data)
            return cls(int(fields["items"]), bool(fields.get("done")))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise PayloadError(f"a batch of a ledger does not decode: {error!r}") from error


def owner_of_ledger(group: str) -> str:
    """The owner that a ledger's locks name."""
    return f"{_OWNER}{group}"


def is_of_ledger(lock: LockRecord) -> bool:
    """Whether a lock is a ledger's: it has no end, and is nobody's leftover."""
    return lock.owner.startswith(_OWNER)


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
