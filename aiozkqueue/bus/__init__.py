"""Typed events, posted once and handled by every subscriber. On top of `aiozkqueue.queue`.

- `events` says how an event is named and read: its own type first, then the types that it is one of. Pure.
- `groups` keeps the subscriber groups of a bus: each gets every event, in its own queue.
- `registered` lists the buses.
- `bus` posts, alone or in a transaction, and runs the subscribers; a retry runs only those that failed.
"""

from __future__ import annotations

from .bus import Bus
from .registered import Buses

__all__ = ["Bus", "Buses"]
