"""What a message can be put to: a session's name and codec. `Queue` adds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from aiozkqueue.dialects import Dialect

    from .codec import Codec
    from .session_core import SessionCore

T = TypeVar("T")

Undecodable = Literal["dead-letter", "raise"]


class Destination(Generic[T]):
    """A queue's name, how its values become bytes, and what is done with bytes that are no value."""

    def __init__(
        self, owner: SessionCore | None, name: str, codec: Codec[T], undecodable: Undecodable = "dead-letter"
    ) -> None:
        self.owner: Final = owner
        """The machinery of the session that made it; None: made for a test."""
        self.name: Final = name
        """The queue's name."""
        self.codec = codec
        self.undecodable = undecodable
        self.dialect: Dialect | None = None
        """Whose layout it has; None: our own."""


def not_own(name: str) -> InvalidOptionError:
    """Say why a session refuses another's queue: it may be kept elsewhere, and be taken from by another policy."""
    return InvalidOptionError(
        f"queue {name!r} is another session's, or a test's; make one of that name by session.queue() of this session"
    )
