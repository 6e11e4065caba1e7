"""The size of messages that the servers accept."""

from __future__ import annotations

from typing import Final

from aiozkqueue.errors import MessageTooLargeError
from aiozkqueue.zookeeper.wire import MAX_REQUEST

#: Bytes of the largest request that are reserved for the names and reasons of one message.
MESSAGE_MARGIN: Final = 64 * 1024
_REFERENCE: Final = "store the payload elsewhere and put a reference to it"


def message_limit(request_limit: int) -> int:
    """Return the size of the largest message that can be put and still be dead-lettered, bytes."""
    return max(request_limit - MESSAGE_MARGIN, request_limit // 4)


def too_large(what: str, size: int, limit: int, advice: str = _REFERENCE) -> MessageTooLargeError:
    """Return the error of a message of this size. ``what`` names it, as in `queue 'jobs': the message`."""
    if limit < message_limit(MAX_REQUEST):
        advice = f"set jute.maxbuffer={MAX_REQUEST} on every server, or {advice}"
    msg = f"{what} takes {size} bytes, ZooKeeper accepts {limit} (by its jute.maxbuffer); {advice}"
    return MessageTooLargeError(msg)
