"""Batches that become visible as a whole: which of the items seen belong to one that is not complete yet. Pure.

The items of such a batch have it in their names, ``-b<batch>``, and while it is *closed* there is ``lock-b<batch>``.
That lock is made before the first item and removed once, for good, when the last one is there: no batch is ever named
a second time. So whoever has seen an item, looks at the locks after that, and finds none of its batch, knows it open
for ever. Whoever puts the first batch of all says so in the queue's configuration, which every claim checks: before
that nobody need look at names for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Letters of a batch, a `key_hash`.
_LENGTH: Final = 32
#: Open batches remembered; of others it is found out again.
_KEPT: Final = 1000


def is_staged(lock: str | None) -> bool:
    """Tell the lock of a batch from that of an item, whose id is shorter, and of a group."""
    return lock is not None and len(lock) == _LENGTH + 1 and lock[0] == "b"


def stage_of(name: str) -> str | None:
    """Return what an item's batch is locked by, by the item's name; None when it is in no batch."""
    _, field, rest = name.partition("-b")
    lock = "b" + rest.partition("-")[0]
    return lock if field and is_staged(lock) else None


def visible(names: Iterable[str], locks: Collection[str | None]) -> list[str]:
    """Leave out the items of closed batches, by a look at the locks that was made after they were listed."""
    return [name for name in names if not is_closed(name, locks)]


def is_closed(name: str, locks: Collection[str | None]) -> bool:
    """Whether an item, by its name, is in a closed batch, by a look at the locks that was made after it was seen."""
    return "-b" in name and (stage := stage_of(name)) is not None and stage in locks


class BatchVisibility:
    """The batches of a queue as one consumer knows them."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._closed: set[str] = set()

    def of_listing(self, names: list[str], locks: Collection[str]) -> list[str]:
        """Take a listing and the locks that were listed after it; return the names that may be tried."""
        self._closed = {lock for lock in locks if is_staged(lock)}
        seen: list[str] = []
        for name in names:
            lock = stage_of(name) if "-b" in name else None
            if lock is None:
                seen.append(name)
            elif lock not in self._closed:
                seen.append(name)
                self.found_open(lock)
        return seen

    def found_open(self, lock: str) -> None:
        """Remember that a batch is open."""
        if len(self._open) >= _KEPT:
            self._open.clear()
        self._open.add(lock)

    def is_open(self, lock: str) -> bool:
        """Whether a batch is known to be open."""
        return lock in self._open

    def is_closed(self, lock: str) -> bool:
        """Whether a batch was closed when the locks were listed last; who opens it rings."""
        return lock in self._closed
