"""Dissolving a bundle: it is replaced by its remaining messages as single items, in one multi.

Two kinds of sessions do this. A consumer finds a bundle with a record but without a lock: its holder has died or was
forced out, possibly because of one of the messages, so each gets a separate lock. And an operator wants to
change one message. The multi creates the lock and removes it again, so it is refused while another session holds the
bundle. It deletes the record at the version read, so it is refused if an end was applied since.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import (
    EMPTY_HEADER,
    MOST_BUNDLED,
    AttemptRecord,
    BundledMessage,
    BundleName,
    BundleRecord,
    DeadLetter,
    ItemRef,
    LockRecord,
    MalformedError,
    decode,
    decode_bundle,
    encode,
    plain_prefix,
    read_table,
    single_of,
    single_place,
)
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RequestTooLargeError,
    SetData,
    apply_until_answered,
    until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.layout import BundleTable, IdSource, QueuePaths
    from aiozkqueue.zookeeper import Operation, Versioned, ZooKeeper

log: Final = logging.getLogger(__name__)

#: Maximum number of attempts, because others may change the bundle as fast as this session reads it.
ATTEMPTS: Final = 20
#: Errors that mean that the bundle has changed since it was read.
_CHANGED: Final = (NoNodeError, BadVersionError, NodeExistsError)


class Dissolved(enum.Enum):
    """The result of an attempt to dissolve a bundle."""

    DONE = enum.auto()
    GONE = enum.auto()
    """The bundle did not exist any more."""
    HELD = enum.auto()
    """A consumer holds it."""
    OBSTRUCTED = enum.auto()
    """Its messages are single items now, and it stays without messages: another program has made znodes below it."""
    REFUSED = enum.auto()
    """It is unchanged: another program has made znodes under the names of its messages, or changes it all the time."""


class BundleState(NamedTuple):
    """A bundle as read, with its record and its lock."""

    name: BundleName
    bundle: Versioned
    record: Versioned | None
    lock: Versioned | None

    @property
    def is_empty(self) -> bool:
        """Whether its record says that no message is left."""
        try:
            done = 0 if self.record is None else BundleRecord.decode(self.record.data).done
        except MalformedError:
            return False
        return done == (1 << self.name.size) - 1

    @property
    def left(self) -> int:
        """The number of messages that are left; 1 if they do not decode, because they become one dead letter."""
        try:
            return len(self.messages())
        except MalformedError:
            return 1

    def messages(self) -> list[tuple[BundledMessage, int]]:
        """Return the messages that are left, and the counted attempts at each. Raises: MalformedError."""
        messages = decode_bundle(self.bundle.data)
        self._require_size(len(messages))
        record = BundleRecord("") if self.record is None else BundleRecord.decode(self.record.data)
        return [
            (message, record.attempts.get(position, 0))
            for position, message in enumerate(messages)
            if not record.done >> position & 1
        ]

    def errors(self) -> Mapping[int, str]:
        """Return the errors of the last attempts, by position. Raises: MalformedError."""
        return {} if self.record is None else BundleRecord.decode(self.record.data).errors

    def table(self) -> BundleTable | None:
        """Return all messages; None if some have left, or were attempted. Raises: MalformedError."""
        record = BundleRecord("") if self.record is None else BundleRecord.decode(self.record.data)
        if record.done or record.attempts:
            return None
        table = read_table(self.bundle.data)
        self._require_size(len(table.lengths))
        return table

    def _require_size(self, size: int) -> None:
        if size != self.name.size:
            raise MalformedError(f"a bundle named as one of {self.name.size} messages holds {size}")


async def read_bundle(
    zookeeper: ZooKeeper, paths: QueuePaths, place: str, generation: int | None = None
) -> BundleState | None:
    """Read a bundle; return None if it is gone, or if its name is not a bundle's."""
    (state,) = await read_bundles(zookeeper, paths, [place], generation)
    return state


async def read_bundles(
    zookeeper: ZooKeeper, paths: QueuePaths, places: Sequence[str], generation: int | None = None
) -> list[BundleState | None]:
    """Read several bundles in one request, as `read_bundle` does."""
    names = [BundleName.parse(ItemRef.parse(place).name) for place in places]
    reads: list[str] = []
    for place, name in zip(places, names, strict=True):
        if name is not None:
            reads += (paths.at(place), paths.bundle_record(name.id), paths.lock(name.id))
    nodes = iter(await zookeeper.read_versioned(reads, generation=generation) if reads else ())
    states: list[BundleState | None] = []
    for name in names:
        state = None
        if name is not None:
            bundle, record, lock = next(nodes), next(nodes), next(nodes)
            state = None if bundle is None else BundleState(name, bundle, record, lock)
        states.append(state)
    return states


async def dissolve(
    zookeeper: ZooKeeper,
    paths: QueuePaths,
    place: str,
    ids: IdSource,
    *,
    now: int,
    ours: bytes | None = None,
    generation: int | None = None,
    most: int = MOST_BUNDLED,
) -> Dissolved:
    """Replace a bundle by its remaining messages as single items, unless a consumer holds it.

    If more than ``most`` are left, or do not fit into a request, they leave in several. Between two requests, the
    record says which have left, as if their holder had died then.

    ``ours`` is the data of this session's own lock on it, if it has one; ``now`` is ZooKeeper's time, ms.

    Raises:
        NoAuthError, SessionExpiredError, ClientClosedError, RequestTooLargeError: of the zookeeper package.
    """
    again = partial(dissolve, zookeeper, paths, place, ids, now=now, ours=ours, generation=generation)
    obstructed = False
    for _ in range(ATTEMPTS):
        state = await until_answered(
            zookeeper, partial(read_bundle, zookeeper, paths, place, generation), generation=generation
        )
        if state is None:
            return Dissolved.GONE
        if state.lock is not None and state.lock.data != ours:
            return Dissolved.HELD
        lock = LockRecord(ids.next(), ids.client).encode()
        create = [Create(paths.lock(state.name.id), lock, ephemeral=True)] if state.lock is None else []
        if obstructed and state.is_empty:
            return Dissolved.OBSTRUCTED
        substitution = replacement(paths, place, state, now, obstructed=obstructed, most=most)
        operations = [*create, *substitution, Delete(paths.lock(state.name.id))]
        try:
            await apply_until_answered(zookeeper, operations, generation=generation)
        except RequestTooLargeError:
            if most == 1:
                raise
            most //= 2
        except MultiError as refusal:
            obstructed = _is_obstructed(refusal, paths, place, before=obstructed)
        else:
            if state.name.size > most and state.left > most:
                return await again(most=most)
            return Dissolved.OBSTRUCTED if obstructed else Dissolved.DONE
    text = "queue %s: bundle %s cannot be dissolved, and is skipped: delete the znodes with its messages' ids, or %s"
    log.error(text, paths.name, place, paths.at(place), extra={"queue": paths.name})
    return Dissolved.REFUSED


def _is_obstructed(refusal: MultiError, paths: QueuePaths, place: str, *, before: bool) -> bool:
    """Return whether the bundle is known to be obstructed after a refusal. Raises: the other errors."""
    if isinstance(refusal.error, NotEmptyError) and not before:
        log_obstructed(paths, place)
        return True
    if not isinstance(refusal.error, _CHANGED):
        raise refusal.error from refusal
    return before


def log_obstructed(paths: QueuePaths, place: str) -> None:
    """Log that other programs' znodes prevent the removal of a bundle."""
    text = "queue %s: a bundle cannot be removed, and stays without messages: delete the znodes below %s"
    log.error(text, paths.name, paths.at(place), extra={"queue": paths.name})


def removal(paths: QueuePaths, place: str, state: BundleState, *, obstructed: bool) -> list[Operation]:
    """Return the operations that remove a bundle and its record, or record that none of its messages is left.

    They are refused if the record has changed since it was read. If there was none, a record is created and deleted: a
    consumer that has claimed the bundle since may have finished messages of it, and left a record without a lock.
    """
    path, record = paths.bundle_record(state.name.id), state.record
    if obstructed:
        empty = BundleRecord("", (1 << state.name.size) - 1).encode()
        return [Create(path, empty) if record is None else SetData(path, empty, record.version)]
    absent = [Create(path)] if record is None else []
    version = 0 if record is None else record.version
    return [*absent, Delete(path, version), Delete(paths.at(place), state.bundle.version)]


def replacement(
    paths: QueuePaths, place: str, state: BundleState, now: int, *, obstructed: bool, most: int = MOST_BUNDLED
) -> list[Operation]:
    """Return the operations that delete a bundle and its record, and store its remaining messages.

    With more than ``most`` messages, only the first ones leave, and the record says so.
    """
    name = state.name
    removed = removal(paths, place, state, obstructed=obstructed)
    try:
        left, errors = state.messages(), state.errors()
        if len(left) > most:
            left = left[:most]
            removed = [reduction(paths, state, [message.position for message, _ in left])]
        singles = [
            operation
            for message, attempts in left
            for operation in _single(
                paths,
                paths.at(single_place(place, message.id, message.position)),
                message,
                AttemptRecord(attempts, message.id, errors.get(message.position)),
                state.bundle.ctime,
            )
        ]
    except MalformedError as error:
        text = "queue %s: bundle %s does not decode, and becomes one dead letter"
        log.exception(text, paths.name, name.id, extra={"queue": paths.name})
        died = DeadLetter(f"the stored bytes of a bundle do not decode: {error}", 0, now)
        header = replace(EMPTY_HEADER, enqueued_at=state.bundle.ctime, dead=died)
        dead = paths.dead(plain_prefix(name.id) + name.digits)
        return [*removed, Create(dead, encode(state.bundle.data, header))]
    return [*removed, *singles]


def reduction(paths: QueuePaths, state: BundleState, positions: Sequence[int]) -> Operation:
    """Return the operation that records that messages leave the bundle, and others remain."""
    path, read = paths.bundle_record(state.name.id), state.record
    record = BundleRecord("") if read is None else BundleRecord.decode(read.data)
    for position in positions:
        record = replace(record, done=record.done | 1 << position)
    data = record.encode()
    return Create(path, data) if read is None else SetData(path, data, read.version)


def _single(
    paths: QueuePaths, path: str, message: BundledMessage, record: AttemptRecord, created: int
) -> list[Operation]:
    """Return the operations that store one message as a single item."""
    try:
        data = single_of(*decode(message.data), created)
    except MalformedError:
        data = message.data  # the consumer that takes it makes it a dead letter
    if not record.attempts:
        return [Create(path, data)]
    return [Create(path, data), SetData(path, data, 0), Create(paths.meta(message.id), record.encode())]
