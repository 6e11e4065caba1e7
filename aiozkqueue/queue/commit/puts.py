"""Items to create: what a put is when it is sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.queue.runtime.deadline import AT_ONCE
from aiozkqueue.zookeeper import Create, new_create

from .capacity import needs_of, reserve_again
from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.runtime.meter import Meter
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .attached import RefusalHandler
    from .put_plan import PutPlan


class Put(NamedTuple):
    """One item to create; its id is known before it is sent."""

    store: QueueState
    id: str
    prefix: str
    data: bytes
    plan: PutPlan | None = None
    """What it adds to the create; None: nothing, it is plain."""


#: What the class itself does in Python, done in C.
new_put: Callable[[tuple[QueueState, str, str, bytes, PutPlan | None]], Put] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Put,
)


class PutWrite(AtomicWrite):
    """Items put and nothing else: at once, or by a transaction that has taken nothing.

    With ``patience`` it waits for room in a queue that has got a size since it was sent; its caller does, if need be.
    """

    __slots__ = ("_owners", "_patience", "_puts")

    def __init__(self, transaction_id: str, puts: Sequence[Put], patience: Deadline = AT_ONCE) -> None:
        AtomicWrite.__init__(self, transaction_id, None, weigh_puts(puts), stores_of(puts))
        self.learns = True  # the sequences of the items
        self._puts = puts
        self._patience = patience
        self._owners: list[RefusalHandler] | None = None  # of what was sent, where it is more than each queue's items

    def compose(self, sent: list[Operation]) -> None:
        """Create the items."""
        self._puts, self._owners = load(self, self._puts, sent)

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Open the queue again when something of it is missing or full."""
        owner = self._puts[index].store if self._owners is None else self._owners[index]
        return owner.repair(operation, error)

    def applied(self, results: Sequence[Result] | None) -> None:
        """See how far the lane's counter has come."""
        note_sequence(self._puts, results)

    def tally(self, meter: Meter) -> None:
        """Tell of the items."""
        tally_puts(self._puts, meter)

    async def reserve_again(self) -> None:
        """Ask for room."""
        await reserve_again(self, needs_of(self._puts, {}), self._patience)


def load(
    atomic_write: AtomicWrite, puts: Sequence[Put], sent: list[Operation]
) -> tuple[Sequence[Put], list[RefusalHandler] | None]:
    """Append the operations that puts are now, the creates last; return the puts as sent, and who answers for each.

    None answers for them: each is plain, and its queue does.
    """
    start = len(sent)
    for store, _, prefix, data, plan in puts:
        if plan is not None or store.transform_put is not None:
            del sent[start:]
            return _load_planned(atomic_write, puts, sent)
        sent.append(new_create((f"{store.lanes.next_path()}/{prefix}", data, False, True, False)))
    return puts, None


def _load_planned(
    atomic_write: AtomicWrite, puts: Sequence[Put], sent: list[Operation]
) -> tuple[Sequence[Put], list[RefusalHandler]]:
    owners: list[RefusalHandler] = []
    shaped = [put if put.store.transform_put is None else put.store.transform_put(put) for put in puts]
    live = [put for put in shaped if put.plan is None or not put.plan.dropped]
    atomic_write.plans = tuple(put.plan for put in shaped if put.plan is not None)
    for put in live:
        if put.plan is not None:
            for attached_op in put.plan.attached_ops:
                sent.append(attached_op.operation())
                owners.append(attached_op)
    for put in live:
        sent.append(create(put))
        owners.append(put.store)
    return shaped, owners


def create(put: Put) -> Operation:
    """Create an item, in the lane whose turn it is or where its plan says."""
    store, plan = put.store, put.plan
    if plan is None or plan.place is None:
        path = f"{store.lanes.next_path()}/{put.prefix}"
    else:
        path = store.paths.at(plan.place.path(put.prefix))
    return Create(path, put.data, sequential=True)


def note_sequence(puts: Sequence[Put], results: Sequence[Result] | None) -> None:
    """Tell the queues of the items put, which are the last of what was sent, where their sequences have got to."""
    if results is None:
        return
    live = puts
    for put in puts:
        if put.plan is not None:
            live = [put for put in puts if put.plan is None or not put.plan.dropped]
            break
    at = len(results) - len(live)
    for put in live:
        path = results[at]
        if isinstance(path, str):
            put.store.note_sequence(path)
        at += 1


def tally_puts(puts: Sequence[Put], meter: Meter) -> None:
    """Tell of items that have been put."""
    for put in puts:
        if put.plan is None or not put.plan.dropped:
            meter.put(put.store.name)


def stores_of(puts: Sequence[Put]) -> tuple[QueueState, ...]:
    """The queues put to, each once."""
    if len(puts) == 1:
        return (puts[0].store,)
    return tuple(dict.fromkeys(put.store for put in puts))


def weigh_puts(puts: Sequence[Put]) -> int:
    """About how many bytes these take in a multi."""
    weight = 2 * OPERATION_WEIGHT * len(puts)
    for _, _, _, data, plan in puts:
        weight += len(data)
        if plan is not None:
            weight += plan.weight
    return weight
