"""The data of a mark below a page: why a message becomes a dead letter when its batch is done. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Begins a decision. No reason for which a payload does not decode begins so.
_DECIDED: Final = "\0"
_ATTEMPT: Final = re.compile("[0-9]{1,10}")


class Mark(NamedTuple):
    """A reason to reject a message of a batch."""

    reason: str
    attempt: int | None = None
    """The version of the batch's znode in the attempt that rejected it; None: its payload does not decode."""

    def is_of(self, attempt: int) -> bool:
        """Whether the user decided so in this attempt; otherwise a task that reads the message removes the mark."""
        return self.attempt == attempt

    @property
    def words(self) -> str:
        """The reason of the dead letter."""
        return self.reason if self.attempt is not None else f"the payload does not decode: {self.reason}"

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return (self.reason if self.attempt is None else f"{_DECIDED}{self.attempt} {self.reason}").encode()

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """Decode the stored bytes."""
        text = data.decode("utf-8", "replace")
        attempt, _, reason = text.removeprefix(_DECIDED).partition(" ")
        if text.startswith(_DECIDED) and _ATTEMPT.fullmatch(attempt):
            return cls(reason, int(attempt))
        return cls(text)
