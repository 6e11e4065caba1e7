"""A claim: an item that this session has locked. The locks of a session are limited by a budget, in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from aiozkqueue.layout import EMPTY_HEADER, lane_at, name_at, priority_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiozkqueue.layout import Header, ItemName
    from aiozkqueue.zookeeper import Operation

    from .hooks import ItemFate
    from .queue_state import QueueState


#: Bytes: Σ(path length + 4) over a session's ephemerals. The server deletes them all in one transaction when the
#: session ends. One such transaction of twice the request limit has been seen to kill every server of an ensemble.
EPHEMERAL_CAP = 256 * 1024

DispositionT = TypeVar("DispositionT")


class GroupHold(Protocol[DispositionT]):
    """The lock on a claim's group, which is the claim's lock as well."""

    @property
    def group(self) -> str:
        """The lock's name: ``g`` and the hash of the group."""
        ...

    @property
    def live(self) -> Sequence[Claim]:
        """The claims of the group that are not decided, oldest first."""
        ...

    def checks(self, claim: Claim) -> Sequence[Operation]:
        """Return the assertion that this session still holds a message and its group."""
        ...

    def lock_operations(
        self, dispositions: Mapping[Claim, DispositionT], due: Callable[[DispositionT], int]
    ) -> Iterable[tuple[Claim, QueueState | None, Operation]]:
        """Return the operations of these ends on the lock; called again for each new attempt.

        Each has the claim that it is about, and the handler of its refusal (None: the claim).
        """
        ...

    def ended(self, claim: Claim, disposition: DispositionT, due: Callable[[DispositionT], int]) -> None:
        """Handle the end of a message, which has been applied."""
        ...

    def over(self) -> None:
        """Handle the end of the ZooKeeper session, and with it of the lock."""
        ...

    def lose(self, pause: float = 0.0) -> None:
        """Handle the refusal of a claim: the lock is no longer ours."""
        ...


class _Undecoded:
    """The placeholder for a value that has not been decoded yet."""


UNDECODED = _Undecoded()


class Claim:
    """One item, locked by one of our ZooKeeper sessions.

    The fence is ``version``, the item's data version as read *under* the lock. Taking the lock away raises that
    version, so every multi that checks or deletes the item at ``version`` fails from then on.
    """

    bundled: ClassVar[bool] = False
    """Whether it is a `BundledClaim`; otherwise the message is a single item."""

    # Most claims leave these as they are. They belong to the class, because setting them for every claim is slower.
    group_lock: GroupHold[Any] | None = None
    """The lock on the message's group, instead of the message's own lock; None for a message without a group."""
    version: int = -1
    raw: bytes = b""
    """The stored bytes."""
    body: bytes = b""
    header: Header = EMPTY_HEADER
    remainder: bytes | None = None
    """The bytes of the item's other messages, which stay when this one is consumed; None: there are none."""
    created: int = 0
    attempts: int = 0
    """The number of counted attempts; this one is among them once it is `recorded`."""
    retries: int = 0
    """The length of the last schedule that a handler raised; see `AttemptRecord`."""
    error: str | None = None
    """The error of the last attempt that was recorded."""
    meta_version: int | None = None
    """The version of the attempt record; None: there is no record."""
    fields: ItemName | None = None
    """The parsed name of the item, if it holds more than the id."""
    claimed_at: int | None = None
    """The time of the claim, ms in ZooKeeper's time."""
    value: object = UNDECODED
    """The payload, decoded to the type of the queue that took it."""
    recorded: bool = False
    """Whether this attempt has been recorded in ``meta/``."""
    record_refused: bool = False
    """Whether ZooKeeper refuses changes of its attempt record; later writes leave the record out."""
    delivered: bool = False
    """Whether it has been delivered to a handler."""
    delivered_at: float | None = None
    """The time of the delivery, by the monotonic clock; None unless metrics are on."""

    def __init__(  # noqa: PLR0917 - called for every message: keyword arguments would be measurably slower
        self,
        state: QueueState,
        place: str,
        message_id: str,
        path: str,
        lock: str,
        owner: str,
        generation: int,
        budget: EphemeralBudget,
        size: int,
        group_lock: GroupHold[Any] | None = None,
    ) -> None:
        self.state: QueueState = state
        self.place: str = place
        self.id: str = message_id
        self.path: str = path
        """The item's znode."""
        self.lock: str = lock
        """The lock's znode."""
        self.owner: str = owner
        """The id of the client that locked it."""
        self.generation: int = generation
        self.budget: EphemeralBudget = budget
        self.size: int = size
        """The lock's share of the budget; 0 if a group lock or a bundle holds the item."""
        if group_lock is not None:
            self.group_lock = group_lock

    @property
    def plain(self) -> bool:
        """Whether the item has only its lock: no group, attempts, or key, and no further messages."""
        return self.group_lock is None and self.fields is None and self.meta_version is None and self.remainder is None

    @property
    def name(self) -> str:
        """The item's name."""
        return name_at(self.place)

    @property
    def wakeup(self) -> str:
        """The znode to write to when the item is released. Idle consumers may watch only its priority."""
        lane = lane_at(self.place)
        return self.state.paths.at(lane) if priority_of(lane) else self.state.paths.items

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1, after those already counted; see `Message.attempt`."""
        return self.attempts if self.recorded else self.attempts + 1

    @property
    def attempts_made(self) -> int:
        """The number of attempts so far, counting this one if the message was delivered."""
        return self.attempt if self.delivered else self.attempts

    @property
    def used_up(self) -> bool:
        """Whether the policy and a handler's schedule allow no further attempt after those already counted."""
        allowed = self.state.snapshot.policy.allowed(self.retries)
        return allowed is not None and self.attempts_made >= allowed

    def settled(self, fate: ItemFate) -> None:
        """Record that the lock is known to be gone, and notify the claim listener of the item's fate."""
        if self.group_lock is not None:
            self.group_lock.over()
            return
        self.budget.free(self.size)
        for listener in self.state.claim_listeners:
            listener.claim_settled(self, fate)

    def log_ids(self, transaction_id: str | None = None) -> dict[str, object]:
        """Return ``extra=`` for a log record about the message and, if given, the work that decides it."""
        ids: dict[str, object] = {"queue": self.state.name, "message_id": self.id, "attempt": self.attempt}
        if transaction_id is not None:
            ids["transaction_id"] = transaction_id
        return ids

    def __repr__(self) -> str:
        return f"<Claim {self.id} of {self.state.name!r}>"


class EphemeralBudget:
    """The bytes of lock paths that one ZooKeeper session may still create."""

    __slots__ = ("_waiting", "used")

    def __init__(self, events: dict[asyncio.Event, None]) -> None:
        self.used: int = 0
        self._waiting = events

    @property
    def left(self) -> int:
        """The remaining bytes of lock paths."""
        return EPHEMERAL_CAP - self.used

    def spend(self, size: int) -> None:
        """Count an ephemeral that is about to be created."""
        self.used += size

    def free(self, size: int) -> None:
        """Stop counting an ephemeral that is known to be gone; wake the tasks that wait for budget."""
        self.used -= size
        while self._waiting:
            self._waiting.popitem()[0].set()


class SessionBudget:
    """The budget of the current ZooKeeper session. A new session starts with a full one."""

    def __init__(self) -> None:
        self._generation = 0
        self._waiting: dict[asyncio.Event, None] = {}  # a dict for its order, which a set lacks
        self._budget = EphemeralBudget(self._waiting)

    def of(self, generation: int) -> EphemeralBudget:
        """Return the budget of a session; for a session that has ended, a new one that nothing else uses."""
        if generation != self._generation:
            if generation < self._generation:
                return EphemeralBudget(self._waiting)
            self._generation, self._budget = generation, EphemeralBudget(self._waiting)
        return self._budget

    def notify(self, event: asyncio.Event) -> None:
        """Set ``event`` when budget may have become available."""
        self._waiting[event] = None
