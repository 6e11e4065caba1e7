"""Ids that clients make: unique without coordination, and known before the commit."""

from __future__ import annotations

import os
from itertools import islice, product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The digits of ids, ordered by value and by ASCII code."""

CLIENT_DIGITS: Final = 12
"""The length of the client's own id, with which the ids that it makes begin at first."""

_HIGH_DIGITS: Final = 4
_PAIRS: Final = tuple(high + low for high, low in product(BASE62, repeat=2))
_VALUES: Final = {digit: value for value, digit in enumerate(BASE62)}


class IdSource:
    """Makes ids for one session: a random nonce of 12 base62 digits (71 bits), then a counter of 6 digits.

    Ids with the same nonce sort in the order of their creation. After 62**6 ids the source draws a new nonce.

    Args:
        entropy: returns a given number of random bytes; default: `os.urandom`.
    """

    __slots__ = ("_entropy", "_head", "_high", "_nonce", "_pairs", "client")

    def __init__(self, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._entropy = entropy
        self.client: Final = _nonce(entropy)
        """The id of this client in ZooKeeper, for its whole life."""
        self._nonce = self.client
        self._start(0)

    def next(self) -> str:
        """Return a new id: 18 base62 digits, safe in URLs and znode names."""
        # The last two digits come from a prepared list: an id costs one iteration and one concatenation.
        for pair in self._pairs:
            return self._head + pair
        if self._high + 1 < len(BASE62) ** _HIGH_DIGITS:
            self._start(self._high + 1)
        else:
            self._nonce = _nonce(self._entropy)
            self._start(0)
        return self._head + next(self._pairs)

    def take(self, number: int) -> list[str]:
        """Return this many new ids, as `next` would return them one by one."""
        head = self._head
        ids = [head + pair for pair in islice(self._pairs, number)]
        while len(ids) < number:
            ids.append(self.next())
            head = self._head
            ids += [head + pair for pair in islice(self._pairs, number - len(ids))]
        return ids

    def _start(self, high: int) -> None:
        self._high = high
        self._head = self._nonce + _digits(high, _HIGH_DIGITS)
        self._pairs = iter(_PAIRS)


def id_count(text: str, end: int = 0) -> int:
    """Return the last three digits of the counter in the id at the end of a text, or before a negative index.

    Raises: ValueError: they are no digits.
    """
    try:
        return (_VALUES[text[end - 3]] * 62 + _VALUES[text[end - 2]]) * 62 + _VALUES[text[end - 1]]
    except (KeyError, IndexError):
        raise ValueError(text) from None


def _nonce(entropy: Callable[[int], bytes]) -> str:
    # 128 bits are reduced to 71, so the bias of the remainder is negligible.
    return _digits(int.from_bytes(entropy(16), "big") % len(BASE62) ** CLIENT_DIGITS, CLIENT_DIGITS)


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(BASE62))
        text = BASE62[digit] + text
    return text
