"""Bundles of puts: puts of one multi that are stored in few znodes.

Only runs of puts without options are bundled, and no other put of the multi comes between two messages of a run. So
messages that are put in one order are stored in this order. The puts of a run belong to the same pending batch, or to
none.
"""

from __future__ import annotations

from itertools import chain, pairwise
from operator import lt
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import (
    CLIENT_DIGITS,
    ID_DIGITS,
    LANE_END_DIGITS,
    LARGEST_BUNDLED,
    SEQUENCE_DIGITS,
    ItemRef,
    batch_field,
    bundle_prefix,
    encode_bundle,
)
from aiozkqueue.zookeeper import Create

from .put import PlainPuts, columns_of
from .write import SharedOps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Result

    from .put import Put
    from .write import AtomicWrite, Composition

#: Characters of the last field of a put's name, its id with a letter before it and a dash after it.
_ID_FIELD: Final = ID_DIGITS + 2
#: The fewest puts that are bundled, unless the queue's maximum is smaller.
FEWEST = 32


class _StoredPuts(SharedOps):
    """The handler of the create of a bundle or a single item. A refusal concerns the writes of the puts in it."""

    __slots__ = ("_stored",)

    def __init__(self, members: list[tuple[AtomicWrite, RefusalHandler]], stored: range) -> None:
        self.members = members  # of each put of the multi
        self._stored = stored

    def handlers(self) -> list[tuple[AtomicWrite, RefusalHandler]]:
        """Return the writes of these puts, which are separate, and the handler of each."""
        members = self.members
        puts = [(*members[each], each - members.index(members[each])) for each in self._stored]
        return list(dict.fromkeys(atomic_write.handler_at(part, offset) for atomic_write, part, offset in puts))


class BundledPuts:
    """The puts of one multi that may be bundled."""

    __slots__ = ("_created", "_ids", "_members", "_puts", "_state", "refused")

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._state: QueueState | None = None
        self._puts: list[Sequence[Put]] = []  # of each write
        self._members: list[tuple[AtomicWrite, RefusalHandler]] = []  # of each put
        self._created: list[tuple[int, QueueState]] = []
        self.refused: set[QueueState] = set()
        """The queues whose configuration does not say yet that they may have bundles; their puts are single items."""

    def add(self, composition: Composition, part: RefusalHandler, puts: Sequence[Put]) -> None:
        """Add puts without additions to one queue of the current write."""
        assert composition.write is not None  # noqa: S101 - only the committer makes bundles
        if puts[0].state is not self._state:
            self.flush(composition)
            self._state = puts[0].state
        self._puts.append(puts)
        self._members += [(composition.write, part)] * len(puts)

    def flush(self, composition: Composition) -> None:
        """Add the creates of all puts so far: of bundles, or of single items if they are few."""
        state, parts, members = self._state, self._puts, self._members
        self._state, self._puts, self._members = None, [], []
        if state is None:
            return
        puts = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        ids, bodies = columns_of(puts)
        most, allowed = state.snapshot.bundle, state.config.bundled
        for first, last in _runs(puts, ids, bodies):
            few = last - first < min(FEWEST, most)
            if not (few or allowed):
                self.refused.add(state)
            if few or not allowed:
                for each, put in enumerate(puts[first:last], first):
                    self._create(composition, put.prefix, put.data, state, _StoredPuts(members, range(each, each + 1)))
                continue
            batch = batch_field(puts[first].prefix) or ""
            for start, end in _equal_parts(first, last, most):
                prefix = bundle_prefix(self._ids.next(), ids[start:end], batch)
                data = encode_bundle(ids[start:end], bodies[start:end])
                self._create(composition, prefix, data, state, _StoredPuts(members, range(start, end)))
                composition.count_bundled(state, end - start - 1, [write for write, _ in _distinct(members[start:end])])

    def note_sequences(self, results: Sequence[Result]) -> None:
        """Note the sequence numbers of the new znodes."""
        for index, state in self._created:
            path = results[index]
            if isinstance(path, str) and path[-SEQUENCE_DIGITS:] >= LANE_END_DIGITS:
                state.note_lane_end(path)

    def _create(
        self, composition: Composition, prefix: str, data: bytes, state: QueueState, stored: _StoredPuts
    ) -> None:
        self._created.append((len(composition.operations), state))
        path = ItemRef(state.snapshot.lanes.next_path(), prefix).path
        composition.add(Create(path, data, sequential=True), stored)


def _distinct(members: list[tuple[AtomicWrite, RefusalHandler]]) -> list[tuple[AtomicWrite, RefusalHandler]]:
    """Return the members without duplicates; the puts of one write are next to each other."""
    return members[:1] if members[0] is members[-1] else list(dict.fromkeys(members))


def _runs(puts: Sequence[Put], ids: Sequence[str], bodies: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the start and end of each run of puts that may be bundled; a put that may not is in no run with others."""
    if _may_bundle(puts, ids, bodies):
        return [(0, len(puts))]
    pairs = [slice(position - 1, position + 1) for position in range(1, len(puts))]
    bounds = [pair.start + 1 for pair in pairs if not _may_bundle(puts[pair], ids[pair], bodies[pair])]
    return list(pairwise([0, *bounds, len(puts)]))


def _may_bundle(puts: Sequence[Put], ids: Sequence[str], bodies: Sequence[bytes]) -> bool:
    """Whether puts may be in one bundle.

    They are small, without options, and of one pending batch or of none. Their ids share a nonce and ascend.
    """
    return (
        max(map(len, bodies)) <= LARGEST_BUNDLED
        and set(map(len, ids)) == {ID_DIGITS}
        and all(map(lt, ids, ids[1:]))
        and ids[0][:CLIENT_DIGITS] == ids[-1][:CLIENT_DIGITS]  # and so do all between them
        and len(batches := _batch_fields(puts)) == 1
        and None not in batches
    )


def _batch_fields(puts: Sequence[Put]) -> set[str | None]:
    """Return the `batch_field` of each put, where all ids have the same length."""
    if type(puts) is PlainPuts:
        return {puts.batch}
    different = {put.prefix[:-_ID_FIELD]: put.prefix for put in puts}  # by the part before the id
    return set(map(batch_field, different.values()))


def _equal_parts(start: int, end: int, most: int) -> Iterable[tuple[int, int]]:
    """Return the bounds of as few equal parts as possible with at most ``most`` puts each."""
    number = -(-(end - start) // most)
    return pairwise([start + (end - start) * index // number for index in range(number + 1)])
