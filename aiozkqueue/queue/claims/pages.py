"""What a ledger's znodes hold: locks that are a ledger's, and pages that name items. Pure but for the reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.layout import LockRecord
    from aiozkqueue.zookeeper import Node

_OWNER: Final = "ledger:"


class Entry(NamedTuple):
    """An item of a page: its place, and its version when it was locked."""

    place: str
    version: int = 0


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
    """Read a page. Raises: NoNodeError."""
    lines = (await read(path)).data.decode().split("\n")
    return [Entry(place, int(version or 0)) for place, _, version in (line.partition(" ") for line in lines)]
