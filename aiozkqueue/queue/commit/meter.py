"""The counters and histograms of a session, kept once metrics are requested. Pure.

A session without a meter counts nothing. Only applied writes are reported to the meter, so each count is the number of
events that have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.runtime.histogram import Histogram
from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiozkqueue.queue.state.claim import Claim

#: Upper bounds in seconds: from the time of an immediate delivery to an hour in the queue.
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
#: From this attempt on, a message that is released counts as one that keeps failing.
MANY_ATTEMPTS: Final = 10
#: Upper bounds of the number of atomic writes in one request.
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class QueueFigures:
    """The counters of this session for one queue. They never decrease."""

    __slots__ = ("consumed", "dead", "failing", "handling", "put", "reaped", "retried", "wait")

    def __init__(self) -> None:
        self.put: int = 0
        """Messages stored."""
        self.consumed: int = 0
        """Messages delivered, and removed by a commit."""
        self.retried: int = 0
        """Messages delivered, and released for redelivery."""
        self.failing: int = 0
        """Those of them that were released after `MANY_ATTEMPTS` or more."""
        self.dead: int = 0
        """Messages moved to the dead letters."""
        self.reaped: int = 0
        """Stale messages of other nodes, reassigned."""
        self.wait: Histogram = Histogram(SECONDS)
        """For first attempts (see `Message.attempt`): from the put or the due time to the claim."""
        self.handling: Histogram = Histogram(SECONDS)
        """From the delivery until its outcome was stored."""


class Meter:
    """The counters of one session."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.queues: dict[str, QueueFigures] = {}
        self.outcomes: dict[Outcome, int] = dict.fromkeys((Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.UNKNOWN), 0)
        """Transactions and deliveries by outcome."""
        self.groups: Histogram = Histogram(SIZES)
        """Atomic writes per request."""
        self.reconnects: int = 0
        self.expirations: int = 0
        """ZooKeeper sessions that the server has expired."""

    def of(self, queue: str) -> QueueFigures:
        """Return the counters of a queue."""
        figures = self.queues.get(queue)
        if figures is None:
            figures = self.queues[queue] = QueueFigures()
        return figures

    def applied(self, count: int) -> None:
        """Count writes that were applied in one request."""
        self.groups.observe(count)

    def put(self, queue: str) -> None:
        """Count a stored message."""
        self.of(queue).put += 1

    def delivered(self, claims: Iterable[Claim]) -> None:
        """Record the delivery time of claims that have just been delivered."""
        now = self._monotonic()
        for claim in claims:
            claim.delivered_at = now

    def ended(self, claim: Claim, kind: str) -> None:
        """Count the end of a claim."""
        figures = self.of(claim.state.name)
        if kind == "dead":
            figures.dead += 1
        if not claim.delivered:
            return
        if kind == "consume":
            figures.consumed += 1
        elif kind == "release":
            figures.retried += 1
            figures.failing += claim.attempt >= MANY_ATTEMPTS
        if claim.delivered_at is not None:
            figures.handling.observe(self._monotonic() - claim.delivered_at)
        if claim.attempt == 1 and claim.claimed_at is not None:
            figures.wait.observe(max(0, claim.claimed_at - _ready_at(claim)) / 1000)

    def decided(self, outcome: Outcome) -> None:
        """Count the outcome of a transaction or delivery."""
        self.outcomes[outcome] += 1

    def state_changed(self, state: State) -> None:
        """Count a change of the connection's state."""
        if state is State.CONNECTED:
            self.reconnects += 1
        elif state is State.LOST:
            self.expirations += 1


def _ready_at(claim: Claim) -> int:
    """Return the time from which a message could be claimed, ms in ZooKeeper's time."""
    if claim.fields is not None and claim.fields.due is not None:
        return claim.fields.due
    return claim.header.put_at(claim.created)
