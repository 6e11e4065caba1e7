"""The digest of a sequence of rows, which a task that is tried again compares. Pure."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class RowDigest:
    """The digest of the rows so far: one of their lengths, and one of their bytes. It does not depend on the chunks."""

    __slots__ = ("_bodies", "_lengths")

    def __init__(self) -> None:
        self._lengths = blake2b(digest_size=16)
        self._bodies = blake2b(digest_size=16)

    def update(self, bodies: Sequence[bytes]) -> None:
        """Add rows."""
        self._lengths.update(struct.pack(f">{len(bodies)}I", *map(len, bodies)))
        self._bodies.update(b"".join(bodies))

    def copy(self) -> Self:
        """Return a digest of the same rows, to add other rows to."""
        other = type(self)()
        other._lengths, other._bodies = self._lengths.copy(), self._bodies.copy()
        return other

    def hexdigest(self) -> str:
        """Return the digest of the rows."""
        return blake2b(self._lengths.digest() + self._bodies.digest(), digest_size=16).hexdigest()
