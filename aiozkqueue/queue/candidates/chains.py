"""Names of items in chains, such as one chain for each group. Pure.

A lane may hold a million items. The chains are dictionaries of strings: the garbage collector does not search them, and
they need no object for a name besides the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Chains:
    """Names by the key of their chain, each chain in the order in which its names were appended."""

    __slots__ = ("_first", "_last", "_next", "_removed")

    def __init__(self) -> None:
        self._first: dict[str, str] = {}  # by key
        self._last: dict[str, str] = {}  # by key
        self._next: dict[str, str] = {}  # by name
        self._removed: set[str] = set()  # names behind a remaining one

    def __bool__(self) -> bool:
        """Whether any name remains."""
        return bool(self._first)

    def __contains__(self, key: str) -> bool:
        """Whether a chain has a name."""
        return key in self._first

    def has(self, key: str, name: str) -> bool:
        """Whether a chain has this name."""
        return (name in self._next or self._last.get(key) == name) and name not in self._removed

    def last(self, key: str) -> str | None:
        """Return the name that was last appended to a chain that has any; it may have been removed."""
        return self._last.get(key)

    def names(self, key: str) -> Iterator[str]:
        """Yield the names of a chain."""
        name = self._first.get(key)
        while name is not None:
            if name not in self._removed:
                yield name
            name = self._next.get(name)

    def append(self, key: str, name: str) -> bool:
        """Append a name to a chain; return whether it is the only one."""
        last = self._last.get(key)
        self._last[key] = name
        if last is None:
            self._first[key] = name
            return True
        self._next[last] = name
        return False

    def remove(self, key: str, name: str) -> None:
        """Remove a name from its chain, if it is there. A name behind others is passed over when its turn comes."""
        if self._first.get(key) != name:
            if self.has(key, name):
                self._removed.add(name)
            return
        following = self._next.pop(name, None)
        while following is not None and following in self._removed:
            self._removed.discard(following)
            following = self._next.pop(following, None)
        if following is not None:
            self._first[key] = following
        else:
            del self._first[key], self._last[key]

    @property
    def parts(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """All that the chains consist of; chains that are no longer used may be released in parts."""
        return self._first, self._last, self._next
