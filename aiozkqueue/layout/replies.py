"""Replies: ``<root>/.clients/<client>/reply-<call>``, the payload of one reply.

A message that asks for a reply has the header ``reply-to``, ``<client>/<call>``. The client's folder is removed when it
has been inactive for a day, with its commit slots and its unread replies.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

REPLY_TO: Final = "reply-to"
"""The header with the address of a reply."""

REPLY: Final = "reply-"
"""The prefix of the names of replies."""

_ADDRESS: Final = re.compile(r"([0-9A-Za-z]{12})/([0-9A-Za-z]{18})")


class ReplyAddress(NamedTuple):
    """Where a reply goes."""

    client: str
    call: str

    def __str__(self) -> str:
        return f"{self.client}/{self.call}"

    def path(self, root: str) -> str:
        """Return the path of the reply."""
        return f"{root}/.clients/{self.client}/{REPLY}{self.call}"

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """Read a header; None if it is not an address."""
        found = _ADDRESS.fullmatch(header or "")
        return None if found is None else cls(found[1], found[2])
