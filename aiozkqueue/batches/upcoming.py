"""The scheduled items of an hour that a ledger knows, the earliest first. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiozkqueue.layout import match_due

if TYPE_CHECKING:
    from collections.abc import Iterable


def due_of(name: str) -> int:
    """Return when a scheduled item is due, in ms; 0 for another name."""
    match = match_due(name)
    return 0 if match is None else int(match[1])


class Upcoming:
    """The first items of a folder by the moments at which they are due."""

    def __init__(self, names: Iterable[str] = (), *, complete: bool = True) -> None:
        self.names = deque(names)
        self._rest = None if complete or not self.names else due_of(self.names[-1])

    @property
    def due(self) -> int | None:
        """The first moment at which an item is due, or may be, in ms; None: there is none."""
        return due_of(self.names[0]) if self.names else self._rest

    def take(self, moment: int, limit: int) -> list[str]:
        """Remove and return up to ``limit`` names that are due at a moment."""
        taken: list[str] = []
        while self.names and len(taken) < limit and due_of(self.names[0]) <= moment:
            taken.append(self.names.popleft())
        return taken
