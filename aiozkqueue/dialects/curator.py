"""Curator's queues: DistributedQueue, -PriorityQueue, -DelayQueue, -IdQueue and SimpleDistributedQueue.

Two of them use similar names, so the kind is given and never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from aiozkqueue.arguments import flag, is_choice
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import LAST_MOMENT, fits_path

from .compression import deflate, inflate, is_gzip
from .dialect import Dialect, PutNames, check_path
from .framing import frame, unframe
from .sharding import check_shard_locks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

CuratorKind = Literal["queue", "priority", "delay", "id", "simple"]

_MOST: Final = 2**31 - 1
_LEAST: Final = -(2**31)
_MOST_LONG: Final = 2**63 - 1
_PRIORITY: Final = re.compile(r"queue-([01])([0-9A-Fa-f]{8})[0-9]{10}")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class _CuratorDialect(Dialect):
    """The part that all kinds share."""

    compressed: bool = False
    """Whether the Java clients compress items."""

    kind: ClassVar[CuratorKind]
    containers: ClassVar[bool] = True

    def settings(self) -> dict[str, JsonValue]:
        """See `Dialect`."""
        return {"program": "curator", "kind": self.kind, "locks": self.locks, "compressed": self.compressed}

    def _written(self, data: bytes) -> bytes:
        return deflate(self.path, data) if self.compressed else data


@dataclass(frozen=True, slots=True)
class _Framed(_CuratorDialect):
    """The part that all kinds except the simple queue share. Frames and gzip differ in their first bytes."""

    kind: ClassVar[CuratorKind] = "queue"
    prefix: ClassVar[str] = "queue-"

    def title(self) -> str:
        """See `Dialect`."""
        return "Curator's DistributedQueue"

    def messages(self, data: bytes) -> list[bytes]:
        """See `Dialect`."""
        return unframe(inflate(data) if is_gzip(data) else data)

    def item(self, messages: Sequence[bytes]) -> bytes:
        """See `Dialect`."""
        return self._written(frame(messages))

    def part(self, messages: Sequence[bytes], whole: bytes) -> bytes:
        """See `Dialect`."""
        return deflate(self.path, frame(messages)) if is_gzip(whole) else self.item(messages)

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        del put
        return self.prefix


@dataclass(frozen=True, slots=True)
class _Prioritized(_Framed):
    """Lower priorities come first. Names sort in the order of the numbers."""

    kind: ClassVar[CuratorKind] = "priority"
    options: ClassVar[frozenset[str]] = frozenset({"priority"})

    def title(self) -> str:
        """See `Dialect`."""
        return "Curator's DistributedPriorityQueue"

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        priority = 0 if put.priority is None else put.priority
        if type(priority) is not int or not _LEAST <= priority <= _MOST:
            raise self.refuse("priority", priority, f"an integer from {_LEAST}, the most urgent, to {_MOST}")
        return f"{self.prefix}{'1' if priority >= 0 else '0'}{priority & 0xFFFFFFFF:08X}"

    def options_in(self, name: str) -> PutNames:
        """See `Dialect`."""
        match = _PRIORITY.fullmatch(self.whole(name))
        if match is None:
            return PutNames()
        return PutNames(priority=int(match[2], 16) - (0 if match[1] == "1" else 2**32))


@dataclass(frozen=True, slots=True)
class _Delayed(_Framed):
    """The name contains the time from which the item may be taken, a Java long.

    If it does not parse as one, the item is due at once.
    """

    kind: ClassVar[CuratorKind] = "delay"
    options: ClassVar[frozenset[str]] = frozenset({"delay", "at"})
    scheduled: ClassVar[bool] = True

    def title(self) -> str:
        """See `Dialect`."""
        return "Curator's DistributedDelayQueue"

    def due(self, name: str) -> int:
        """See `Dialect`."""
        digits = _between_bars(name).removeprefix("+")
        due = int(digits, 16) if digits and _HEX.issuperset(digits) else 0
        return min(due, LAST_MOMENT) if due <= _MOST_LONG else 0

    def order(self, name: str) -> tuple[int, str]:
        """See `Dialect`."""
        return self.due(name), _behind_bars(name)

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        return f"{self.prefix}|{put.due or 0:08X}|"

    def options_in(self, name: str) -> PutNames:
        """See `Dialect`."""
        return PutNames(due=self.due(name) or None)


@dataclass(frozen=True, slots=True)
class _Identified(_Framed):
    """The name contains an id chosen by the producer, by which items can be removed."""

    kind: ClassVar[CuratorKind] = "id"
    options: ClassVar[frozenset[str]] = frozenset({"key"})
    longest_name: ClassVar[int] = 128

    def title(self) -> str:
        """See `Dialect`."""
        return "Curator's DistributedIdQueue"

    def order(self, name: str) -> tuple[int, str]:
        """See `Dialect`."""
        return 0, _behind_bars(name)

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        if not isinstance(put.key, str) or not put.key:
            raise self.refuse("key", put.key, "an id with each put: a non-empty str as key=")
        if not fits_path(put.key):
            raise self.refuse("key", put.key, "ids of characters that ZooKeeper accepts in paths")
        return f"{self.prefix}|{_clean(put.key)}|"

    def options_in(self, name: str) -> PutNames:
        """See `Dialect`."""
        return PutNames(key=_between_bars(name) or None)

    def has_id(self, name: str, key: str) -> bool:
        """Return whether an item has this id."""
        return _between_bars(name) == _clean(key)


@dataclass(frozen=True, slots=True)
class _Simple(_CuratorDialect):
    """Bare bytes, no locks. A body may itself be gzip, which is decompressed only if the clients compress."""

    kind: ClassVar[CuratorKind] = "simple"
    prefix: ClassVar[str] = "qn-"

    def title(self) -> str:
        """See `Dialect`."""
        return "Curator's SimpleDistributedQueue"

    def messages(self, data: bytes) -> list[bytes]:
        """See `Dialect`."""
        return [inflate(data) if self.compressed and is_gzip(data) else data]

    def item(self, messages: Sequence[bytes]) -> bytes:
        """See `Dialect`."""
        (message,) = messages
        return self._written(message)

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        del put
        return self.prefix


_KINDS: Final[dict[str, type[_CuratorDialect]]] = {
    recipe.kind: recipe for recipe in (_Framed, _Prioritized, _Delayed, _Identified, _Simple)
}


def curator(
    path: str, lock_path: str | None = None, kind: CuratorKind = "queue", *, compressed: bool = False
) -> Dialect:
    """Return the layout of a Curator queue. Raises: InvalidOptionError."""
    check_path(path, "path")
    if lock_path is not None:
        check_path(lock_path, "lock_path")
    flag(compressed, "compressed")
    if not is_choice(kind, *_KINDS):
        msg = f"kind={kind!r}: give one of {', '.join(map(repr, _KINDS))}"
        raise InvalidOptionError(msg)
    if kind == "simple" and lock_path is not None:
        msg = f"queue {path!r}: lock_path={lock_path!r}: Curator's SimpleDistributedQueue locks nothing; leave it out"
        raise InvalidOptionError(msg)
    dialect = _KINDS[kind](path, path, lock_path, compressed)
    if lock_path is not None:
        check_shard_locks(path, lock_path)
        above, _, name = lock_path.rpartition("/")
        if lock_path == path or (above == path and dialect.is_item(name)):
            msg = (
                f"queue {path!r}: lock_path={lock_path!r}: consumers would treat the locks there as items; give a path "
                f"elsewhere, such as {f'{path}-locks'!r}, to the Java side, too"
            )
            raise InvalidOptionError(msg)
    return dialect


def has_id(dialect: Dialect, name: str, key: str) -> bool:
    """Return whether an item has an id. Raises: InvalidOptionError: items of this kind have no ids."""
    if not isinstance(dialect, _Identified):
        msg = f"queue {dialect.path!r}: items of {dialect.title()} have no ids; give kind='id'"
        raise InvalidOptionError(msg)
    return dialect.has_id(name, key)


def _clean(key: str) -> str:
    return key.replace("/", "_").replace("|", "_")


def _between_bars(name: str) -> str:
    """Return the text between the last two bars of a name; empty if the name has fewer than two."""
    head, bar, _ = name.rpartition("|")
    return head.rpartition("|")[2] if bar and "|" in head else ""


def _behind_bars(name: str) -> str:
    """The sequence number, followed by the number of the part if the item was split."""
    return name.rpartition("|")[2]
