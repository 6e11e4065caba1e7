"""Ids made by the client: unique without asking anyone, and known before the commit."""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The digits of ids, in the order of their values and of ASCII."""

CLIENT_DIGITS: Final = 12
"""With so many digits, the client's own name, its first ids begin."""

_HIGH_DIGITS: Final = 4
_PAIRS: Final = tuple(high + low for high, low in product(BASE62, repeat=2))


class IdSource:
    """Makes ids for one session: a random nonce of 12 base62 digits (71 bits), then a counter of 6.

    Ids of one nonce sort in the order they were made. After 62**6 of them the source takes a new nonce.

    Args:
        entropy: gives that many random bytes; `os.urandom` unless told.
    """

    __slots__ = ("_entropy", "_head", "_high", "_nonce", "_pairs", "client")

    def __init__(self, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._entropy = entropy
        self.client: Final = _nonce(entropy)
        """Names this client in ZooKeeper, as long as it lives."""
        self._nonce = self.client
        self._start(0)

    def next(self) -> str:
        """A new id: 18 base62 digits, safe in URLs and znode names."""
        # The last two digits come from a ready list: an id costs one iteration and one concatenation.
        for pair in self._pairs:
            return self._head + pair
        if self._high + 1 < len(BASE62) ** _HIGH_DIGITS:
            self._start(self._high + 1)
        else:
            self._nonce = _nonce(self._entropy)
            self._start(0)
        return self._head + next(self._pairs)

    def _start(self, high: int) -> None:
        self._high = high
        self._head = self._nonce + _digits(high, _HIGH_DIGITS)
        self._pairs = iter(_PAIRS)


def _nonce(entropy: Callable[[int], bytes]) -> str:
    # 128 bits for 71: what the remainder favours is beyond anyone's counting.
    return _digits(int.from_bytes(entropy(16), "big") % len(BASE62) ** CLIENT_DIGITS, CLIENT_DIGITS)


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(BASE62))
        text = BASE62[digit] + text
    return text
