"""The division of a batch among tasks: by the number of its messages, or by their size."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.batches.manifests import Page
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime

#: The maximum number of items and bundles whose size is read. If there are more, the size of every k-th counts for k.
_SAMPLE: Final = 500
#: The size that is added to the data of each message, bytes: a task has work for each message.
_MESSAGE: Final = 256


class Piece(NamedTuple):
    """Consecutive messages of the same size."""

    messages: int
    size: float = _MESSAGE
    """The size of each, bytes."""


def divide(pieces: Sequence[Piece], shares: int) -> list[int]:
    """Divide messages into ``shares`` shares of about the same size, none empty; return the number of messages of each.

    The shares are in order. There are fewer shares only if there are fewer messages. A share exceeds the average by at
    most the largest message.
    """
    messages = list(accumulate((piece.messages for piece in pieces), initial=0))
    sizes = list(accumulate((piece.messages * piece.size for piece in pieces), initial=0.0))
    total, number = messages[-1], min(shares, messages[-1])
    divided: list[int] = []
    begin = 0
    for share in range(1, number + 1):
        ideal = sizes[-1] * share / number
        piece = min(bisect_left(sizes, ideal), len(pieces)) - 1  # the piece that contains the ideal end
        nearest = messages[piece] + math.floor((ideal - sizes[piece]) / pieces[piece].size + 0.5)
        end = min(max(nearest, begin + 1), total - (number - share))  # each share has a message
        divided.append(end - begin)
        begin = end
    return divided


class PagePart(NamedTuple):
    """Messages of a page, from ``begin`` to before ``stop``."""

    page: str
    """The path of the page."""
    begin: int
    stop: int


def cut(pages: Sequence[Page], sizes: Sequence[int]) -> list[list[PagePart]]:
    """Return the parts of pages that make up shares of these numbers of messages, in order."""
    shares: list[list[PagePart]] = []
    remaining = iter(sizes)
    room = 0
    for page in pages:
        begin = 0
        while begin < page.messages:
            if not room:
                room = next(remaining)
                shares.append([])
            stop = min(page.messages, begin + room)
            shares[-1].append(PagePart(page.path, begin, stop))
            room -= stop - begin
            begin = stop
    return shares


async def pieces_of(handle: QueueHandle[Runtime], pages: Sequence[Page]) -> list[Piece]:
    """Return the messages of these pages with their sizes. Some sizes of a large batch are estimated."""
    entries = [entry for page in pages for entry in page.entries]
    step = max(1, math.ceil(len(entries) / _SAMPLE))
    stats = await asyncio.gather(*(handle.zookeeper.exists(handle.paths.at(entry.place)) for entry in entries[::step]))
    pieces: list[Piece] = []
    for start, stat in zip(range(0, len(entries), step), stats, strict=True):
        size = 0 if stat is None else stat.data_length / entries[start].messages
        pieces.append(Piece(sum(entry.messages for entry in entries[start : start + step]), _MESSAGE + size))
    return pieces
