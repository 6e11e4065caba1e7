"""Events: pydantic models below one class, known by their class's name. Pure.

The header `EVENT` of a message holds the names of the event's class and its base classes, the nearest first. So a
process that does not know the class reads the event as the nearest class that it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from aiozkqueue.codec import AdapterCodec
from aiozkqueue.errors import InvalidOptionError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

E = TypeVar("E", bound=BaseModel)

#: The names of the event's class and its base classes, separated by spaces.
EVENT = "bus-event"
#: The names of the subscribers that need not be called again, separated by spaces.
DONE = "bus-done"


class EventTypes(Generic[E]):
    """The events of one bus: a class and all its subclasses, including those defined later."""

    def __init__(self, base: type[E]) -> None:
        given: object = base
        if not (isinstance(given, type) and issubclass(given, BaseModel)):
            msg = f"a bus takes a pydantic model, whose subclasses are its events, not {base!r}"
            raise InvalidOptionError(msg)
        self.base = base
        self._codecs: dict[type[BaseModel], AdapterCodec[Any]] = {}

    def encode(self, event: E, bus: str) -> tuple[str, bytes]:
        """Return an event's names, for its header, and its payload.

        Raises:
            InvalidOptionError: it does not belong to this bus, or another class has the same name.
            PayloadError: it would not be the same when read.
        """
        kind = type(event)
        self.require(kind, bus)
        return " ".join(map(_name, self._line(kind))), self._codec(kind).encode(event, f"bus {bus}")

    def decode(self, names: str | None, payload: bytes, bus: str) -> E:
        """Read an event, as the nearest class that is known here. Raises: PayloadError."""
        known = {_name(kind): kind for kind in self._all(self.base)}
        for name in (names or "").split():
            if name in known:
                event: E = self._codec(known[name]).decode(payload, f"bus {bus}")
                return event
        msg = f"bus {bus!r}: none of {names!r} is known here as a {self.base.__name__}"
        raise PayloadError(msg)

    def require(self, kind: type[BaseModel], bus: str) -> None:
        """Reject a class that is not an event of this bus, or that shares its name with another event.

        Raises: InvalidOptionError.
        """
        given: object = kind
        if not (isinstance(given, type) and issubclass(given, self.base)):
            msg = f"bus {bus!r} takes {self.base.__name__} and its subclasses, not {getattr(kind, '__name__', kind)}"
            raise InvalidOptionError(msg)
        for other in self._all(self.base):
            if _name(other) == _name(kind) and other is not kind:
                msg = f"bus {bus!r} has two events named {kind.__name__}: rename one; names identify events"
                raise InvalidOptionError(msg)

    def _line(self, kind: type[BaseModel]) -> list[type[BaseModel]]:
        return [cls for cls in kind.__mro__ if issubclass(cls, self.base)]

    def _all(self, kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield kind
        for below in kind.__subclasses__():
            yield from self._all(below)

    def _codec(self, kind: type[BaseModel]) -> AdapterCodec[Any]:
        codec = self._codecs.get(kind)
        if codec is None:
            codec = self._codecs[kind] = AdapterCodec(TypeAdapter[Any](kind))
        return codec


def _name(kind: type[BaseModel]) -> str:
    """Return the name of a class for the header; that of a generic class with parameters has spaces in Python."""
    return kind.__name__.replace(" ", "")
