"""What is known of one run: what clients were told, and what was left at the end.

Every message carries a token of its own, so that it is known wherever it turns up. What is decided together (a put, a
delivery, a transaction) is a `Unit`.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


class Status(enum.Enum):
    """What the client was told of a unit, at last."""

    PENDING = "nothing"  # its process was killed, or still runs
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Handed:
    """A message shown to a handler."""

    token: str
    queue: str
    client: str
    session: int
    """The ZooKeeper session that holds its lock."""
    at: float
    until: float | None = None
    """When the handler let go of it: began to settle, or ended."""


@dataclass(slots=True, eq=False)
class Unit:
    """What is decided together."""

    client: str
    takes: list[Handed] = field(default_factory=list)
    puts: dict[str, str] = field(default_factory=dict)
    """Token to queue."""
    rejects: set[str] = field(default_factory=set)
    keeps: set[str] = field(default_factory=set)
    """Tokens that its commit gives back."""
    status: Status = Status.PENDING
    why: str = ""
    decided: float = float("inf")
    """When the client knew."""


@dataclass(slots=True)
class Opened:
    """All claims on a queue forced open."""

    queue: str
    began: float
    ended: float = float("inf")


@dataclass(slots=True)
class Purged:
    """All unclaimed messages of a queue removed."""

    queue: str
    removed: float = float("inf")
    """How many; nobody knows while the call has not returned."""


@dataclass
class Final:
    """What was on the server when everybody had finished and all that could be taken had been."""

    items: dict[str, list[str]] = field(default_factory=dict)
    """By queue, the tokens."""
    kept: dict[str, list[str]] = field(default_factory=dict)
    """Those that are there too, and stay with somebody who may come back for them."""
    dead: dict[str, list[str]] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    """Locks, attempts and timers that belong to nothing."""
    strangers: list[str] = field(default_factory=list)
    """Consumers in the registry whose session is over."""

    def there(self) -> Counter[str]:
        """How often each message is in a queue."""
        return Counter(token for queues in (self.items, self.kept) for tokens in queues.values() for token in tokens)


@dataclass
class History:
    """All that was seen of one run."""

    limits: dict[str, int | None] = field(default_factory=dict)
    """By queue, how many hand-overs its policy allows: the most, of several policies."""
    strictest: dict[str, int] = field(default_factory=dict)
    """By queue, the fewest hand-overs after which one of its policies, if it has had several, takes a message away."""
    drops: set[str] = field(default_factory=set)
    """Queues whose exhausted messages are dropped."""
    units: list[Unit] = field(default_factory=list)
    sessions_over: dict[int, float] = field(default_factory=dict)
    """When the server ended each ZooKeeper session."""
    opened: list[Opened] = field(default_factory=list)
    ahead: float = float("inf")
    """How long before it is shown a message may have been claimed."""
    purged: list[Purged] = field(default_factory=list)
    redriven: Counter[str] = field(default_factory=Counter)
    """By queue, how often dead letters were put back."""
    final: Final = field(default_factory=Final)
    trouble: list[str] = field(default_factory=list)
    """What nobody may ever see: errors in the session's own tasks, exceptions nobody foresaw, waiting for ever."""
    interrupted: int = 0
    """Hand-overs that may have been recorded and never been seen: cancelled takers, killed and expired sessions."""
    parts: dict[type[object], object] = field(default_factory=dict)
    """What features have recorded, see `part`."""

    def part(self, kind: type[T]) -> T:
        """A feature's own record of the history: one object of its own type, made when it is first asked for."""
        made = self.parts.setdefault(kind, kind())
        assert isinstance(made, kind)
        return made

    def handed(self) -> dict[str, list[Handed]]:
        """The hand-overs of each message, in their order."""
        by_token: defaultdict[str, list[Handed]] = defaultdict(list)
        for unit in self.units:
            for one in unit.takes:
                by_token[one.token].append(one)
        for several in by_token.values():
            several.sort(key=lambda one: one.at)
        return by_token

    def put(self) -> dict[str, tuple[str, Unit]]:
        """Each token ever put, with its queue and unit."""
        return {token: (queue, unit) for unit in self.units for token, queue in unit.puts.items()}

    def ends(self) -> Counter[str]:
        """How often each message was consumed by a commit that was told to have happened, or lies dead."""
        ends = Counter(token for tokens in self.final.dead.values() for token in tokens)
        for unit in self.units:
            if unit.status is Status.COMMITTED:
                ends.update(
                    {one.token for one in unit.takes if one.token not in unit.rejects and one.token not in unit.keeps}
                )
        return ends

    def stood_still(self, one: Handed) -> bool:
        """Whether its process was stopped between the claim and the handler, and the session ended meanwhile.

        Nobody can keep such a message from being shown; its commit is what has to fail.
        """
        return self.sessions_over.get(one.session, float("inf")) <= one.at

    def forced_out(self, one: Handed) -> bool:
        """Whether its claim may have been forced open before it was shown.

        Its holder is not told. Its commit is what has to fail.
        """
        return any(
            opened.queue == one.queue and opened.began <= one.at and opened.ended >= one.at - self.ahead
            for opened in self.opened
        )

    def exhausted(self, queue: str, handed: int) -> bool:
        """Whether a message handed over so often may have reached the limit of its policy."""
        limit = self.strictest.get(queue, self.limits.get(queue))
        return limit is not None and handed + self.interrupted >= limit
