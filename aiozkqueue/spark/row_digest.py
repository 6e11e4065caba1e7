"""A digest of the contents of a sequence of rows. A retried task compares it with its own rows. Pure."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class RowDigest(NamedTuple):
    """The digests of the lengths and of the bytes. They do not depend on how many rows are added at a time."""

    lengths: blake2b
    bodies: blake2b

    @classmethod
    def empty(cls) -> RowDigest:
        """Return the digest of no rows."""
        return cls(blake2b(digest_size=16), blake2b(digest_size=16))

    def update(self, contents: Sequence[bytes]) -> None:
        """Add contents."""
        self.lengths.update(struct.pack(f">{len(contents)}I", *map(len, contents)))
        self.bodies.update(b"".join(contents))

    def copy(self) -> RowDigest:
        """Return a copy, to which further rows can be added."""
        return RowDigest(self.lengths.copy(), self.bodies.copy())

    def hexdigest(self) -> str:
        """Return the digest of the rows."""
        return blake2b(self.lengths.digest() + self.bodies.digest(), digest_size=16).hexdigest()
