"""The preparation of a put: check the value and its options, encode them, assign an id, and plan the place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aiozkqueue.arguments import plain
from aiozkqueue.codec import BytesCodec, Codec, encode_all
from aiozkqueue.errors import ConnectionLostError, InvalidOptionError, NotCommittedError
from aiozkqueue.layout import (
    FIRST_PRIORITY,
    LAST_PRIORITY,
    MAGIC,
    MalformedError,
    check_queue_name,
    decode,
    encode,
    key_hash,
    lifetime,
    plain_prefix,
    unscheduled_prefix,
    without_end,
)
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.put import PlainPuts, Put, new_put
from aiozkqueue.queue.commit.put_plan import PutPlan, join_plans
from aiozkqueue.queue.commit.unique_keys import UniqueKey
from aiozkqueue.queue.destination import Destination, binding_of, not_own
from aiozkqueue.queue.options import prefix_of, put_header, schedule_of, unique_mode
from aiozkqueue.runtime.sizes import too_large

from .delay import placement_plan
from .filters import tags_plan
from .foreign import prepare_foreign, restore_foreign
from .groups import group_plan
from .queue_defaults import key_of
from .ttl import with_lifetime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiozkqueue.layout import Header, ItemName
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node

_BYTES = BytesCodec()


class EncodedMessage(NamedTuple):
    """A value, checked and encoded for one queue."""

    queue: str
    header: Header | None
    data: bytes


def prepare(runtime: Runtime, queue: Destination[Any] | str, value: object, options: Mapping[str, Any]) -> Put:
    """Check and encode a value, and assign its id. Sends nothing.

    Raises:
        PayloadError, MessageTooLargeError, InvalidNameError, InvalidOptionError.
    """
    if isinstance(queue, Destination):
        name, binding = queue.name, binding_of(queue)
        codec = binding.codec
        if binding.owner is not runtime:
            raise not_own(name)
        if binding.dialect is not None:
            return prepare_foreign(QueueHandle(runtime, runtime.queue_state(name)), codec.encode(value, name), options)
    else:
        name, codec = _codec_of(queue)
    if not options and runtime.tracing is None:
        return _prepare_plain(runtime, name, codec, value)
    message_id = runtime.ids.next()
    if runtime.tracing is not None:
        options = runtime.tracing.creating(name, message_id, options)
    _, header, data = check_and_encode(queue, value, options, runtime.max_message)
    state = runtime.queue_state(name)
    plan = join_plans(
        [plan_of(QueueHandle(runtime, state), options), tags_plan(state, header.tags) if header is not None else None]
    )
    unique: str | None = None
    if mode := unique_mode(name, options.get("unique")):
        unique = key_of(header, data)
        plan = join_plans([plan, PutPlan((UniqueKey(state, unique, message_id, ignore=mode == "ignore"),))])
    if (ttl := options.get("ttl")) is not None:
        plan = with_lifetime(plan, state, runtime.server_clock, lifetime(ttl))
    return Put(state, message_id, prefix_of(message_id, header, unique=unique), data, plan)


def prepare_all(runtime: Runtime, queue: Destination[Any], values: Iterable[object], batch: str = "") -> PlainPuts:
    """Prepare puts to one of our own queues without options, in a session without tracing.

    ``batch`` is the `batch_field` of a pending batch that they belong to.

    Raises: as `prepare`.
    """
    name, limit = queue.name, runtime.max_message
    # Many messages are prepared by passes over arrays: a call for each would take several times as long.
    stored = encode_all(binding_of(queue).codec, values, name)
    if stored and (max(map(len, stored)) > limit or max(stored) >= MAGIC):  # an item that begins with it is greater
        stored = [_encoded(name, data, None, limit) for data in stored]
    return PlainPuts(runtime.queue_state(name), runtime.ids.take(len(stored)), stored, batch)


def _prepare_plain(runtime: Runtime, name: str, codec: Codec[Any], value: object) -> Put:
    """Prepare a put without options."""
    state = runtime.queue_state(name)
    if state.dialect is not None:
        check_queue_name(name)  # rejects it: this is a path, not a queue's name
    data = value if type(value) is bytes and isinstance(codec, BytesCodec) else codec.encode(value, name)
    if len(data) > runtime.max_message or data.startswith(MAGIC):
        data = _encoded(name, data, None, runtime.max_message)
    message_id = runtime.ids.next()
    return new_put((state, message_id, plain_prefix(message_id), data, None))


async def make_ready(puts: Iterable[Put]) -> None:
    """Open the puts' queues and prepare the puts' plans. Raises: as `QueueState.open`, but NotCommittedError."""
    try:
        for put in puts[:1] if type(puts) is PlainPuts else puts:  # those are alike
            if not put.state.ready:
                await put.state.open_or_create()
            if put.plan is not None:
                await put.plan.prepare()
    except ConnectionLostError as error:
        raise NotCommittedError(f"{error}; nothing was stored") from error


def plan_of(handle: QueueHandle[Runtime], options: Mapping[str, Any]) -> PutPlan | None:
    """Return the plan that checked options require; None if they require none.

    Each feature adds its part here. `QueueSnapshot.transform_put` adds the parts that depend on the configuration.
    """
    priority, group = options.get("priority", 0), options.get("group")
    if group is not None:
        return group_plan(handle.state, key_hash(group))
    delay, due = schedule_of(handle.name, options)
    return placement_plan(handle, priority, due, delay)


def check_and_encode(
    queue: Destination[Any] | str, value: object, options: Mapping[str, Any], limit: int
) -> EncodedMessage:
    """Check and encode a value for a queue or a queue's name; ``limit`` is the server's, in bytes. Pure.

    Raises:
        PayloadError, MessageTooLargeError, InvalidNameError, InvalidOptionError.
    """
    name, codec = _codec_of(queue)
    if codec is _BYTES:
        name = check_queue_name(name)
    header = put_header(name, options)
    return EncodedMessage(name, header, _encoded(name, codec.encode(value, name), header, limit))


def _codec_of(queue: Destination[Any] | str) -> tuple[str, Codec[Any]]:
    """Return the name of the destination, unchecked, and the codec of its values."""
    target: object = queue
    if isinstance(target, Destination):
        return target.name, binding_of(target).codec
    if isinstance(target, str):
        return plain(target), _BYTES
    msg = f"put takes a queue or its name, not {type(queue).__name__}"
    raise InvalidOptionError(msg)


def _encoded(queue: str, payload: bytes, header: Header | None, limit: int) -> bytes:
    data = encode(payload, header)
    if len(data) > limit:
        raise too_large(f"queue {queue!r}: the message", len(data), limit)
    return data


def restored(handle: QueueHandle[Runtime], item: ItemName, node: Node) -> Put:
    """Return the put that restores an item or dead letter to this queue, with its id, headers and time of put.

    An item whose envelope does not decode is put as it is stored.
    """
    if handle.state.dialect is not None:
        return restore_foreign(handle.state, handle.state.dialect, item, node.data)
    plan = group_plan(handle.state, item.group)
    try:
        header, body = decode(node.data)
    except MalformedError:
        plan = join_plans([restored_plan(handle.state, node.stat.ctime), plan])
        return Put(handle.state, item.id, unscheduled_prefix(item.prefix), node.data, plan)
    enqueued = header.put_at(node.stat.ctime)
    data = encode(body, replace(header, dead=None, enqueued_at=enqueued))
    place_plan = plan or plan_of(handle, options_of(item, header))
    plan = join_plans([restored_plan(handle.state, enqueued), place_plan, tags_plan(handle.state, header.tags)])
    if item.unique and item.key is not None:
        plan = join_plans([plan, PutPlan((UniqueKey(handle.state, item.key, item.id, ignore=False),))])
    # A restored dead letter gets a new lifetime, from the queue's configuration.
    prefix = unscheduled_prefix(item.prefix)
    return Put(handle.state, item.id, prefix if header.dead is None else without_end(prefix), data, plan)


def restored_plan(state: QueueState, put_before: int) -> PutPlan | None:
    """Return the part of a plan for a message that was put before (ms), if the queue has a setting that asks for it."""
    return PutPlan(put_before=put_before) if state.sticky or state.config.collapse else None


def options_of(item: ItemName, header: Header) -> dict[str, Any]:
    """Return those options of a stored item that need a plan."""
    options: dict[str, Any] = {}
    if FIRST_PRIORITY <= header.priority <= LAST_PRIORITY:  # otherwise another program put it
        options["priority"] = header.priority
    if item.due is not None:
        options["at"] = moment_at(item.due)
    return options
