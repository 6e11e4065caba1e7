"""The states of a unit of work."""

from __future__ import annotations

import enum

from aiozkqueue.queue.outcome import Outcome


class WorkState(enum.Enum):
    """Where a unit of work is between its first message and its outcome."""

    OPEN = ("open", Outcome.OPEN, False)
    SETTLING = ("being settled", Outcome.UNKNOWN, False)
    COMMITTED = ("committed", Outcome.COMMITTED, True)
    ROLLED_BACK = ("rolled back", Outcome.ROLLED_BACK, True)
    IN_DOUBT = ("in doubt", Outcome.UNKNOWN, True)

    def __init__(self, words: str, outcome: Outcome, final: bool) -> None:  # noqa: FBT001 - a member's value
        self.words = words
        self.outcome = outcome
        self.final = final
