"""An item locked by us, and the cap on the locks of a session."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import EMPTY_HEADER, priority_of

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.layout import Header, ItemName
    from aiozkqueue.queue.claim.group_lock import GroupLock

    from .queue_state import QueueState

#: Σ(path length + 4) of a session's ephemerals. The server writes them all into one transaction when the session
#: ends, and one twice its request limit has been seen to kill every server of an ensemble.
EPHEMERAL_CAP = 256 * 1024


class Fate(enum.Enum):
    """What has become of an item when our lock on it is gone."""

    GONE = enum.auto()
    """It has been deleted."""
    LEFT = enum.auto()
    """It is there, and nobody's to take now: another lock keeps it until its next attempt, or our session is over."""
    FREE = enum.auto()
    """It is there, to be taken at once."""


#: Looked up once, not for each message.
GONE: Final = Fate.GONE
LEFT: Final = Fate.LEFT
FREE: Final = Fate.FREE


class EphemeralBudget:
    """What one ZooKeeper session still may lock."""

    __slots__ = ("_bells", "used")

    def __init__(self, bells: dict[asyncio.Event, None]) -> None:
        self.used: int = 0
        self._bells = bells

    @property
    def left(self) -> int:
        """Bytes of path that may still be locked."""
        return EPHEMERAL_CAP - self.used

    def spend(self, size: int) -> None:
        """Count an ephemeral about to be created."""
        self.used += size

    def free(self, size: int) -> None:
        """Count one known to be gone."""
        self.used -= size
        if self._bells:
            wakeup_op(self._bells)


def wakeup_op(bells: dict[asyncio.Event, None]) -> None:
    """Let those who wait for room look again."""
    while bells:
        bells.popitem()[0].set()


class SessionBudget:
    """The budget of each ZooKeeper session; a new one starts afresh, and what was of an older one counts no more."""

    def __init__(self) -> None:
        self._generation = 0
        self._bells: dict[asyncio.Event, None] = {}  # in order, which a set's is not
        self._budget = EphemeralBudget(self._bells)

    def of(self, generation: int) -> EphemeralBudget:
        """Return the budget of a session; of one that is over, one that nobody else has."""
        if generation != self._generation:
            if generation < self._generation:
                return EphemeralBudget(self._bells)
            self._generation, self._budget = generation, EphemeralBudget(self._bells)
        return self._budget

    def wake(self) -> None:
        """Let those who wait for room look again."""
        wakeup_op(self._bells)

    def wakeup_op(self, wakeup: asyncio.Event) -> None:
        """Set an event when there may be room."""
        self._bells[wakeup] = None


class _Undecoded:
    """Stands for a value that nobody has asked for yet."""


UNDECODED = _Undecoded()


class Claim:
    """One item, locked by one ZooKeeper session of ours.

    The fence is ``version``, the item's data version as read *under* the lock: whoever takes the lock away raises it,
    so that every multi which checks or deletes the item at this version fails from then on.
    """

    __slots__ = (
        "attempts",
        "body",
        "budget",
        "created",
        "fields",
        "generation",
        "group_lock",
        "handed",
        "handed_at",
        "header",
        "id",
        "lock",
        "meta_version",
        "owner",
        "path",
        "place",
        "raw",
        "record_refused",
        "recorded",
        "rest",
        "retries",
        "since",
        "size",
        "store",
        "value",
        "version",
    )

    def __init__(  # noqa: PLR0917 - one is made for every message: names would cost more than they tell
        self,
        store: QueueState,
        place: str,
        message_id: str,
        path: str,
        lock: str,
        owner: str,
        generation: int,
        budget: EphemeralBudget,
        size: int,
        group_lock: GroupLock | None = None,
    ) -> None:
        self.store: QueueState = store
        self.place: str = place
        self.id: str = message_id
        self.path: str = path
        """The item's znode."""
        self.lock: str = lock
        """The lock's znode."""
        self.owner: str = owner
        """The client that locked it."""
        self.generation: int = generation
        self.budget: EphemeralBudget = budget
        self.size: int = size
        """What the lock takes of the budget; nothing where a tenure holds it."""
        self.group_lock: GroupLock | None = group_lock
        """The hold on its group, whose lock it is then; None for a message in no group."""
        self.version: int = -1
        self.raw: bytes = b""
        """What is stored."""
        self.body: bytes = b""
        self.header: Header = EMPTY_HEADER
        self.rest: bytes | None = None
        """What is to be left of the item when its message has been consumed: further ones; None: nothing."""
        self.created: int = 0
        self.attempts: int = 0
        self.retries: int = 0
        """Of the schedule that a handler gave last; see `AttemptRecord`."""
        self.meta_version: int | None = None
        """Of the record of attempts; None: there is none."""
        self.fields: ItemName | None = None
        """What the item's name says, when that is more than its id."""
        self.since: int | None = None
        """When it was claimed, ms in ZooKeeper's time."""
        self.value: object = UNDECODED
        """The payload decoded to the type of the queue that took it."""
        self.recorded: bool = False
        """Whether this hand-over has been recorded in ``meta/``."""
        self.record_refused: bool = False
        """Whether ZooKeeper refuses to change its record of attempts, which is left out of what is sent then."""
        self.handed: bool = False
        """Whether a handler has seen it."""
        self.handed_at: float | None = None
        """When that was, by the monotonic clock; only where it is counted."""

    @property
    def plain(self) -> bool:
        """Whether all that goes with the item is its lock: no group, no attempts, no key, nothing to be left."""
        return self.group_lock is None and self.fields is None and self.meta_version is None and self.rest is None

    @property
    def name(self) -> str:
        """The item's name."""
        return self.place.rpartition("/")[2]

    @property
    def wakeup(self) -> str:
        """The znode to write to when the item is given back, for those who wait: they may watch its priority only."""
        lane = self.place.rpartition("/")[0]
        return self.store.paths.at(lane) if priority_of(lane) else self.store.paths.items

    @property
    def attempt(self) -> int:
        """The number of this hand-over, from 1, after those that have been counted; see `Message.attempt`."""
        return self.attempts if self.recorded else self.attempts + 1

    @property
    def used_up(self) -> bool:
        """Whether the policy, and a handler's schedule, allow no hand-over after those that have been counted."""
        allowed = self.store.policy.allowed(self.retries)
        return allowed is not None and (self.attempt if self.handed else self.attempts) >= allowed

    def settled(self, fate: Fate) -> None:
        """Tell that the lock is known to be gone, and what has become of the item."""
        if self.group_lock is not None:
            self.group_lock.over()
            return
        self.budget.free(self.size)
        claim_listener = self.store.claim_listener
        if claim_listener is not None:
            claim_listener.claim_settled(self, fate)

    def __repr__(self) -> str:
        return f"<Claim {self.id} of {self.store.name!r}>"
