"""kazoo's Queue and LockingQueue: entries with a priority of three digits in the name, bare bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from aiozkqueue.arguments import flag

from .dialect import Dialect, PutNames, check_path

if TYPE_CHECKING:
    from pydantic import JsonValue

_MOST: Final = 999
_PRIORITY: Final = re.compile(r"entry-([0-9]{3})-")


@dataclass(frozen=True, slots=True)
class _Entries(Dialect):
    """The part that both share. They differ in the paths of entries and locks."""

    prefix: ClassVar[str] = "entry-"
    options: ClassVar[frozenset[str]] = frozenset({"priority"})
    first_priority: ClassVar[int] = 0
    usual_priority: ClassVar[int] = 100

    def title(self) -> str:
        """See `Dialect`."""
        return "kazoo's Queue" if self.locks is None else "kazoo's LockingQueue"

    def settings(self) -> dict[str, JsonValue]:
        """See `Dialect`."""
        return {"program": "kazoo", "locking": self.locks is not None}

    def options_in(self, name: str) -> PutNames:
        """See `Dialect`."""
        match = _PRIORITY.match(name)
        return PutNames(priority=None if match is None else int(match[1]))

    def name(self, put: PutNames) -> str:
        """See `Dialect`."""
        priority = self.usual_priority if put.priority is None else put.priority
        if type(priority) is not int or not 0 <= priority <= _MOST:
            raise self.refuse("priority", priority, f"an integer from 0, the most urgent, to {_MOST}")
        return f"{self.prefix}{priority:03d}-"


def kazoo(path: str, *, locking: bool = True) -> Dialect:
    """Return the layout of a kazoo queue. Raises: InvalidOptionError."""
    check_path(path, "path")
    flag(locking, "locking")
    return _Entries(path, f"{path}/entries", f"{path}/taken") if locking else _Entries(path, path, None)
