"""Reads the bodies of requests, limited in size and time, in short steps of the event loop."""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect

from . import limits, parameters, problems
from .inflating import NAMES, Inflater, NotGzipError
from .splitting import STEP, VALUE_LIMIT, NotJsonError, Splitter, ValueTooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from .limits import LoopShare
    from .splitting import Shape

    Take = Callable[[str, str | None], None]

#: Maximum size of a body with one message, or with ids, bytes.
SMALL: Final = VALUE_LIMIT
#: The number of bytes that identify the Unicode encoding of JSON.
_TELLING: Final = 4
_DIGITS: Final = 18


async def read(request: Request, limit: int, shape: Shape, loop_share: LoopShare, take: Take) -> None:
    """Read JSON and yield the texts of its values one by one, each with the name of its array: see `Splitter`.

    Raises: ProblemError: the body is too large, too slow, empty, or not JSON of this shape; the errors of ``take``.
    """
    splitter = Splitter(shape)
    decoder = _Decoder()
    with limits.of(request).paused():
        try:
            async for piece in _pieces(request, limit):
                async with loop_share:
                    await _take(splitter, decoder.feed(piece), take, loop_share)
            async with loop_share:
                await _take(splitter, decoder.end(), take, loop_share)
                for name, text in splitter.end():
                    take(name, text)
        except (NotJsonError, UnicodeDecodeError) as error:
            raise problems.malformed(f"Unable to process JSON: {error}") from None
        except ValueTooLargeError:
            raise problems.too_large(SMALL) from None


async def whole(request: Request, limit: int) -> bytes:
    """Read a small body unchanged. Raises: ProblemError: it is too large, too slow, or empty."""
    with limits.of(request).paused():
        return b"".join([piece async for piece in _pieces(request, limit)])


async def _take(splitter: Splitter, text: str, take: Take, loop_share: LoopShare) -> None:
    for start in range(0, len(text), STEP):
        for name, value in splitter.feed(text[start : start + STEP]):
            take(name, value)
            await loop_share.pause()
        await loop_share.pause()


async def _pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body, decompressed if it is gzip. Raises: ProblemError."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _DIGITS or int(length) > limit):
        raise problems.too_large(limit)
    inflater = Inflater(STEP) if encoding_of(request) else None
    sent = inflated = 0
    try:
        async for chunk in _chunks(request):
            sent += len(chunk)
            for piece in (chunk,) if inflater is None else inflater.feed(chunk):
                inflated += len(piece)
                if max(sent, inflated) > limit:
                    raise problems.too_large(limit)
                yield piece
        if inflater is not None and sent:
            for piece in inflater.end():
                inflated += len(piece)
                if inflated > limit:
                    raise problems.too_large(limit)
                yield piece
    except NotGzipError as error:
        raise problems.malformed(f"the request's body is not gzip: {error}") from None
    if not inflated:
        raise problems.empty()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises: ProblemError: the client is too slow or has disconnected."""
    now, remaining = asyncio.get_running_loop().time, parameters.BODY_TIMEOUT
    stream = request.stream()  # with what others have read already, such as Sentry's integration of FastAPI
    while True:
        start = now()
        try:
            async with asyncio.timeout(remaining):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise problems.too_slow() from None
        except ClientDisconnect:
            raise problems.malformed("the request's body ended too early") from None
        remaining -= now() - start
        if chunk is None:
            return
        if chunk:
            yield chunk


def encoding_of(request: Request) -> str | None:
    """Return ``gzip``, or None for a plain body. Raises: ProblemError: it has another encoding."""
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding not in NAMES:
        raise problems.unsupported_encoding()
    return "gzip"


class _Decoder:
    """Decode text from bytes in the encoding that `json.loads` would detect."""

    def __init__(self) -> None:
        self._first = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> str:
        if self._decoder is None:
            self._first += data
            if len(self._first) < _TELLING:
                return ""
            data = self._begin()
        return "" if self._decoder is None else self._decoder.decode(data)

    def end(self) -> str:
        data = self._begin() if self._decoder is None else b""
        return "" if self._decoder is None else self._decoder.decode(data, final=True)

    def _begin(self) -> bytes:
        self._decoder = codecs.getincrementaldecoder(json.detect_encoding(self._first))("surrogatepass")
        return self._first
