"""How long a reply may take before it is too late, for a call whose moment must not depend on a lost connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .clock import Clock

#: Seconds after which a reply is too late, while the server is quick.
LONGEST_REPLY: Final = 1.0


class ReplyLimit:
    """The limit for the replies to requests of one kind: twice the time of the last reply, and at least a second.

    A burst of late replies after an outage is therefore too late, and the replies of a slow server are not.
    """

    __slots__ = ("_clock", "seconds")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: float = LONGEST_REPLY
        """Seconds that the next reply may take."""

    def now(self) -> float:
        """Return the moment, for `answered`."""
        return self._clock.monotonic()

    def answered(self, sent: float) -> float:
        """Note the reply to a request sent at a moment; return the seconds that it took."""
        took = self._clock.monotonic() - sent
        self.seconds = max(LONGEST_REPLY, 2 * took)
        return took
