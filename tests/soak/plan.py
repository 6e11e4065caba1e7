"""The parameters and the queues of a soak."""

from __future__ import annotations

import aiozkqueue as zq

ROOT = "/soak"
SESSION_TIMEOUT = 4.0
#: A client may be started while the whole ensemble is down.
CONNECT_TIMEOUT = 120.0
#: The average number of seconds between two puts of a producer.
PAUSE = 0.06
#: Producers wait if more messages than this are in the queues, because the soak tests faults and not a backlog.
MOST_WAITING = 100

POLICIES: dict[str, zq.Policy] = {
    "in": zq.AtLeastOnce(backoff=zq.Fixed(0.2)),
    "work": zq.ConsumeTimes(3, backoff=zq.Fixed(0.2)),
    "once": zq.ConsumeOnce(),
    "done": zq.ConsumeTimes(50, backoff=zq.Fixed(0.1)),
}
#: The number of deliveries that each queue allows.
LIMIT: dict[str, int | None] = {"in": None, "work": 3, "once": 1, "done": 50}
#: The queues that receive a message for each message consumed from a queue.
NEXT: dict[str, tuple[str, ...]] = {"in": ("work",), "work": ("done",), "once": ("done",), "done": ()}
LANES = {"in": 1, "work": 1, "once": 1, "done": 2}
#: The maximum number of messages in a bundle. It is small, so that the puts of one client and of one commit suffice.
BUNDLE = {"in": 3, "work": 1, "once": 1, "done": 4}

#: The programs of each client process.
CLIENTS = (
    "produce,produce,move",
    "produce,move,move",
    "move,consume:work,consume:done",
    "consume:work,consume:in",
    "listen:once,listen:done",
    "listen:once,listen:work,produce",
)
#: Seconds that a claimed message may wait for its handler in a live session, with a prefetch of 32 and with stops.
CLAIMED_AHEAD = 60.0
#: Maximum number of messages in a client whose attempt is recorded, and which its handlers have not yet received.
ON_THE_WAY = 10
