"""The destination of a put: a session's queue name and codec. `Queue` adds the rest."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from aiozkqueue.dialects import Dialect

    from .codec import Codec

T = TypeVar("T")

Undecodable = Literal["dead-letter", "raise"]


@dataclass(frozen=True, slots=True, eq=False)
class Binding(Generic[T]):
    """The parts of a destination that users do not see."""

    owner: object | None
    """The core of the session that made it; None: made for a test."""
    codec: Codec[T]
    """The codec of its values."""
    undecodable: Undecodable
    """The treatment of undecodable payloads."""
    dialect: Dialect | None
    """The layout of the queue; None: our own."""


class Destination(Generic[T]):
    """A queue's name, and its binding to a session and to a type of values."""

    def __init__(self, name: str, binding: Binding[T]) -> None:
        self.name: Final = name
        """The queue's name."""
        self._binding: Final = binding


class _BindingOf(Protocol):
    def __call__(self, destination: Destination[T], /) -> Binding[T]: ...


#: Returns the parts of a destination that users do not see. Each put and each take calls it, so it is not a function of
#: Python.
binding_of: Final[_BindingOf] = attrgetter("_binding")


def not_own(name: str) -> InvalidOptionError:
    """Return the error for a queue of another session, which may have another root and another policy."""
    return InvalidOptionError(
        f"queue {name!r} belongs to another session, or to a test; use one made by session.queue() of this session"
    )
