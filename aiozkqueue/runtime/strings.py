"""Very many strings, held so that neither the search for garbage nor their release blocks the event loop. Pure.

Python searches each list and each set for garbage, with all that it holds. This takes a twentieth of a second for a
million strings, at a moment that no code chooses. Python does not search strings, and up to 3.13 it does not search
dictionaries of strings. Python 3.14 does, and has no other set that it leaves out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, MutableSet, Sequence
from itertools import islice
from typing import Final, cast, overload

#: Names that are packed into one string.
_BLOCK: Final = 512
#: Separates them: no name of a znode contains it.
_SEPARATOR: Final = "/"
#: Strings that are released before the event loop runs other tasks.
_PART: Final = 8192


class Names(Sequence[str]):
    """Names of znodes in their order, packed into few strings. Names can only be appended."""

    __slots__ = ("_blocks", "_last")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._blocks: list[str] = []  # of `_BLOCK` names each
        self._last: list[str] = []  # the names after those, fewer
        self.extend(names)

    def append(self, name: str) -> None:
        """Append a name."""
        self._last.append(name)
        if len(self._last) == _BLOCK:
            self._pack()

    def extend(self, names: Iterable[str]) -> None:
        """Append names."""
        more = iter(names)
        while True:
            self._last += islice(more, _BLOCK - len(self._last))
            if len(self._last) < _BLOCK:
                return
            self._pack()

    def _pack(self) -> None:
        self._blocks.append(_SEPARATOR.join(self._last))
        self._last = []

    def __len__(self) -> int:
        """The number of names."""
        return len(self._blocks) * _BLOCK + len(self._last)

    def __iter__(self) -> Iterator[str]:
        """Yield the names that are there now."""
        last = list(self._last)
        for block in islice(self._blocks, len(self._blocks)):
            yield from block.split(_SEPARATOR)
        yield from last

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return a name, or a part of the names."""
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        block, position = divmod(range(len(self))[index], _BLOCK)
        return self._last[position] if block == len(self._blocks) else self._blocks[block].split(_SEPARATOR)[position]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same names in the same order."""
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class Strings(MutableSet[str]):
    """A set of strings."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values: dict[str, None] = dict.fromkeys(values)
        """The strings, as the keys of a dictionary; a test there is not a call."""

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: str) -> None:
        """Add a string."""
        self.values[value] = None

    def update(self, values: Iterable[str]) -> None:
        """Add strings."""
        self.values.update(dict.fromkeys(values))

    def discard(self, value: str) -> None:
        """Remove a string, if it is there."""
        self.values.pop(value, None)

    def clear(self) -> None:
        """Remove all strings."""
        self.values.clear()

    @property
    def parts(self) -> tuple[dict[str, None]]:
        """All that the set consists of; see `clear_gradually`."""
        return (self.values,)


async def clear_gradually(*containers: dict[str, str] | dict[str, None]) -> None:
    """Empty dictionaries that are no longer used; other tasks run in between.

    To release a million strings at once takes a tenth of a second.
    """
    for container in containers:
        while container:
            for _ in range(min(_PART, len(container))):
                container.popitem()
            if container:
                await asyncio.sleep(0)
