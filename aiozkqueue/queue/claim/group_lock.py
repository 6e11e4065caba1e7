"""The hold of one session on one group: its lock, and the group's messages one after the other under it.

A tenure begins with the lock and ends with it. In between it shows the group's messages in their order: to a consumer
or listener one at a time, the next when the end of the last is known to be applied; to a transaction several, which it
decides together. While there is a next one, its end leaves the lock where it is.

**Whatever is done under the lock touches the oldest message that is left, at the version read under the lock.** Whoever
takes the lock away raises the version of that one; so all that the old holder sends from then on is refused. What has
been read ahead needs no fence of its own: it is shown only when all before it has been decided, or together with it.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiozkqueue.layout import LockRecord
from aiozkqueue.zookeeper import Check, Create, Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation


class Fate(enum.Enum):
    """What becomes of the lock when what holds it now has ended."""

    KEPT = enum.auto()
    FREE = enum.auto()
    TIMED = enum.auto()  # the oldest message waits for its retry, and the group with it


class Read(NamedTuple):
    """A message read under the lock; with it, how it ends when it must not be handed over."""

    claim: Claim
    disposition: Disposition | None


class GroupLockOwner(Protocol):
    """Who goes on when something about a tenure is decided."""

    def keeps(self, group_lock: GroupLock) -> bool:
        """Whether there is a next message for this session, so that the lock is worth keeping."""
        ...

    def deleted(self, claim: Claim) -> None:
        """A message is gone."""
        ...

    def go_on(self, group_lock: GroupLock) -> None:
        """Something has been decided, and the lock is still there."""
        ...

    def finish(self, group_lock: GroupLock, *, locked: bool) -> None:
        """The lock is not ours any more; ``locked``: nobody can take it yet."""
        ...

    def lost(self, group_lock: GroupLock) -> None:
        """A claim was refused: the lock is another's, unless somebody tampered with an item."""
        ...


class GroupLock:
    """A group held."""

    __slots__ = (
        "_claim_listener",
        "_store",
        "_timed",
        "ahead",
        "begun",
        "budget",
        "fate",
        "forced_version",
        "generation",
        "gone",
        "group",
        "live",
        "owner",
        "reading",
        "record",
        "released",
        "settling",
        "since",
        "size",
        "version",
    )

    def __init__(
        self,
        claim_listener: GroupLockOwner,
        store: QueueState,
        group: str,
        record: bytes,
        *,
        generation: int,
        budget: EphemeralBudget,
        size: int,
        begun: float,
    ) -> None:
        self._claim_listener = claim_listener
        self._store = store
        self.group: str = group
        """What the lock is called by: ``g`` and the group's hash."""
        self.record: bytes = record
        """The data of the lock, which tells it from any other's."""
        self.generation: int = generation
        self.budget: EphemeralBudget = budget
        self.size: int = size
        self.begun: float = begun
        self.version: int = store.version
        """The configuration it was begun under: under another, the group may be another."""
        self.forced_version: int = store.forced_version
        """See `QueueState.forced_version`: known before the lock was made."""
        self.live: list[Claim] = []
        """Shown, or about to be, and not decided; oldest first."""
        self.ahead: deque[Read] = deque()
        """Read under the lock, and next."""
        self.owner: object = None
        """The transaction that has it, and may have more of it; None: a consumer or listener, or nobody."""
        self.fate: Fate = Fate.KEPT
        self.settling: bool = False
        """Whether what is under way decides all that is live, and the lock."""
        self.since: int | None = None
        """When the lock was made, ms in ZooKeeper's time, for the first message."""
        self.reading: bool = False
        self.released: int = 0
        """How often messages were given back with the lock kept: what was read ahead before that is not next."""
        self.gone: bool = False
        self._timed: Claim | None = None

    @property
    def lock(self) -> str:
        """The lock's znode."""
        return self._store.paths.lock(self.group)

    # -- what is sent

    def checks(self, claim: Claim) -> list[Check]:
        """Assert that a message and its group are still ours."""
        head = self.live[0] if self.live else claim
        return [Check(one.path, one.version) for one in dict.fromkeys((head, claim))]

    def lock_operations(
        self, dispositions: Mapping[Claim, Disposition], due: Callable[[Disposition], int]
    ) -> Iterator[tuple[Claim | QueueState, Operation]]:
        """Say what goes with these ends for the lock; asked again when they are sent again."""
        if self.gone:
            return
        if not all(claim in dispositions for claim in self.live):
            self.fate = Fate.KEPT  # by what is not decided with these
            if self.live[0] not in dispositions:
                yield self.live[0], Check(self.live[0].path, self.live[0].version)
            return
        self.settling = True
        self._timed = None
        first = next((claim for claim in self.live if dispositions[claim].kind == "release"), None)
        head = self.live[0]
        if first is None and self._claim_listener.keeps(self):
            self.fate = Fate.KEPT
            yield head, Check(self.lock)
            return
        self.fate = Fate.FREE
        yield head, Delete(self.lock)
        if first is not None and dispositions[first].delay:
            self.fate, self._timed = Fate.TIMED, first
            end = due(dispositions[first])
            yield first, Create(self.lock, LockRecord(first.id, first.owner, end, dispositions[first].leased).encode())
            yield self._store, Create(self._store.paths.due_node(end, first.id), due_data(first.place, self.group))

    # -- what has happened

    def show(self) -> Claim | None:
        """Take the next message out of what was read ahead; None when it is decided by itself."""
        claim, disposition = self.ahead.popleft()
        self.live.append(claim)
        return claim if disposition is None else None

    def ended(self, claim: Claim, disposition: Disposition, due: Callable[[Disposition], int]) -> None:
        """The end of a message has been applied."""
        if self.gone or claim not in self.live:
            return
        self.live.remove(claim)
        if disposition.kind == "release":
            self.released += 1
            self.ahead.clear()
            if claim is self._timed:
                self._store.retry_at(due(disposition), claim.id)
        else:
            self._claim_listener.deleted(claim)
        if self.live or self.fate is Fate.KEPT:
            if not self.live:
                self.settling = False
            self._claim_listener.go_on(self)
        else:
            self._claim_listener.finish(self, locked=self.fate is Fate.TIMED)

    def over(self) -> None:
        """The ZooKeeper session is over, and the lock with it."""
        if not self.gone:
            self._claim_listener.finish(self, locked=False)

    def lose(self) -> None:
        """A claim was refused."""
        if not self.gone:
            self._claim_listener.lost(self)


def due_data(place: str, group: str) -> bytes:
    """What the due node of a group's lock holds: where the item lies that waits, and the lock."""
    return f"{place}\n{group}".encode()
