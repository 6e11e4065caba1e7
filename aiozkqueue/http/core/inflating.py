"""Decompresses gzip in bounded steps: a few bytes can expand to gigabytes. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Names of gzip in a Content-Encoding.
NAMES: Final = frozenset({"gzip", "x-gzip"})
_GZIP: Final = 16 + zlib.MAX_WBITS


class NotGzipError(ValueError):
    """The bytes are not gzip, or are truncated."""


class Inflater:
    """Takes gzip of one or several members in pieces, and returns the decompressed bytes."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._member = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a piece; yield its decompressed bytes, up to ``step`` bytes at a time. Raises: NotGzipError."""
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            try:
                inflated = self._member.decompress(data, self._step)
            except zlib.error as error:
                raise NotGzipError(str(error)) from None
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if inflated:
                yield inflated

    def end(self) -> Iterator[bytes]:
        """Take the end; yield the bytes that were held back. Raises: NotGzipError."""
        while not self._member.eof:
            try:
                inflated = self._member.decompress(b"", self._step)
            except zlib.error as error:
                raise NotGzipError(str(error)) from None
            if not inflated:
                raise NotGzipError("it ends too early")
            yield inflated
