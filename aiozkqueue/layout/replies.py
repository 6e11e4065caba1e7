"""Replies: ``<root>/.clients/<client>/reply-<call>``, the payload of one reply.

``failed-<call>`` says instead that the message is given up: ``{"message": "<id>", "reason": "…"}``.

A message that asks for a reply has the header ``reply-to``, ``<client>/<call>``. The client's folder is removed when it
has been inactive for a day, with its commit slots and its unread replies.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple, Self

from .fields import readable_fields
from .history import End

REPLY_TO: Final = "reply-to"
"""The header with the address of a reply."""

REPLY: Final = "reply-"
"""The prefix of the names of replies."""

FAILED: Final = "failed-"
"""The prefix of the names of answers to calls whose messages are given up."""

#: Maximum number of characters of a reason; that of a dead letter is complete.
MOST_REASON: Final = 1000

#: The reasons for the ends of messages that no handler has decided.
REASONS: Final = {
    End.CANCELLED: "it was cancelled",
    End.COLLAPSED: "a newer message of its key has replaced it",
    End.EXPIRED: "it expired",
    End.REMOVED: "it was purged",
}

_ADDRESS: Final = re.compile(r"([0-9A-Za-z]{12})/([0-9A-Za-z]{18})")


def asks_for_reply(data: bytes) -> bool:
    """Whether the bytes of an item or a bundle may have a message of a call."""
    return REPLY_TO.encode() in data


class ReplyAddress(NamedTuple):
    """Where a reply goes."""

    client: str
    call: str

    def __str__(self) -> str:
        return f"{self.client}/{self.call}"

    def path(self, root: str) -> str:
        """Return the path of the reply."""
        return f"{root}/.clients/{self.client}/{REPLY}{self.call}"

    def failure_path(self, root: str) -> str:
        """Return the path of the answer that the message is given up."""
        return f"{root}/.clients/{self.client}/{FAILED}{self.call}"

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """Read a header; None if it is not an address."""
        found = _ADDRESS.fullmatch(header or "")
        return None if found is None else cls(found[1], found[2])


class Failure(NamedTuple):
    """Why a message of a call is given up."""

    message_id: str
    reason: str

    def encode(self) -> bytes:
        """The bytes to store."""
        return json.dumps({"message": self.message_id, "reason": self.reason[:MOST_REASON]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the bytes; parts that do not decode are empty."""
        fields = readable_fields(data, "the answer to a call")
        message_id, reason = fields.get("message"), fields.get("reason")
        return cls(message_id if isinstance(message_id, str) else "", reason if isinstance(reason, str) else "")
