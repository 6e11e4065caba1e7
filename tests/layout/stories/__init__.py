"""The data that programs store, with one story for each feature.

`made` runs once for each version of the layout, with the code of that version. `found` runs with the current code, on
the data of each version. It reads, takes and settles the messages of the story, and leaves its queues empty.
"""

from __future__ import annotations

from .deliveries import Attempts, Bundled, DeadLetters, Grouped, Held, Leased, PastEnds
from .ended import CancelledInHand, Deleted
from .payloads import Keyed, Payloads, PutBefore, Scheduled, Spread, Sticky, Tagged, UrgentLater
from .services import (
    Called,
    Charted,
    Divided,
    HttpKeys,
    Limited,
    Moved,
    Notified,
    Posted,
    Ran,
    Recurring,
    Shared,
    SparkBundles,
    SparkRefusals,
    Streamed,
)
from .story import Now, Old, Story

__all__ = ["STORIES", "Now", "Old", "Story"]

STORIES: list[Story] = [
    Payloads(),
    Attempts(),
    DeadLetters(),
    PastEnds(),
    Scheduled(),
    Grouped(),
    Keyed(),
    PutBefore(),
    Sticky(),
    UrgentLater(),
    Tagged(),
    Leased(),
    Spread(),
    Moved(),
    Posted(),
    Recurring(),
    Ran(),
    Notified(),
    HttpKeys(),
    Charted(),
    Streamed(),
    Divided(),
    Shared(),
    Limited(),
    Called(),
    Bundled(),
    SparkBundles(),
    SparkRefusals(),
    Deleted(),
    CancelledInHand(),
    Held(),  # the last one, because later stories would be inside its transaction
]
