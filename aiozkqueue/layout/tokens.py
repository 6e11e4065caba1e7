"""Lease tokens: references to leased messages outside of this process, by which any session can settle them.

The form is ``<lane>~<item name>~<check>``, with the slashes of the lane as tildes: the item's place, and eight
hexadecimal digits of the CRC-32 of queue and place. The digits detect a mangled token or one of another queue. They are
not a signature: anyone can compute them, so a token proves nothing. Sessions that may write to the queue need no proof.
The HTTP service signs the tokens that it gives its clients (`aiozkqueue.http.core.tokens`). A token can only name the
place of an item, never that of a dead letter or a record.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from .errors import MalformedError
from .lanes import is_lane
from .names import ItemName, ItemRef

_LONGEST: Final = 2048
_SHOWN: Final = 80


def lease_token(queue: str, place: str) -> str:
    """Return the token of an item at a place relative to its queue, ``<lane>/<name>``."""
    return f"{place.replace('/', '~')}~{_check(queue, place)}"


def leased_place(queue: str, token: str) -> str:
    """Return the place in a token of this queue.

    Raises:
        MalformedError: it is not a token, or it is one of another queue.
    """
    place, _, check = token.rpartition("~")
    place = place.replace("~", "/")
    lane, name = ItemRef.parse(place)
    if len(token) > _LONGEST or not is_lane(lane) or check != _check(queue, place) or ItemName.parse(name) is None:
        raise MalformedError(f"{token[:_SHOWN]!r} is not a lease of queue {queue!r}")
    return place


def _check(queue: str, place: str) -> str:
    return f"{crc32(f'{queue}/{place}'.encode('utf-8', 'surrogatepass')):08x}"
