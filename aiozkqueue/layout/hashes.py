"""The hashes that stand for keys and groups in names, and for payloads without a key."""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256
from typing import Final

from aiozkqueue.errors import InvalidOptionError

_KEY_BYTES: Final = 20


def key_hash(key: str) -> str:
    """Return the hash of a key or group for names: the first 160 bits of SHA-256 as 32 lower-case base32 characters.

    Raises:
        InvalidOptionError: the key is not a str that UTF-8 can encode.
    """
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(f"{key!r} cannot be a key or group: it is not valid Unicode") from error
    return _hash(data)


def payload_hash(payload: bytes) -> str:
    """Return the hash that replaces the key of a message without one; equal payloads have equal hashes.

    It never equals the `key_hash` of a key: no text in UTF-8 begins with the byte that is prefixed to the payload.
    """
    return _hash(b"\xff" + payload)


def _hash(data: bytes) -> str:
    return b32encode(sha256(data).digest()[:_KEY_BYTES]).decode().lower()
