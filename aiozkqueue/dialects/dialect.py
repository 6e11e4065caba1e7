"""What the queue must know of another program's layout."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import MalformedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

SEQUENCE_DIGITS = 10
"""What the server appends to a sequential name."""

_PIECE: Final = re.compile(r"(?<=\d{10})(-p\d{8})+$")


class PutNames(NamedTuple):
    """The put options that an item's name can store."""

    priority: int | None = None
    due: int | None = None
    """Milliseconds since 1970."""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect(ABC):
    """One queue of another program: where it lies, and how it is written.

    Of the names only what `is_item` admits is ever asked for; other children are other programs'.
    """

    path: str
    """The queue, as that program calls it."""
    items: str
    """The parent of the items."""
    locks: str | None
    """The parent of the locks, each named as its item; None: that program locks nothing."""

    prefix: ClassVar[str]
    """The prefix of every item's name."""
    options: ClassVar[frozenset[str]] = frozenset()
    """The options of a put that its layout has a place for."""
    containers: ClassVar[bool] = False
    """Whether the znodes above the queue are containers, which the server removes when they are empty again."""
    longest_name: ClassVar[int] = 64
    """About how long an item's name gets."""
    scheduled: ClassVar[bool] = False
    """Whether names say from when on an item may be taken."""
    usual_priority: ClassVar[int] = 0
    """The priority of an item that is put without one."""

    @abstractmethod
    def title(self) -> str:
        """What it is, for messages to people."""

    @abstractmethod
    def settings(self) -> dict[str, JsonValue]:
        """Return all but the path, to be stored; `described` makes the layout of it again."""

    def is_item(self, name: str) -> bool:
        """Tell whether a child of ``items`` is an item."""
        return name.startswith(self.prefix)

    def id_of(self, name: str) -> str:
        """Return the id of an item, which is its name. Raises: MalformedError: the name is not an id."""
        if not self.is_item(name):
            raise MalformedError(f"{name[:80]!r} is not an item of {self.title()}")
        return name

    def order(self, name: str) -> tuple[int, str]:
        """Return what items are sorted by, the first to be taken first."""
        return 0, name

    def due(self, name: str) -> int:
        """Return from when on an item may be taken, milliseconds since 1970; 0: at once."""
        del name
        return 0

    def messages(self, data: bytes) -> list[bytes]:
        """Return what an item holds. Raises: MalformedError."""
        return [data]

    def item(self, messages: Sequence[bytes]) -> bytes:
        """Return the bytes of an item that holds these."""
        (message,) = messages
        return message

    def piece(self, name: str, number: int) -> str:
        """Return the name of a part of an item that is split.

        It sorts behind the item's own name and before the next item's. Its end is as long as a sequence: a Curator that
        puts it again replaces that, and leaves the item's name, so that the part keeps about its place.
        """
        return f"{name}-p{number:0{SEQUENCE_DIGITS - 2}d}"

    def whole(self, name: str) -> str:
        """Return the name of the item that one is a part of; its own when it is no part."""
        return _PIECE.sub("", name)

    @abstractmethod
    def name(self, put: PutNames) -> str:
        """Return an item's name without the sequence. Raises: InvalidOptionError."""

    def told(self, name: str) -> PutNames:
        """Return the options that `name` has written into an item's name, as far as they can be read."""
        del name
        return PutNames()

    def prefix_of(self, name: str) -> str:
        """Return an item's name without its sequence, for putting it again just so."""
        name = self.whole(name)
        return name[:-SEQUENCE_DIGITS] if name[-SEQUENCE_DIGITS:].isdigit() else f"{name}-"

    def refuse(self, option: str, value: object, allowed: str) -> InvalidOptionError:
        """Make the error for an option that cannot be written."""
        return InvalidOptionError(f"queue {self.path!r}: {option}={value!r}: {self.title()} takes {allowed}")


def check_path(path: object, what: str) -> str:
    """Refuse what is no absolute path. Raises: InvalidOptionError."""
    if isinstance(path, str) and path.startswith("/") and path != "/" and "//" not in path and not path.endswith("/"):
        return path
    msg = f"{what}={path!r}: give an absolute path such as '/app/orders'"
    raise InvalidOptionError(msg)
