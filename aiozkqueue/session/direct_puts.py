"""Puts outside a transaction: how many are prepared, and how they are sent within the time limit of their call."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.arguments import collection
from aiozkqueue.errors import (
    MessageTooLargeError,
    NotCommittedError,
    PayloadError,
    QueueError,
    QueueFullError,
    TransactionTooLargeError,
)
from aiozkqueue.queue.commit.capacity import enter
from aiozkqueue.queue.commit.create_items import CreateItems, live_of, weigh_puts
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.put import PlainPuts
from aiozkqueue.queue.commit.unique_keys import earlier_holder, has_unique_keys, leave_out_held, stored_id
from aiozkqueue.queue.commit.write import AtomicWrite
from aiozkqueue.queue.destination import Destination, binding_of
from aiozkqueue.queue.put.capacity import credits_of
from aiozkqueue.queue.put.prepare import make_ready, prepare, prepare_all
from aiozkqueue.runtime.deadline import AT_ONCE, Deadline
from aiozkqueue.runtime.tasks import within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.queue.commit.put import Put, PutList
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.queue.state.hooks import CapacityLimit

    from .core import SessionCore

#: The largest size of one multi of `Queue.put_many`, bytes, and its largest number of messages. A thousand messages of
#: 200 bytes are one request: each further one costs a round trip.
MANY_BYTES: Final = 512 * 1024
MANY: Final = 1000


async def send_many(
    runtime: SessionCore, queue: Destination[Any], values: Iterable[object], options: PutOptions, wait: float | None
) -> list[str]:
    """Put values in order, in as few requests as possible; return the message id of each.

    ``wait`` is the timeout of the call, seconds. Raises: as `Queue.put_many`.
    """
    deadline = Deadline(wait, runtime.clock)
    puts, ids = await _prepare_many(runtime, queue, values, options)
    start, together = 0, MANY
    while start < len(puts):
        part = _first_part(puts[start : start + together], min(MANY_BYTES, runtime.safe_size))
        end = start + len(part)
        try:
            await send_puts(runtime, part, deadline)
        except QueueError as error:
            stored = end - len(part)  # stored messages have been removed from `part`
            if isinstance(error, TransactionTooLargeError) and len(part) > 1:
                start, together = stored, len(part) // 2  # long paths, or a server that accepts less at once
                continue
            if stored:
                error.add_note(f"the first {stored} of {len(puts)} messages had been put before")
            raise
        start = end
    if type(puts) is PlainPuts:
        return ids
    left_out = {put.id: stored_id(put) for put in puts if put.plan is not None}
    return [left_out.get(message_id, message_id) for message_id in ids] if left_out else ids


async def _prepare_many(
    runtime: SessionCore, queue: Destination[Any], values: Iterable[object], options: PutOptions
) -> tuple[PutList, list[str]]:
    """Return the puts, and the message id of each value: values with the same unique key share a message.

    After each `MANY` values other tasks run: a hundred thousand at once would block the event loop.
    """
    ids: list[str] = []
    keys: dict[tuple[str, str], str] = {}
    listed = collection(values, f"queue {queue.name!r}: put_many", "messages")
    if not options and runtime.tracing is None and binding_of(queue).dialect is None:
        remaining = iter(listed)
        plain = _prepare_part(runtime, queue, list(islice(remaining, MANY)), 0)
        part = plain
        while len(part) == MANY:
            await asyncio.sleep(0)
            part = _prepare_part(runtime, queue, list(islice(remaining, MANY)), len(plain))
            plain.extend(part)
        return plain, plain.ids
    puts: list[Put] = []
    for value in listed:
        try:
            put = prepare(runtime, queue, value, options)
        except (PayloadError, MessageTooLargeError) as error:
            error.add_note(_refused(len(ids)))
            raise
        earlier = None if put.plan is None else earlier_holder(keys, put)
        if earlier is None:
            puts.append(put)
        ids.append(earlier or put.id)
        if not len(ids) % MANY:
            await asyncio.sleep(0)
    return puts, ids


def _prepare_part(runtime: SessionCore, queue: Destination[Any], values: list[object], start: int) -> PlainPuts:
    """Prepare values without options; ``start`` values of the call come before them. Raises: as `prepare_all`."""
    try:
        return prepare_all(runtime, queue, values)
    except (PayloadError, MessageTooLargeError) as error:
        for index, value in enumerate(values, start):  # it prepares all at once, so the error is of one of them
            try:
                prepare(runtime, queue, value, {})
            except (PayloadError, MessageTooLargeError):
                error.add_note(_refused(index))
                break
        raise


def _refused(index: int) -> str:
    return f"it is value {index} of the call, counted from 0"


def _first_part(puts: PutList, most: float) -> PutList:
    """Return the first puts that fit into one request of this weight; at least one does."""
    weights = weigh_puts(puts)
    return puts if sum(weights) <= most else puts[: max(1, bisect_right(list(accumulate(weights)), most))]


async def send_puts(runtime: SessionCore, puts: PutList, deadline: Deadline) -> None:
    """Put to one queue, all at once unless it has a ``max_size``.

    After an error, the stored messages have been removed from ``puts``. Raises: as `Queue.put`.
    """
    state = puts[0].state
    limit = _time_for(runtime, deadline)
    try:
        await within(limit, make_ready(puts))
    except TimeoutError as error:
        raise _not_sent(state.name, limit) from error
    if state.snapshot.capacity is None:
        try:
            await runtime.settle(
                AtomicWrite(runtime.ids.next(), CreateItems(puts)), _time_for(runtime, deadline), queue=state.name
            )
        except (QueueFullError, TransactionTooLargeError):
            if state.snapshot.capacity is None:
                raise
        else:
            return
    await send_bounded(QueueHandle(runtime, state), puts, deadline)


async def send_bounded(handle: QueueHandle[SessionCore], puts: PutList, deadline: Deadline) -> None:
    """Put to a queue with ``max_size``, as many as it accepts at a time; stored messages are removed from ``puts``.

    Puts that were sent before the queue had a size, and did not fit, are sent again like this.

    Raises: as `Queue.put`.
    """
    while puts:
        limit = handle.state.snapshot.capacity
        part = puts[: len(puts) if limit is None else credits_of(handle.config.max_size or 1)]
        atomic_write = AtomicWrite(handle.runtime.ids.next(), CreateItems(part))
        if limit is not None:
            live = await _acquire_live(handle, limit, part, deadline)
            if not live:
                del puts[: len(part)]
                continue
            limit.bind(atomic_write, live)
        try:
            await handle.runtime.settle(atomic_write, _time_for(handle.runtime, deadline), queue=handle.state.name)
        except (QueueFullError, TransactionTooLargeError):
            if limit is not None or handle.state.snapshot.capacity is None:
                raise
        else:
            del puts[: len(part)]


async def _acquire_live(
    handle: QueueHandle[SessionCore], limit: CapacityLimit[AtomicWrite], part: PutList, deadline: Deadline
) -> int:
    """Acquire capacity for those puts whose unique keys are not held, and return their number.

    If the queue is full, the holders of the keys are read first: a put that is left out needs no capacity, a put that
    is refused does not wait, and an expired holder is ended, which frees capacity.

    Raises: as `_acquire`; DuplicateKeyError.
    """
    seconds = _time_for(handle.runtime, deadline)
    try:
        if has_unique_keys(part):
            with suppress(QueueFullError):
                await within(seconds, limit.acquire(len(part), len(part), AT_ONCE))
                return len(part)
            await within(seconds, leave_out_held(handle.runtime.zookeeper, part))
    except TimeoutError as error:
        raise _not_sent(handle.name, seconds) from error
    live = len(live_of(part))
    if live:
        await _acquire(handle, limit, live, deadline)
    return live


async def enter_live(runtime: SessionCore, atomic_write: AtomicWrite, puts: Sequence[Put], deadline: Deadline) -> None:
    """Acquire capacity for the puts of an atomic write, except those that are left out because their keys are held.

    Raises: as `enter` and `leave_out_held`.
    """
    if has_unique_keys(puts):
        with suppress(QueueFullError):
            await enter(atomic_write, puts, AT_ONCE)
            return
        await leave_out_held(runtime.zookeeper, puts)
    await enter(atomic_write, live_of(puts), deadline)


async def _acquire(
    handle: QueueHandle[SessionCore], limit: CapacityLimit[AtomicWrite], count: int, deadline: Deadline
) -> None:
    """Acquire capacity for messages. Raises: as `CapacityLimit.acquire`; NotCommittedError: no server answers."""
    if deadline.seconds != 0:
        await limit.acquire(count, count, deadline)
        return
    seconds = handle.runtime.operation_timeout
    try:
        # A full queue refuses at once, but a server may not answer.
        await within(seconds, limit.acquire(count, count, deadline))
    except TimeoutError as error:
        raise _not_sent(handle.name, seconds) from error


def _time_for(runtime: SessionCore, deadline: Deadline) -> float:
    """Return how long a put may take from now on apart from the wait for capacity, seconds.

    A timeout of 0 or None only limits the wait for capacity.
    """
    left = deadline.left
    return left if left is not None and deadline.seconds else runtime.operation_timeout


def _not_sent(queue: str, limit: float) -> NotCommittedError:
    """Return the error of a put that was not sent in time."""
    return NotCommittedError(
        f"queue {queue!r}: no answer from ZooKeeper within {limit:g} s; nothing was sent, so nothing was stored; "
        "try again"
    )
