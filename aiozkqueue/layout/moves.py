"""Stored moves of a queue's messages to another queue: ``<root>/.moves/<reference>``, JSON.

``{"source": "…", "target": "…", "state": "running" | "done" | "failed", "moved": 120, "ended": <ms>, "error": "…",
"counters": {"<lane>": 42}}``. A queue of another program is an object instead of a name, with its path and its layout:
``{"path": "/app/jobs", "program": "kazoo", "locking": true}``. The counters hold the number of items that each lane had
been given when the move began. They are stored only where an item may be created again under its old number: in a queue
whose messages may be reassigned, and in a queue of another program. The child ``runner`` is ephemeral: the session that
is working on the move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self, cast

from aiozkqueue.arguments import plain

from .errors import MalformedError
from .fields import LARGEST_NUMBER, pop_number, pop_text, read_object, storable_text, write_object
from .paths import check_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

MoveState = Literal["running", "done", "failed"]

_WHAT: Final = "a move"
_STATES: Final = ("running", "done", "failed")


class MovePaths:
    """The znodes of the moves. Raises: InvalidOptionError: see `check_root`."""

    __slots__ = ("base",)

    def __init__(self, root: str) -> None:
        check_root(root)
        self.base: Final = f"{root}/.moves"

    def move(self, reference: str) -> str:
        """Return the path of a move."""
        return f"{self.base}/{plain(reference)}"

    def runner(self, reference: str) -> str:
        """Return the path of the ephemeral of the session that works on a move."""
        return f"{self.base}/{plain(reference)}/runner"


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """One of the two queues of a move."""

    name: str
    """The queue's name, or the path of a queue of another program."""
    layout: Mapping[str, JsonValue] | None = None
    """The other program's layout, as `dialects` describes it; None: the queue is one of ours."""

    def field(self) -> JsonValue:
        """Return the record's field."""
        return self.name if self.layout is None else {**self.layout, "path": self.name}


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The stored record of a move. Times are milliseconds since 1970, ZooKeeper's."""

    source: MoveEnd
    target: MoveEnd
    state: MoveState = "running"
    moved: int = 0
    ended: int | None = None
    error: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    """For each lane, the sequence number of the first item put after the move began."""

    def encode(self) -> bytes:
        """Return the bytes to store."""
        fields: dict[str, JsonValue] = {
            "source": self.source.field(),
            "target": self.target.field(),
            "state": self.state,
            "moved": self.moved,
        }
        if self.ended is not None:
            fields["ended"] = self.ended
        if self.error is not None:
            fields["error"] = storable_text(self.error)
        if self.counters:
            fields["counters"] = dict(self.counters)
        return write_object(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a move.

        Raises:
            MalformedError: the data is not a move's record.
        """
        fields = read_object(data, _WHAT)
        source, target = _pop_end(fields, "source"), _pop_end(fields, "target")
        state = pop_text(fields, "state", _WHAT)
        if source is None or target is None or state not in _STATES:
            raise MalformedError(f"{_WHAT} lacks its source, target or state")
        return cls(
            source,
            target,
            cast("MoveState", state),
            pop_number(fields, "moved", _WHAT, most=LARGEST_NUMBER) or 0,
            pop_number(fields, "ended", _WHAT),
            pop_text(fields, "error", _WHAT),
            _pop_counters(fields),
        )


def _pop_end(fields: dict[str, JsonValue], field: str) -> MoveEnd | None:
    end = fields.get(field)
    if not isinstance(end, dict):
        name = pop_text(fields, field, _WHAT)
        return None if name is None else MoveEnd(name)
    path = pop_text(end, "path", f"{_WHAT}: {field!r}")
    if path is None:
        raise MalformedError(f"{_WHAT}: {field!r} lacks its path")
    return MoveEnd(path, end)


def _pop_counters(fields: dict[str, JsonValue]) -> Mapping[str, int]:
    counters = fields.pop("counters", None) or {}
    if not isinstance(counters, dict):
        raise MalformedError(f"{_WHAT}: 'counters' is not an object")
    return {lane: pop_number(counters, lane, _WHAT, most=LARGEST_NUMBER) or 0 for lane in list(counters)}
