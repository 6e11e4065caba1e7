"""The parameters and the queues of a soak."""

from __future__ import annotations

import aiozkqueue as zq

ROOT = "/soak"
SESSION_TIMEOUT = 4.0
#: A client may be started while the whole ensemble is away.
CONNECT_TIMEOUT = 120.0
#: Seconds between two puts of a producer, on average.
PAUSE = 0.06
#: With more messages than this on the way, producers wait: what is measured is faults, not a backlog.
MOST_WAITING = 100

POLICIES: dict[str, zq.Policy] = {
    "in": zq.AtLeastOnce(backoff=zq.Fixed(0.2)),
    "work": zq.ConsumeTimes(3, backoff=zq.Fixed(0.2)),
    "once": zq.ConsumeOnce(),
    "done": zq.ConsumeTimes(50, backoff=zq.Fixed(0.1)),
}
#: By queue, how many hand-overs are allowed.
LIMIT: dict[str, int | None] = {"in": None, "work": 3, "once": 1, "done": 50}
#: Where a message that was consumed goes on to.
NEXT: dict[str, tuple[str, ...]] = {"in": ("work",), "work": ("done",), "once": ("done",), "done": ()}
LANES = {"in": 1, "work": 1, "once": 1, "done": 2}
#: The maximum number of messages of a bundle. These are few, so that the puts of one client and of one commit suffice.
BUNDLE = {"in": 3, "work": 1, "once": 1, "done": 4}

#: What each client process runs.
CLIENTS = (
    "produce,produce,move",
    "produce,move,move",
    "move,consume:work,consume:done",
    "consume:work,consume:in",
    "listen:once,listen:done",
    "listen:once,listen:work,produce",
)
#: Seconds that a message, once claimed, may wait for its handler in a session that lives: a prefetch of 32 and stops.
CLAIMED_AHEAD = 60.0
#: The most messages a client may have on the way to its handlers, their attempt recorded and not yet shown.
ON_THE_WAY = 10
