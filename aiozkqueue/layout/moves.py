"""Moves of a queue's messages to another queue, as they are stored: ``<root>/.moves/<reference>``, JSON.

``{"source": "…", "target": "…", "state": "running" | "done" | "failed", "moved": 120, "started": <ms>, "ended": <ms>,
"error": "…", "counters": {"<lane>": 42}}``; the counters, of a queue whose messages may be handed on, tell how
many items each of its lanes had been given when the move began. Its child ``runner`` is ephemeral: who works on it now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self, cast

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
    """Where the moves are stored. Raises: InvalidOptionError: see `check_root`."""

    __slots__ = ("base",)

    def __init__(self, root: str) -> None:
        check_root(root)
        self.base: Final = f"{root}/.moves"

    def move(self, reference: str) -> str:
        """A move's znode."""
        return f"{self.base}/{reference}"

    def runner(self, reference: str) -> str:
        """Who works on it."""
        return f"{self.base}/{reference}/runner"


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """What is stored of a move. Times are milliseconds since 1970, ZooKeeper's."""

    source: str
    target: str
    state: MoveState = "running"
    moved: int = 0
    ended: int | None = None
    error: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    """By lane, the sequence number of the first item that came after the move began."""

    def encode(self) -> bytes:
        """The bytes to store."""
        fields: dict[str, JsonValue] = {
            "source": self.source,
            "target": self.target,
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
        """Read what is stored of a move.

        Raises:
            MalformedError: it is none.
        """
        fields = read_object(data, _WHAT)
        source, target = pop_text(fields, "source", _WHAT), pop_text(fields, "target", _WHAT)
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


def _pop_counters(fields: dict[str, JsonValue]) -> Mapping[str, int]:
    counters = fields.pop("counters", None) or {}
    if not isinstance(counters, dict):
        raise MalformedError(f"{_WHAT}: 'counters' is not an object")
    return {lane: pop_number(counters, lane, _WHAT, most=LARGEST_NUMBER) or 0 for lane in list(counters)}
