"""The destination of a put: a session's queue name and codec. `Queue` adds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from aiozkqueue.dialects import Dialect

    from .codec import Codec

T = TypeVar("T")

Undecodable = Literal["dead-letter", "raise"]


class Destination(Generic[T]):
    """A queue's name, its codec, and the treatment of undecodable payloads."""

    def __init__(
        self, owner: object | None, name: str, codec: Codec[T], undecodable: Undecodable = "dead-letter"
    ) -> None:
        self.owner: Final = owner
        """The core of the session that made it; None: made for a test."""
        self.name: Final = name
        """The queue's name."""
        self.codec = codec
        self.undecodable = undecodable
        self.dialect: Dialect | None = None
        """The layout of the queue; None: our own."""


def not_own(name: str) -> InvalidOptionError:
    """Return the error for a queue of another session, which may have another root and another policy."""
    return InvalidOptionError(
        f"queue {name!r} belongs to another session, or to a test; use one made by session.queue() of this session"
    )
