"""One session's lock on one message group, and the group's messages delivered in order under it.

A hold begins and ends with the lock. In between it delivers the group's messages in order. A consumer or listener gets
one at a time, the next after the end of the previous one is known to be applied. A transaction gets several, and
commits them together. While there is a next message, the end of the previous one leaves the lock in place.

**Every operation under the lock asserts the oldest remaining message, at the version read under the lock.** A session
that takes the lock away raises the version of that message, so all later operations of the old holder are refused.
Messages read ahead need no separate fence: they are delivered only after everything before them has been decided,
or together with it.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiozkqueue.layout import LockRecord
from aiozkqueue.queue.commit.orphan_locks import LockRef
from aiozkqueue.zookeeper import Check, Create, Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation


class LockFate(enum.Enum):
    """The fate of the lock when the current messages have ended."""

    KEPT = enum.auto()
    FREE = enum.auto()
    TIMED = enum.auto()  # the oldest message waits for its retry, and so does the group


class ReadMessage(NamedTuple):
    """A message read under the lock, with its disposition if it must not be delivered."""

    claim: Claim
    disposition: Disposition | None


class GroupLockOwner(Protocol):
    """Receives the decisions about group locks."""

    def keeps(self, group_lock: GroupLock) -> bool:
        """Whether there is a next message for this session, so that the lock is worth keeping."""
        ...

    def deleted(self, claim: Claim) -> None:
        """A message no longer exists."""
        ...

    def continue_group(self, group_lock: GroupLock) -> None:
        """A decision was applied, and the lock still exists."""
        ...

    def finish(self, group_lock: GroupLock, *, locked: bool) -> None:
        """The lock is no longer ours; ``locked``: no session can take the group yet."""
        ...

    def lost(self, group_lock: GroupLock, pause: float) -> None:
        """A claim was refused: another session has the lock; if not, it is removed after ``pause`` seconds."""
        ...


class GroupLock:
    """A group that this session holds."""

    __slots__ = (
        "_locks",
        "_state",
        "_timed",
        "ahead",
        "begun",
        "budget",
        "fate",
        "generation",
        "gone",
        "group",
        "live",
        "locked_at",
        "reading",
        "ref",
        "rereads",
        "settling",
        "size",
        "transaction",
        "version",
    )

    def __init__(
        self,
        locks: GroupLockOwner,
        state: QueueState,
        group: str,
        record: bytes,
        *,
        generation: int,
        budget: EphemeralBudget,
        size: int,
        begun: float,
    ) -> None:
        self._locks = locks
        self._state = state
        self.group: str = group
        """The id of the lock: ``g`` and the group's hash."""
        self.generation: int = generation
        self.budget: EphemeralBudget = budget
        self.size: int = size
        self.begun: float = begun
        self.version: int = state.version
        """The configuration version under which the next messages are read: under another, groups may differ."""
        self.ref: LockRef = LockRef(self.lock, record, state.forced_version, state.version)
        """The lock that was created, with the versions that were read before."""
        self.live: list[Claim] = []
        """Messages that are delivered, or about to be, and not decided; oldest first."""
        self.ahead: deque[ReadMessage] = deque()
        """The next messages, read under the lock."""
        self.transaction: object = None
        """The transaction that holds the group and may take more of it; None: a consumer, a listener, or no taker."""
        self.fate: LockFate = LockFate.KEPT
        self.settling: bool = False
        """Whether a write in flight decides all live messages, and the lock."""
        self.locked_at: int | None = None
        """When the lock was created, ms in ZooKeeper's time; used for the first message."""
        self.reading: bool = False
        self.rereads: int = 0
        """How often messages were released with the lock kept, or the configuration changed: messages read before that
        may be out of order."""
        self.gone: bool = False
        self._timed: Claim | None = None

    @property
    def lock(self) -> str:
        """The lock's znode."""
        return self._state.paths.lock(self.group)

    # -- operations to send

    def checks(self, claim: Claim) -> list[Check]:
        """Return the checks that a message and its group are still ours."""
        head = self.live[0] if self.live else claim
        return [Check(asserted.path, asserted.version) for asserted in dict.fromkeys((head, claim))]

    def lock_operations(
        self, dispositions: Mapping[Claim, Disposition], due: Callable[[Disposition], int]
    ) -> Iterator[tuple[Claim, QueueState | None, Operation]]:
        """Return the lock operations that go with these dispositions; called again for each resend.

        Each has the claim that it is about, and the handler of its refusal (None: the claim).
        """
        if self.gone:
            return
        if not all(claim in dispositions for claim in self.live):
            self.fate = LockFate.KEPT  # the lock stays with the undecided messages
            if self.live[0] not in dispositions:
                yield self.live[0], None, Check(self.live[0].path, self.live[0].version)
            return
        self.settling = True
        self._timed = None
        released = next((claim for claim in self.live if dispositions[claim].kind == "release"), None)
        head = self.live[0]
        if released is None and self._locks.keeps(self):
            self.fate = LockFate.KEPT
            yield head, None, Check(self.lock)
            return
        self.fate = LockFate.FREE
        yield head, None, Delete(self.lock)
        if released is not None and dispositions[released].delay:
            self.fate, self._timed = LockFate.TIMED, released
            end = due(dispositions[released])
            record = LockRecord(released.id, released.owner, end, dispositions[released].leased)
            yield released, None, Create(self.lock, record.encode())
            due_node = self._state.paths.due_node(end, released.id)
            yield released, self._state, Create(due_node, due_data(released.place, self.group))

    # -- events

    def continue_under(self, version: int) -> None:
        """Continue under another version of the configuration. Messages read ahead are read again."""
        self.version = version
        self.rereads += 1
        self.ahead.clear()

    def take_next(self) -> Claim | None:
        """Move the next message from those read ahead to the live ones; None: it must not be delivered."""
        claim, disposition = self.ahead.popleft()
        self.live.append(claim)
        return claim if disposition is None else None

    def ended(self, claim: Claim, disposition: Disposition, due: Callable[[Disposition], int]) -> None:
        """Record that the end of a message was applied."""
        if self.gone or claim not in self.live:
            return
        self.live.remove(claim)
        if disposition.kind == "release":
            self.rereads += 1
            self.ahead.clear()
            if claim is self._timed:
                self._state.retry_at(due(disposition), claim.id)
        else:
            self._locks.deleted(claim)
        if self.live or self.fate is LockFate.KEPT:
            if not self.live:
                self.settling = False
            self._locks.continue_group(self)
        else:
            self._locks.finish(self, locked=self.fate is LockFate.TIMED)

    def over(self) -> None:
        """End the hold: the ZooKeeper session has ended, and the lock with it."""
        if not self.gone:
            self._locks.finish(self, locked=False)

    def lose(self, pause: float = 0.0) -> None:
        """End the hold: a claim was refused."""
        if not self.gone:
            self._locks.lost(self, pause)


def due_data(place: str, group: str) -> bytes:
    """Return the data of the due node of a group's lock: the place of the waiting item, and the lock."""
    return f"{place}\n{group}".encode()
