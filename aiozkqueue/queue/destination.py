"""The destination of a put: a session's queue name and codec. `Queue` adds the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from aiozkqueue.arguments import is_choice, plain
from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from aiozkqueue.codec import Codec
    from aiozkqueue.dialects import Dialect

T = TypeVar("T")

Undecodable = Literal["dead-letter", "raise"]


def check_undecodable(undecodable: Undecodable) -> Undecodable:
    """Return the option as it is. Raises: InvalidOptionError."""
    if not is_choice(undecodable, "dead-letter", "raise"):
        msg = f"undecodable={undecodable!r}: give 'dead-letter' or 'raise'"
        raise InvalidOptionError(msg)
    return undecodable


@dataclass(frozen=True, slots=True, eq=False)
class Binding(Generic[T]):
    """The parts of a destination that users do not see."""

    owner: object | None
    """The core of its session; None: made for a test, or declared by an application that is not connected."""
    codec: Codec[T]
    """The codec of its values."""
    undecodable: Undecodable
    """The treatment of undecodable payloads."""
    dialect: Dialect | None
    """The layout of the queue; None: our own."""


class Destination(Generic[T]):
    """A queue's name, and its binding to a session and to a type of values."""

    def __init__(self, name: str, binding: Binding[T]) -> None:
        self.name: Final = plain(name) if isinstance(name, str) else name  # type: ignore[redundant-expr]  # a wrong type is refused later
        """The queue's name."""
        self._binding = binding

    def _bind(self, owner: object | None) -> None:
        self._binding = replace(self._binding, owner=owner)


class _BindingOf(Protocol):
    def __call__(self, destination: Destination[T], /) -> Binding[T]: ...


#: Returns the parts of a destination that users do not see. Each put and each take calls it, so it is not a function of
#: Python.
binding_of: Final[_BindingOf] = attrgetter("_binding")


def bind(destination: Destination[Any], owner: object | None) -> None:
    """Bind a declared destination to the core of a session; None: to no session."""
    destination._bind(owner)  # noqa: SLF001 - the other half of `binding_of`


def not_own(name: str) -> InvalidOptionError:
    """Return the error for a queue of another session, which may have another root and another policy."""
    return InvalidOptionError(
        f"queue {name!r} belongs to another session, to a test, or to an application that is not connected; use one "
        "made by session.queue() of this session, or connect the application: `async with app.connect() as session`"
    )
