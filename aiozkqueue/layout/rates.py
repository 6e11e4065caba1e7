"""Shared rates: ``<root>/.rates/<name>``, the end of the timeline on which sessions lease slots.

``{"after": <µs>, "length": <µs>}``: the last block begins at ``after``, or at its write (the mtime of its znode) if
that is later, and takes ``length``. All times are ZooKeeper's, in microseconds since 1970. An empty znode has no block
yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from .fields import pop_number, read_object, write_object
from .paths import check_queue_name, check_root

_WHAT: Final = "a rate"
#: Microseconds of a moment far beyond any date.
_LAST: Final = 10**18


class RatePaths:
    """The znodes of shared rates. Raises: InvalidOptionError: see `check_root`."""

    __slots__ = ("base",)

    def __init__(self, root: str) -> None:
        check_root(root)
        self.base: Final = f"{root}/.rates"

    def rate(self, name: str) -> str:
        """Return the path of a rate. Raises: InvalidNameError."""
        return f"{self.base}/{check_queue_name(name, 'rate')}"


@dataclass(frozen=True, slots=True)
class RateRecord:
    """The last block of a timeline, µs."""

    after: int = 0
    length: int = 0

    def begin(self, mtime: int) -> int:
        """Return when the block begins, µs; ``mtime`` is that of its znode, ms."""
        return max(self.after, mtime * 1000)

    def end(self, mtime: int) -> int:
        """Return when the block ends, µs, which is when the next one may begin."""
        return self.begin(mtime) + self.length if self.length else 0

    def encode(self) -> bytes:
        """Return the stored bytes."""
        return write_object({"after": self.after, "length": self.length})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the stored bytes. Raises: MalformedError."""
        if not data:
            return cls()
        fields = read_object(data, _WHAT)
        after, length = (pop_number(fields, field, _WHAT, most=_LAST) for field in ("after", "length"))
        return cls(after or 0, length or 0)
