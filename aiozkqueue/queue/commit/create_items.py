"""Creates the items of puts, when their multi is composed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import LANE_END_DIGITS, SEQUENCE_DIGITS, ItemRef
from aiozkqueue.runtime.deadline import AT_ONCE
from aiozkqueue.zookeeper import Create, new_create

from .capacity import needs_of, reserve_again
from .put import PlainPuts
from .write import PUT_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.deadline import Deadline
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .capacity import Needs
    from .put import Put
    from .write import AtomicWrite, Composition


class CreateItems(Part):
    """The creates of items: of a direct put, or of a transaction.

    ``deadline`` limits the wait for capacity in a queue that became bounded after the write was sent; before, the
    caller waits. ``needs`` returns the capacity that the write needs in each bounded queue (None: as much as the puts).
    """

    __slots__ = ("_bundled", "_deadline", "_needs", "_planned", "_puts", "_sent", "queues")

    needs_results = True  # the paths of the items hold their sequence numbers

    def __init__(
        self, puts: Sequence[Put], deadline: Deadline = AT_ONCE, needs: Callable[[], Needs] | None = None
    ) -> None:
        weight, planned = PUT_WEIGHT * len(puts), False
        if type(puts) is PlainPuts:
            weight += sum(map(len, puts.bodies))
        else:
            for _, _, _, data, plan in puts:
                weight += len(data)
                if plan is not None:
                    weight += plan.weight
                    planned = True
        self.weight = weight
        self._planned = planned  # whether any put has additions
        self.repairs = 0
        self.queues: tuple[QueueState, ...] = queues_of(puts)
        self._puts = puts
        self._sent = puts  # with the additions of the queues' configuration when they were last composed
        self._deadline = deadline
        self._needs = needs
        self._bundled = False  # whether its last operations were composed together with those of other writes

    @property
    def needs_time(self) -> bool:
        """See `Part`: a put with a delay or a lifetime has an end, and a queue with a default lifetime adds one."""
        for state in self.queues:
            if state.snapshot.transform_put is not None and state.snapshot.config.lifetime is not None:
                return True
        return self._planned and any(put.plan is not None and put.plan.needs_time for put in self._puts)

    @property
    def only_message(self) -> Put | None:  # type: ignore[override]  # computed, because it is seldom needed
        """See `Part`."""
        return self._puts[0] if len(self._puts) == 1 and self._needs is None else None

    def compose(self, composition: Composition) -> None:
        """Add the creates of the items, after the operations of their plans."""
        self._sent = self._puts
        run = composition.put_run
        if run is not None:
            if self.plain:
                self._bundled = True
                run.add(composition, self, self._puts)
                return
            self._bundled = False
            run.flush(composition)
            composition.answer_with(self)  # not the puts just flushed
        if len(self.queues) > 1:
            self._compose_planned(composition)
            return
        operations = composition.operations
        start = len(operations)
        for state, _, prefix, data, plan in self._puts:
            snapshot = state.snapshot
            if plan is not None or snapshot.transform_put is not None:
                del operations[start:]
                self._compose_planned(composition)
                return
            lane = snapshot.lanes.only_path or snapshot.lanes.next_path()
            operations.append(new_create((f"{lane}/{prefix}", data, False, True, False)))

    @property
    def plain(self) -> bool:
        """Whether all puts go to one queue that stores several messages in one znode, and have no additions."""
        return not self._planned and len(self.queues) == 1 and makes_bundles(self.queues[0])

    def _compose_planned(self, composition: Composition) -> None:
        self._sent = [
            put if (transform := put.state.snapshot.transform_put) is None else transform(put) for put in self._puts
        ]
        creates = [(put, create(put)) for put in live_of(self._sent)]
        for put, operation in creates:
            for hook in put.plan.hooks if put.plan is not None else ():
                composition.add(hook.operation(operation.path), hook)
        for put, operation in creates:
            composition.add(operation, put.state)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Have the queue of plain puts repair the cause, such as a missing znode or a full lane."""
        return self.queues[0].repair(operation, error)

    async def reserve_again(self, atomic_write: AtomicWrite) -> None:
        """Acquire capacity."""
        needs = needs_of(self._puts, {}) if self._needs is None else self._needs()
        await reserve_again(atomic_write, needs, self._deadline)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:
        """Note the sequence numbers of the new items, and count the messages."""
        if meter is not None:
            for put in live_of(self._sent):
                meter.put(put.state.name)
        if results is not None and not self._bundled:
            live = live_of(self._sent)
            for put, path in zip(live, results[len(results) - len(live) :], strict=True):  # the creates are the last
                if isinstance(path, str) and path[-SEQUENCE_DIGITS:] >= LANE_END_DIGITS:
                    put.state.note_lane_end(path)


def makes_bundles(state: QueueState) -> bool:
    """Whether a queue stores several messages in one znode, and adds nothing to the puts without options."""
    snapshot = state.snapshot
    return snapshot.bundle > 1 and snapshot.transform_put is None


def live_of(puts: Sequence[Put]) -> Sequence[Put]:
    """Return the puts that no hook has dropped."""
    if type(puts) is PlainPuts:
        return puts
    for put in puts:
        if put.plan is not None:
            return [put for put in puts if put.plan is None or not put.plan.dropped]
    return puts


def create(put: Put) -> Operation:
    """Return the create of an item: where its plan puts it, or in the next lane in rotation."""
    state, plan = put.state, put.plan
    if plan is None or plan.place is None:
        path = ItemRef(state.snapshot.lanes.next_path(), put.prefix).path
    else:
        path = state.paths.at(plan.place.path(put.prefix))
    return Create(path, put.data, sequential=True)


def queues_of(puts: Sequence[Put]) -> tuple[QueueState, ...]:
    """Return the queues of the puts, without duplicates."""
    if type(puts) is PlainPuts:
        return (puts.state,)
    return (puts[0].state,) if len(puts) == 1 else tuple(dict.fromkeys([put.state for put in puts]))


def weigh_put(put: Put) -> int:
    """Return the approximate size of one put in a multi, in bytes."""
    return PUT_WEIGHT + len(put.data) + (0 if put.plan is None else put.plan.weight)


def weigh_puts(puts: Iterable[Put]) -> list[int]:
    """Return the approximate size of each put in a multi, in bytes."""
    if type(puts) is PlainPuts:
        return [PUT_WEIGHT + size for size in map(len, puts.bodies)]
    return [weigh_put(put) for put in puts]
