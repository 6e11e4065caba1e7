"""What a message can be put to: a name and a codec. `Queue` adds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from aiozkqueue.dialects import Dialect

    from .codec import Codec

T = TypeVar("T")

Undecodable = Literal["dead-letter", "raise"]


class Destination(Generic[T]):
    """A queue's name, how its values become bytes, and what is done with bytes that are no value."""

    def __init__(self, name: str, codec: Codec[T], undecodable: Undecodable) -> None:
        self.name: Final = name
        """The queue's name."""
        self.codec = codec
        self.undecodable = undecodable
        self.dialect: Dialect | None = None
        """Whose layout it has; None: our own."""
