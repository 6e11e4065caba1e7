"""The record of one run: the results that clients received, and the final state.

Every message has a unique token, by which it is recognised everywhere. Changes that are decided together (a put, a
delivery, a transaction) are a `Unit`.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


class Status(enum.Enum):
    """The final result of a unit, as the client knows it."""

    PENDING = "nothing"  # the process was killed, or still runs
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Delivery:
    """A message shown to a handler."""

    token: str
    queue: str
    client: str
    session: int
    """The ZooKeeper session that holds its lock."""
    at: float
    until: float | None = None
    """The time when the handler released it: began to settle, or ended."""


@dataclass(slots=True, eq=False)
class Unit:
    """Changes that are decided together."""

    client: str
    takes: list[Delivery] = field(default_factory=list)
    puts: dict[str, str] = field(default_factory=dict)
    """Token to queue."""
    rejects: set[str] = field(default_factory=set)
    keeps: set[str] = field(default_factory=set)
    """The tokens of messages that its commit releases."""
    status: Status = Status.PENDING
    why: str = ""
    decided: float = float("inf")
    """The time when the client learned the result."""


@dataclass(slots=True)
class Opened:
    """A forced release of all claims on a queue."""

    queue: str
    began: float
    ended: float = float("inf")


@dataclass(slots=True)
class Purged:
    """A purge of all unclaimed messages of a queue."""

    queue: str
    removed: float = float("inf")
    """The number of messages; unknown until the call has returned."""


@dataclass
class Final:
    """The state of the server after all clients had finished and the remaining messages had been taken."""

    items: dict[str, list[str]] = field(default_factory=dict)
    """The tokens of the messages in each queue."""
    kept: dict[str, list[str]] = field(default_factory=dict)
    """The tokens of further messages, which a client holds that may continue later."""
    dead: dict[str, list[str]] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    """Locks, attempts and timers without an item."""
    strangers: list[str] = field(default_factory=list)
    """Consumers in the registry whose session has ended."""

    def copies(self) -> Counter[str]:
        """Return the number of stored copies of each message, without dead letters."""
        return Counter(token for queues in (self.items, self.kept) for tokens in queues.values() for token in tokens)


@dataclass
class History:
    """All observations of one run."""

    limits: dict[str, int | None] = field(default_factory=dict)
    """By queue, the number of deliveries that its policy allows: the maximum of several policies."""
    strictest: dict[str, int] = field(default_factory=dict)
    """By queue, the fewest deliveries after which any of its policies removes a message."""
    drops: set[str] = field(default_factory=set)
    """Queues whose exhausted messages are dropped."""
    units: list[Unit] = field(default_factory=list)
    sessions_over: dict[int, float] = field(default_factory=dict)
    """The time when the server ended each ZooKeeper session."""
    opened: list[Opened] = field(default_factory=list)
    ahead: float = float("inf")
    """The maximum time between a message's claim and its delivery."""
    purged: list[Purged] = field(default_factory=list)
    redriven: Counter[str] = field(default_factory=Counter)
    """By queue, the number of times that dead letters were redriven."""
    final: Final = field(default_factory=Final)
    trouble: list[str] = field(default_factory=list)
    """Forbidden events: errors in the session's own tasks, unexpected exceptions, endless waits."""
    miscounted: list[str] = field(default_factory=list)
    """Sessions whose count of their ephemerals is wrong after all their claims have ended."""
    interrupted: int = 0
    """Deliveries that may be recorded but unseen: of cancelled takers, and of killed and expired sessions."""
    forced_open: Counter[str] = field(default_factory=Counter)
    """By queue, the number of claims that were released by force: the attempt of each may be recorded but unseen."""
    parts: dict[type[object], object] = field(default_factory=dict)
    """The records of features, see `part`."""

    def part(self, kind: type[T]) -> T:
        """Return a feature's own record of the history: one object of its own type, created on first use."""
        made = self.parts.setdefault(kind, kind())
        assert isinstance(made, kind)
        return made

    def deliveries(self) -> dict[str, list[Delivery]]:
        """Return the deliveries of each message, in order."""
        by_token: defaultdict[str, list[Delivery]] = defaultdict(list)
        for unit in self.units:
            for delivery in unit.takes:
                by_token[delivery.token].append(delivery)
        for several in by_token.values():
            several.sort(key=lambda take: take.at)
        return by_token

    def put(self) -> dict[str, tuple[str, Unit]]:
        """Return the tokens of all puts, each with its queue and unit."""
        return {token: (queue, unit) for unit in self.units for token, queue in unit.puts.items()}

    def ends(self) -> Counter[str]:
        """Return the number of times that each message was consumed by a reported commit, or is a dead letter."""
        ends = Counter(token for tokens in self.final.dead.values() for token in tokens)
        for unit in self.units:
            if unit.status is Status.COMMITTED:
                ends.update(
                    {
                        delivery.token
                        for delivery in unit.takes
                        if delivery.token not in unit.rejects and delivery.token not in unit.keeps
                    }
                )
        return ends

    def shown_after_session_end(self, delivery: Delivery) -> bool:
        """Whether its process was paused between the claim and the handler, and the session ended meanwhile.

        Such a delivery cannot be prevented; its commit must fail.
        """
        return self.sessions_over.get(delivery.session, float("inf")) <= delivery.at

    def forced_out(self, delivery: Delivery) -> bool:
        """Whether its claim may have been released by force before the delivery.

        Its holder is not notified. Its commit must fail.
        """
        return any(
            opened.queue == delivery.queue and opened.began <= delivery.at and opened.ended >= delivery.at - self.ahead
            for opened in self.opened
        )

    def exhausted(self, queue: str, deliveries: int) -> bool:
        """Whether a message with this many deliveries may have reached the limit of its policy."""
        limit = self.strictest.get(queue, self.limits.get(queue))
        return limit is not None and deliveries + self.interrupted + self.forced_open[queue] >= limit
