"""Bundles of puts: puts of one multi that are stored in few znodes.

Only runs of puts without options are bundled, and no other put of the multi comes between two messages of a run. So
messages that are put in one order are stored in this order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.layout import (
    CLIENT_DIGITS,
    BundledMessage,
    ItemRef,
    bundle_prefix,
    can_bundle,
    encode_bundle,
    is_plain_prefix,
)
from aiozkqueue.zookeeper import Create

from .write import SharedOps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Result

    from .write import AtomicWrite, Composition

#: The fewest puts that are bundled, unless the queue's maximum is smaller.
FEWEST = 32


class PlainPut(Protocol):
    """A put without additions."""

    @property
    def state(self) -> QueueState:
        """The queue."""
        ...

    @property
    def id(self) -> str:
        """The message's id."""
        ...

    @property
    def prefix(self) -> str:
        """The item's name up to its sequence."""
        ...

    @property
    def data(self) -> bytes:
        """The item's bytes."""
        ...


class BundledPuts:
    """The puts of one multi that may be bundled."""

    __slots__ = ("_created", "_ids", "_members", "_puts", "_state")

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._state: QueueState | None = None
        self._puts: list[PlainPut] = []
        self._members: list[tuple[AtomicWrite, RefusalHandler]] = []  # of each put
        self._created: list[tuple[int, QueueState]] = []

    def add(self, composition: Composition, part: RefusalHandler, puts: Sequence[PlainPut]) -> None:
        """Add puts to one queue of the current write."""
        assert composition.write is not None  # noqa: S101 - only the committer makes bundles
        member = (composition.write, part)
        for put in puts:
            if self._puts and not self._follows(put):
                self.flush(composition)
            self._state = put.state
            self._puts.append(put)
            self._members.append(member)
            if not (can_bundle(put.id, put.data) and is_plain_prefix(put.prefix)):
                self._leave(composition, put)

    def flush(self, composition: Composition) -> None:
        """Add the creates of all puts so far: of bundles, or of single items if they are few."""
        state, puts, members = self._state, self._puts, self._members
        self._state, self._puts, self._members = None, [], []
        if state is None:
            return
        most = state.snapshot.bundle
        if len(puts) < min(FEWEST, most):
            for put, member in zip(puts, members, strict=True):
                self._create(composition, put.prefix, put.data, state, [member])
            return
        number = -(-len(puts) // most)
        bounds = [len(puts) * index // number for index in range(number + 1)]
        for start, end in pairwise(bounds):
            messages = [BundledMessage(put.id, put.data) for put in puts[start:end]]
            prefix = bundle_prefix(self._ids.next(), messages)
            self._create(composition, prefix, encode_bundle(messages), state, members[start:end])

    def note_sequences(self, results: Sequence[Result]) -> None:
        """Note the sequence numbers of the new znodes."""
        for index, state in self._created:
            path = results[index]
            if isinstance(path, str):
                state.note_sequence(path)

    def _follows(self, put: PlainPut) -> bool:
        """Whether a put may be in one bundle with the one before it: their ids have one nonce, and ascend."""
        last = self._puts[-1].id
        return put.state is self._state and put.id > last and put.id[:CLIENT_DIGITS] == last[:CLIENT_DIGITS]

    def _leave(self, composition: Composition, put: PlainPut) -> None:
        """Store the last put as a single item, after those before it."""
        self._puts.pop()
        member = self._members.pop()
        self.flush(composition)
        self._create(composition, put.prefix, put.data, put.state, [member])

    def _create(
        self,
        composition: Composition,
        prefix: str,
        data: bytes,
        state: QueueState,
        members: list[tuple[AtomicWrite, RefusalHandler]],
    ) -> None:
        shared = SharedOps()
        shared.members += dict.fromkeys(members)
        self._created.append((len(composition.operations), state))
        path = ItemRef(state.snapshot.lanes.next_path(), prefix).path
        composition.add(Create(path, data, sequential=True), shared)
