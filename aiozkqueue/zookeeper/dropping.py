"""The pauses of a client whose server drops requests because it is overloaded (``throttledOpWaitTime``).

Such a server answers each request, and pings too, but does nothing. If the client sent the requests again at once, the
server would have even more to do.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 0.01
_LONGEST: Final = 1.0  # seconds


class Dropping:
    """The requests that a server has dropped since it last carried one out. Moments are the event loop's."""

    __slots__ = ("_pause", "since", "until")

    def __init__(self) -> None:
        self.since: float | None = None
        """When the first of them was dropped; None: the last request was carried out."""
        self.until: float = 0.0
        """When the next request may be sent again."""
        self._pause = 0.0

    def dropped(self, now: float) -> None:
        """Note a dropped request: pause for longer than before if this one was sent after the last pause."""
        if self.since is None:
            self.since, self._pause = now, _FIRST
        elif now >= self.until:
            self._pause = min(2 * self._pause, _LONGEST)
        self.until = now + self._pause

    def carried_out(self) -> None:
        """Note a request that was not dropped."""
        self.since, self.until = None, 0.0
