"""The interface of another program's layout."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import EMPTY_HEADER, SEQUENCE_DIGITS, MalformedError, fits_path, has_odd_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from aiozkqueue.layout import Header

_PIECE: Final = re.compile(r"(?<=\d{10})(-p\d{8})+$")


class PutNames(NamedTuple):
    """The put options that the name of an item can store."""

    priority: int | None = None
    due: int | None = None
    """Milliseconds since 1970."""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect(ABC):
    """One queue of another program: its paths and its formats.

    The methods are called only with names for which `is_item` is true. Other children belong to other programs.
    """

    path: str
    """The name of the queue in that program."""
    items: str
    """The parent of the items."""
    locks: str | None
    """The parent of the locks. Each lock has the name of its item; None: that program uses no locks."""

    prefix: ClassVar[str]
    """The prefix of every item's name."""
    options: ClassVar[frozenset[str]] = frozenset()
    """The put options that the layout can store."""
    containers: ClassVar[bool] = False
    """Whether the znodes above the queue are containers, which the server removes when they become empty."""
    longest_name: ClassVar[int] = 64
    """The approximate length of an item's name."""
    scheduled: ClassVar[bool] = False
    """Whether names contain the time from which an item may be taken."""
    first_priority: ClassVar[int] = -(2**31)
    """The lowest priority, which is the most urgent."""
    usual_priority: ClassVar[int] = 0
    """The priority of an item that is put without a priority."""

    @abstractmethod
    def title(self) -> str:
        """The name of the kind of queue, for messages."""

    @abstractmethod
    def settings(self) -> dict[str, JsonValue]:
        """Return all settings except the path, to be stored. `described` restores the layout from them."""

    def is_item(self, name: str) -> bool:
        """Return whether a child of ``items`` is an item."""
        return name.startswith(self.prefix)

    def id_of(self, name: str) -> str:
        """Return the id of an item, which is its name. Raises: MalformedError: the name is not an id."""
        if not self.is_item(name):
            raise MalformedError(f"{name[:80]!r} is not an item of {self.title()}")
        return name

    def order(self, name: str) -> tuple[int, str]:
        """Return the sort key of an item; the lowest is taken first."""
        return 0, name

    def due(self, name: str) -> int:
        """Return the time from which an item may be taken, milliseconds since 1970; 0: at once."""
        del name
        return 0

    def messages(self, data: bytes) -> list[bytes]:
        """Return the messages of an item. Raises: MalformedError."""
        return [data]

    def item(self, messages: Sequence[bytes]) -> bytes:
        """Return the bytes of an item with these messages."""
        (message,) = messages
        return message

    def part(self, messages: Sequence[bytes], whole: bytes) -> bytes:
        """Return the bytes of an item with some of the messages of another one, in the format of its bytes ``whole``.

        In another format, they may be longer than a request.
        """
        del whole
        return self.item(messages)

    def piece(self, name: str, number: int) -> str:
        """Return the name of a part of an item that is split.

        It sorts after the item's own name and before that of the next item. Its end is as long as a sequence number: a
        Curator client that puts the part again replaces the end and keeps the item's name, so the part roughly keeps
        its position.
        """
        return f"{name}-p{number:0{SEQUENCE_DIGITS - 2}d}"

    def whole(self, name: str) -> str:
        """Return the name of the item that a part belongs to, or the name itself if it is not a part."""
        return _PIECE.sub("", name)

    @abstractmethod
    def name(self, put: PutNames) -> str:
        """Return an item's name without the sequence number. Raises: InvalidOptionError."""

    def options_in(self, name: str) -> PutNames:
        """Return the options in an item's name, as far as they can be read."""
        del name
        return PutNames()

    def header_of(self, name: str) -> Header:
        """Return the header of an item's messages, with the options in the item's name."""
        fields = self.options_in(name)
        if fields.priority is None and fields.key is None:
            return EMPTY_HEADER
        return replace(EMPTY_HEADER, priority=fields.priority or 0, key=fields.key)

    def prefix_of(self, name: str) -> str:
        """Return an item's name without its sequence number, for putting the item again."""
        name = self.whole(name)
        return name[:-SEQUENCE_DIGITS] if name[-SEQUENCE_DIGITS:].isdigit() else f"{name}-"

    def refuse(self, option: str, value: object, allowed: str) -> InvalidOptionError:
        """Return the error for an option that cannot be stored."""
        return InvalidOptionError(f"queue {self.path!r}: {option}={value!r}: {self.title()} takes {allowed}")


def check_path(path: object, what: str) -> str:
    """Refuse a path that is not absolute, or that ZooKeeper does not accept. Raises: InvalidOptionError."""
    if isinstance(path, str) and path.startswith("/") and not has_odd_parts(path):
        if fits_path(path):
            return path
        raise InvalidOptionError(f"{what}={path!r}: it has characters that ZooKeeper refuses")
    msg = f"{what}={path!r}: give an absolute path such as '/app/orders'"
    raise InvalidOptionError(msg)
