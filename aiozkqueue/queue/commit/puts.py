"""The creation of items: what a put is when it is sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.queue.runtime.deadline import AT_ONCE
from aiozkqueue.zookeeper import Create, new_create

from .capacity import needs_of, reserve_again
from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .put_plan import PutPlan
    from .write import Composition


class Put(NamedTuple):
    """One item to create. Its id is known before it is sent."""

    state: QueueState
    id: str
    prefix: str
    data: bytes
    plan: PutPlan | None = None
    """The additions to the create; None: the put has none."""


#: Equal to the class itself, but implemented in C.
new_put: Callable[[tuple[QueueState, str, str, bytes, PutPlan | None]], Put] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Put,
)


class PutWrite(AtomicWrite):
    """A write that only creates items: for a direct put, or for a transaction without claims.

    ``patience`` limits the wait for room in a queue that became bounded after the write was sent; before, the caller
    waits.
    """

    __slots__ = ("_patience", "_puts")

    def __init__(self, transaction_id: str, puts: Sequence[Put], patience: Deadline = AT_ONCE) -> None:
        AtomicWrite.__init__(self, transaction_id, None, weigh_puts(puts), stores_of(puts))
        self.learns = True  # the paths of the items hold their sequence numbers
        self._puts = puts
        self._patience = patience

    def compose(self, composition: Composition) -> None:
        """Add the creates of the items."""
        self._puts = load(self, self._puts, composition)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None]:
        """Have the queue of plain puts repair the cause, such as a missing znode or a full lane."""
        return self.stores[0].repair(operation, error)

    def applied(self, results: Sequence[Result] | None) -> None:
        """Note the sequence numbers of the new items."""
        note_sequence(self._puts, results)

    def tally(self, meter: Meter) -> None:
        """Count the stored messages."""
        tally_puts(self._puts, meter)

    async def reserve_again(self) -> None:
        """Acquire room."""
        await reserve_again(self, needs_of(self._puts, {}), self._patience)


def load(atomic_write: AtomicWrite, puts: Sequence[Put], composition: Composition) -> Sequence[Put]:
    """Append the operations of puts, the creates last; return the puts as sent.

    Plain puts to one queue name no handler.
    """
    if len(atomic_write.stores) > 1:
        return _load_planned(atomic_write, puts, composition)
    sent = composition.operations
    start = len(sent)
    for state, _, prefix, data, plan in puts:
        snapshot = state.snapshot
        if plan is not None or snapshot.transform_put is not None:
            del sent[start:]
            return _load_planned(atomic_write, puts, composition)
        sent.append(new_create((f"{snapshot.lanes.next_path()}/{prefix}", data, False, True, False)))
    return puts


def _load_planned(atomic_write: AtomicWrite, puts: Sequence[Put], composition: Composition) -> Sequence[Put]:
    transformed = [put if (transform := put.state.snapshot.transform_put) is None else transform(put) for put in puts]
    live = [put for put in transformed if put.plan is None or not put.plan.dropped]
    atomic_write.plans = tuple(put.plan for put in transformed if put.plan is not None)
    for put in live:
        if put.plan is not None:
            for attached_op in put.plan.attached_ops:
                composition.add(attached_op.operation(), attached_op)
    for put in live:
        composition.add(create(put), put.state)
    return transformed


def create(put: Put) -> Operation:
    """Return the create of an item: where its plan puts it, or in the next lane in rotation."""
    state, plan = put.state, put.plan
    if plan is None or plan.place is None:
        path = f"{state.snapshot.lanes.next_path()}/{put.prefix}"
    else:
        path = state.paths.at(plan.place.path(put.prefix))
    return Create(path, put.data, sequential=True)


def note_sequence(puts: Sequence[Put], results: Sequence[Result] | None) -> None:
    """Report the sequence numbers of new items to their queues. The creates are the last of the results."""
    if results is None:
        return
    live = puts
    for put in puts:
        if put.plan is not None:
            live = [put for put in puts if put.plan is None or not put.plan.dropped]
            break
    index = len(results) - len(live)
    for put in live:
        path = results[index]
        if isinstance(path, str):
            put.state.note_sequence(path)
        index += 1


def tally_puts(puts: Sequence[Put], meter: Meter) -> None:
    """Count messages that have been stored."""
    for put in puts:
        if put.plan is None or not put.plan.dropped:
            meter.put(put.state.name)


def stores_of(puts: Sequence[Put]) -> tuple[QueueState, ...]:
    """Return the queues of the puts, without duplicates."""
    if len(puts) == 1:
        return (puts[0].state,)
    return tuple(dict.fromkeys(put.state for put in puts))


def weigh_puts(puts: Sequence[Put]) -> int:
    """Return the approximate size of the puts in a multi, in bytes."""
    weight = 2 * OPERATION_WEIGHT * len(puts)
    for _, _, _, data, plan in puts:
        weight += len(data)
        if plan is not None:
            weight += plan.weight
    return weight
