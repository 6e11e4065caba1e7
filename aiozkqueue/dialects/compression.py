"""The gzip of Curator's ``enableCompression()``, which compresses the bytes of each znode."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from aiozkqueue.errors import MessageTooLargeError
from aiozkqueue.layout import MalformedError

#: The maximum size of a decompressed item, bytes. A megabyte of gzip can contain a gigabyte.
MOST_INFLATED: Final = 16 * 1024 * 1024

_MAGIC: Final = b"\x1f\x8b"
_WINDOW: Final = 16 + zlib.MAX_WBITS


def deflate(path: str, data: bytes) -> bytes:
    """Return the gzip of an item's bytes. Raises: MessageTooLargeError: `inflate` would refuse them."""
    if len(data) > MOST_INFLATED:
        msg = (
            f"queue {path!r}: the item takes {len(data)} bytes before compression; at most {MOST_INFLATED} are read "
            "back; store the payload elsewhere and put a reference to it"
        )
        raise MessageTooLargeError(msg)
    return gzip.compress(data, mtime=0)


def is_gzip(data: bytes) -> bool:
    """Return whether bytes begin like gzip."""
    return data.startswith(_MAGIC)


def inflate(data: bytes) -> bytes:
    """Decompress gzip of one or several members.

    Raises:
        MalformedError: it is not gzip, is truncated, or decompresses to more than `MOST_INFLATED` bytes.
    """
    parts: list[bytes] = []
    left = MOST_INFLATED
    while data:
        member = zlib.decompressobj(_WINDOW)
        try:
            part = member.decompress(data, left + 1)
        except zlib.error as error:
            raise MalformedError(f"it is not gzip: {error}") from None
        left -= len(part)
        if left < 0:
            raise MalformedError(f"its gzip data expands to more than {MOST_INFLATED} bytes")
        if not member.eof:
            raise MalformedError("its gzip data is truncated")
        parts.append(part)
        data = member.unused_data
    return b"".join(parts)
