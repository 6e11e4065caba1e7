"""What programs store, one story a feature: `made` is run once for each version of the layout, by the code of its time;
`found` by the code of today, on what any version has stored.

A story reads what it finds, takes it, settles it, and leaves its queues without a trace of it.
"""

from __future__ import annotations

from .deliveries import Attempts, DeadLetters, Grouped, Held, Leased, PastEnds
from .payloads import Keyed, Payloads, Scheduled, Spread, Tagged
from .services import Divided, HttpKeys, Moved, Notified, Posted, Recurring, Shared, Streamed
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
    Tagged(),
    Leased(),
    Spread(),
    Moved(),
    Posted(),
    Recurring(),
    Notified(),
    HttpKeys(),
    Streamed(),
    Divided(),
    Shared(),
    Held(),  # the last: what comes after it would be inside its transaction
]
