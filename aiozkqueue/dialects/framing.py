"""The bytes of a Curator item: a version, each message after its length, an end mark. Big-endian.

One znode contains any number of messages, including zero; a message may be empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import MalformedError
from aiozkqueue.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION: Final = bytes.fromhex("00010001")
_MESSAGE: Final = 1
_END: Final = 2
_LENGTH: Final = 4


def frame(messages: Iterable[bytes]) -> bytes:
    """Return the bytes of an item with these messages."""
    parts = [_VERSION]
    for message in messages:
        parts += (bytes([_MESSAGE]), len(message).to_bytes(_LENGTH, "big"), message)
    return b"".join([*parts, bytes([_END])])


def unframe(data: bytes) -> list[bytes]:
    """Return the messages of an item. Bytes after its end mark are ignored, as in Curator.

    Raises:
        MalformedError: another version, an unknown opcode, a length that is negative or exceeds the data, or no end
            mark.
    """
    if data[: len(_VERSION)] != _VERSION:
        if not data:
            raise MalformedError("it is empty")
        raise MalformedError(f"it begins with {data[: len(_VERSION)].hex()}, not with {_VERSION.hex()}")
    messages: list[bytes] = []
    at = len(_VERSION)
    while True:
        opcode = data[at] if at < len(data) else None
        if opcode == _END:
            return messages
        if opcode is None:
            raise MalformedError(f"it is cut off after {counted(len(messages), 'message')}")
        if opcode != _MESSAGE:
            raise MalformedError(f"opcode {opcode:#04x} at byte {at} is unknown")
        start = at + 1 + _LENGTH
        left = len(data) - start
        if left < 0:
            raise MalformedError(f"the length of message {len(messages)} is cut off")
        length = int.from_bytes(data[at + 1 : start], "big", signed=True)
        if not 0 <= length <= left:
            msg = f"message {len(messages)} declares {length} bytes, but {left} {'is' if left == 1 else 'are'} left"
            raise MalformedError(msg)
        messages.append(data[start : start + length])
        at = start + length
