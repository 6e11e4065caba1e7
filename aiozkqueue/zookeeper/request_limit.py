"""Finds out the largest request that a server accepts, its ``jute.maxbuffer``, without a session.

A server closes a connection as soon as it has read the length of a frame that exceeds its limit, and waits for the rest
of any other frame. So the lengths alone, each on a separate connection, show the limit.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper.errors import RequestTooLargeError
from aiozkqueue.zookeeper.handshake import open_streams

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from aiozkqueue.zookeeper.hosts import Server

_log = logging.getLogger(__name__)

#: A frame of this many bytes fits every server. A connection that is closed despite it is closed for another reason.
SMALL: Final = 4096
#: Lengths that are tried at once.
_PARALLEL: Final = 8
#: Seconds after which a server has accepted a length: at first, and for the last one, or if the first proves too short.
#: With a server that is slower than that, the limit is measured as too large: the next request above the real one is
#: lost, and it is measured again.
_QUICK, _SURE = 0.05, 0.3
_TRIPS = 3  # round trips that are added
_LONGEST = 2.0  # for one round, seconds
_LENGTH = struct.Struct("!i")


class RequestLimit:
    """The largest request that a client sends. A smaller limit of a server is learned after a loss."""

    __slots__ = ("accepted", "in_doubt", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted: int = wanted
        """The size that servers are expected to accept, bytes."""
        self.accepted: int = wanted
        """The size that the server of the connection accepts, as far as known, bytes."""
        self.in_doubt: bool = False
        """Whether a large request may be the reason for a lost connection."""

    @property
    def doubtful(self) -> bool:
        """Whether the limit of the next server must be learned before the server is used."""
        return self.in_doubt or self.accepted < self.wanted

    async def learn(self, address: str, server: Server, tls: ssl.SSLContext | None) -> None:
        """Learn the largest request that a server accepts, before anything is sent to it again."""
        limit = await smaller_limit(address, server, self.wanted, tls)
        if limit is not None and limit != self.accepted:
            _log.warning(
                "%s accepts requests of up to %d bytes, less than the %d of this client, which no longer sends larger "
                "requests; set jute.maxbuffer=%d on every server",
                server,
                limit,
                self.wanted,
                self.wanted,
            )
        self.accepted = self.wanted if limit is None else limit

    def too_large(self, size: int) -> RequestTooLargeError:
        """Return the error for a request of this size."""
        raised = f"set jute.maxbuffer={self.wanted} on every server, or " if self.accepted < self.wanted else ""
        return RequestTooLargeError(
            f"a request of {size} bytes exceeds the {self.accepted} that the server accepts (its jute.maxbuffer); "
            f"{raised}send less at once"
        )


async def smaller_limit(address: str, server: Server, size: int, tls: ssl.SSLContext | None) -> int | None:
    """Return the largest request that the server accepts, if it is certain that this is less than ``size`` bytes."""

    async def refused(lengths: Sequence[int], timeout: float) -> list[bool | None]:
        return await asyncio.gather(*(_refuses(address, server, length, tls, timeout) for length in lengths))

    if size <= SMALL or await refused([SMALL, size], _SURE) != [False, True]:
        return None
    limit = size
    for timeout in (_QUICK, _SURE):
        accepted = SMALL
        while limit - accepted > 1:
            lengths = _between(accepted, limit)
            answers = await refused(lengths, timeout)
            if answers.count(None) == len(answers):
                return None
            accepted, limit = _bounds(lengths, answers, accepted, limit)
        match await refused([accepted, limit], _SURE):
            case [False, True]:
                return accepted
            case [True, _] if accepted > SMALL:
                limit = accepted  # the server is slower than that
            case _:
                return None
    return None


def _between(accepted: int, limit: int) -> list[int]:
    """Return the lengths to try between one that is accepted and one that is refused."""
    step = max(1, (limit - accepted) // (_PARALLEL + 1))
    return [*range(accepted + step, limit, step)][:_PARALLEL]


def _bounds(lengths: Sequence[int], answers: Sequence[bool | None], accepted: int, limit: int) -> tuple[int, int]:
    """Return the largest length that is accepted, and the smallest one above it that is refused."""
    for length, answer in zip(lengths, answers, strict=True):
        if answer:
            return accepted, length
        if answer is False:
            accepted = length
    return accepted, limit


async def _refuses(
    address: str, server: Server, length: int, tls: ssl.SSLContext | None, timeout: float
) -> bool | None:
    """Whether the server closes a connection that announces a frame of this length.

    None: it cannot be reached, or it closes the connection before anything is sent, as at its maxClientCnxns.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(_LONGEST):
            reader, writer = await open_streams(address, server, tls)
    except OSError:  # TimeoutError is one
        return None
    trips = _TRIPS * (loop.time() - began)
    try:
        if await _closed(reader, _QUICK + trips):
            return None
        writer.write(_LENGTH.pack(length))
        return await _closed(reader, timeout + trips)
    finally:
        writer.transport.abort()


async def _closed(reader: asyncio.StreamReader, timeout: float) -> bool:
    """Whether the peer closes a connection within this many seconds."""
    try:
        async with asyncio.timeout(timeout):
            return not await reader.read(1)
    except TimeoutError:
        return False
    except OSError:
        return True
