"""Pending batches, which become visible as a whole: which items belong to a batch that is not complete yet. Pure.

The items of such a batch have ``-b<batch>`` in their names, and while the batch is *closed* there is a lock
``lock-b<batch>``. That lock is created before the first item, and removed permanently when the last item exists; no
batch name is used twice. So a consumer that has seen an item, then reads the locks, and finds none of its batch knows
that the batch is open forever. The producer of the first batch records the fact in the queue's configuration, which
every claim checks: before that, no consumer needs to check names for batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import has_field, item_field

from .collectors import Parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

#: Length of a batch id, a `key_hash`.
_LENGTH: Final = 32
#: Open batches remembered; for others, the locks are read again.
_KEPT: Final = 1000


def is_batch_lock(lock: str | None) -> bool:
    """Whether the id of a lock is a batch's; an item's id is shorter, and a group's lock begins differently."""
    return lock is not None and len(lock) == _LENGTH + 1 and lock[0] == "b"


def batch_lock_of(name: str) -> str | None:
    """Return the lock of an item's batch, from the item's name; None when it is in no batch."""
    lock = "b" + item_field(name, "b")
    return lock if is_batch_lock(lock) else None


def visible(names: Iterable[str], locks: Collection[str | None]) -> list[str]:
    """Leave out the items of closed batches, judged by locks that were listed after the items."""
    return [name for name in names if not is_closed(name, locks)]


def is_closed(name: str, locks: Collection[str | None]) -> bool:
    """Whether an item is in a closed batch, judged by locks that were listed after the item was visible."""
    return has_field(name, "b") and (batch_lock := batch_lock_of(name)) is not None and batch_lock in locks


class Locks(Parsed):
    """A collector of locks, and of those of batches among them."""

    def __init__(self, parse: Callable[[str], str | None]) -> None:
        super().__init__(parse)
        self.of_batches: set[str] = set()

    def take(self, names: list[str]) -> None:
        """Add the locks with these names."""
        super().take(names)
        self.of_batches.update(lock for lock in map(self._parse, names) if lock is not None and is_batch_lock(lock))


class BatchVisibility:
    """The batches of a queue that one consumer knows."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._closed: set[str] = set()

    def begin_listing(self, batch_locks: set[str]) -> None:
        """Learn which batches are closed: those with these locks, which were listed after the items."""
        self._closed = batch_locks

    def of_listing(self, names: list[str]) -> list[str]:
        """Return the visible ones of a listing's names."""
        visible_names: list[str] = []
        for name in names:
            lock = batch_lock_of(name) if has_field(name, "b") else None
            if lock is None:
                visible_names.append(name)
            elif lock not in self._closed:
                visible_names.append(name)
                self.found_open(lock)
        return visible_names

    def found_open(self, lock: str) -> None:
        """Remember that a batch is open."""
        if len(self._open) >= _KEPT:
            self._open.clear()
        self._open.add(lock)

    def is_open(self, lock: str) -> bool:
        """Whether a batch is known to be open."""
        return lock in self._open

    def is_closed(self, lock: str) -> bool:
        """Whether a batch was closed when the locks were last listed; the producer that opens it wakes consumers."""
        return lock in self._closed
