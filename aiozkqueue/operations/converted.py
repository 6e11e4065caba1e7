"""The conversion of a message to a put in another layout; the source or the target is another program's queue.

A move converts each item. Key, due time and time of put are kept if the target's layout supports them. A priority is
kept relative to the usual one, so 0 in one of our queues corresponds to 100 in a kazoo queue. A target without
priorities gets the most urgent messages first. Any other property that the target does not support raises a typed error
before anything is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.dialects import PutNames
from aiozkqueue.errors import InvalidOptionError, PayloadError
from aiozkqueue.layout import FIRST_PRIORITY, LAST_PRIORITY, Header, MalformedError, decode, encode
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.put import Put
from aiozkqueue.queue.commit.put_plan import join_plans
from aiozkqueue.queue.options import prefix_of
from aiozkqueue.queue.put.delay import placement_plan
from aiozkqueue.queue.put.prepare import restored_plan
from aiozkqueue.runtime.sizes import too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import ItemName
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node

#: Headers that link a message to the trace of its put. That trace ends with the move.
_TRACE = frozenset({"traceparent", "tracestate"})


class Converted(NamedTuple):
    """The messages of one item, and the function that makes their puts to the target."""

    bodies: Sequence[bytes]
    put: Callable[[bytes], Put]
    """Raises: MessageTooLargeError."""
    priority: int = 0
    """The messages' priority in an aiozkqueue queue."""
    scheduled: bool = False
    """Whether the messages are delayed in the target."""


class _Content(NamedTuple):
    """The content of an item, independent of its layout."""

    title: str
    """The name of the message in errors."""
    bodies: Sequence[bytes]
    priority: int
    """The difference from the usual priority of the source."""
    due: int | None
    key: str | None
    enqueued_at: int
    extras: Sequence[str] = ()
    """Descriptions of further properties, which only an aiozkqueue queue supports."""


def convert(runtime: Runtime, source: QueueState, target: QueueState, item: ItemName, node: Node) -> Converted:
    """Return the conversion of an item for another queue; at most one of the two has our layout. Sends nothing.

    Raises:
        PayloadError: the stored bytes do not decode.
        InvalidOptionError: the target does not support a property of the message, or needs one that it lacks.
    """
    content = _ours(source, item, node) if source.dialect is None else _theirs(source, source.dialect, item, node)
    now = runtime.server_clock.now()
    if target.dialect is None:
        assert source.dialect is not None  # noqa: S101 - for the type checker: at most one has our layout
        return _to_own_item(runtime, source.dialect, target, content, now)
    if type(source.dialect) is type(target.dialect):
        return _to_foreign_item(runtime, target, target.dialect, content, target.dialect.prefix_of(item.text))
    return _to_foreign_item(runtime, target, target.dialect, content, _target_prefix(target.dialect, content, now))


# -- reading


def _ours(state: QueueState, item: ItemName, node: Node) -> _Content:
    title = f"message {item.id} of queue {state.name!r}"
    try:
        header, body = decode(node.data)
    except MalformedError as error:
        raise _undecodable(title, error) from error
    headers = sorted(header.headers.keys() - _TRACE)
    extras = {
        f"headers ({', '.join(headers)})": headers,
        "a group": item.group or header.group is not None,
        "a unique key": item.unique,
        "a lifetime": item.expires is not None,
        "tags": header.tags,
        f"fields of another version ({', '.join(sorted(header.unknown))})": header.unknown,
    }
    return _Content(
        title,
        [body],
        header.priority,
        item.due,
        header.key,
        header.put_at(node.stat.ctime),
        [extra for extra, present in extras.items() if present],
    )


def _theirs(state: QueueState, dialect: Dialect, item: ItemName, node: Node) -> _Content:
    title = f"item {item.text} of queue {state.name!r}"
    try:
        bodies = dialect.messages(node.data)
    except MalformedError as error:
        raise _undecodable(title, error) from error
    fields = dialect.options_in(item.text)
    priority = 0 if fields.priority is None else fields.priority - dialect.usual_priority
    return _Content(title, bodies, priority, fields.due, fields.key, node.stat.ctime)


def _undecodable(title: str, error: MalformedError) -> PayloadError:
    msg = f"{title}: the stored bytes do not decode: {error}; an aiozkqueue consumer moves it to the dead letters"
    return PayloadError(msg)


# -- writing


def _to_own_item(runtime: Runtime, source: Dialect, target: QueueState, content: _Content, now: int) -> Converted:
    priority = _priority_here(source, target, content)
    header = Header(key=content.key, priority=priority, enqueued_at=content.enqueued_at)

    def put(body: bytes) -> Put:
        data = encode(body, header)
        _check_size(runtime, target, content, data)
        message_id = runtime.ids.next()
        place_plan = placement_plan(QueueHandle(runtime, target), priority, content.due)
        plan = join_plans([restored_plan(target, content.enqueued_at), place_plan])
        return Put(target, message_id, prefix_of(message_id, header), data, plan)

    return Converted(content.bodies, put, priority, content.due is not None and content.due > now)


def _priority_here(source: Dialect, target: QueueState, content: _Content) -> int:
    if FIRST_PRIORITY <= content.priority <= LAST_PRIORITY:
        return content.priority
    usual = source.usual_priority
    first, last = max(source.first_priority, usual + FIRST_PRIORITY), usual + LAST_PRIORITY
    why = f"of {source.title()}, the priorities {first} to {last} can be moved"
    raise _refused(target.name, content, f"priority {usual + content.priority}", why)


def _target_prefix(dialect: Dialect, content: _Content, now: int) -> str:
    """Return the name of the new item, without its sequence."""
    extras = list(content.extras)
    if content.key is not None and "key" not in dialect.options:
        extras.append("a key")
    if content.due is not None and content.due > now and not dialect.scheduled:
        extras.append(f"a delay, to {moment_at(content.due):%Y-%m-%dT%H:%M:%SZ},")
    if extras:
        raise _refused(dialect.path, content, " and ".join(extras), f"{dialect.title()} has no place for that")
    try:
        return dialect.name(PutNames(content.priority + dialect.usual_priority, content.due, content.key))
    except InvalidOptionError as error:
        raise _refused(dialect.path, content, "properties that do not fit there", str(error)) from error


def _to_foreign_item(
    runtime: Runtime, target: QueueState, dialect: Dialect, content: _Content, prefix: str
) -> Converted:
    def put(body: bytes) -> Put:
        data = dialect.item([body])
        _check_size(runtime, target, content, data)
        return Put(target, runtime.ids.next(), prefix, data)

    return Converted(content.bodies, put)


def _check_size(runtime: Runtime, target: QueueState, content: _Content, data: bytes) -> None:
    if len(data) > runtime.max_message:
        what = f"{content.title}, put into queue {target.name!r},"
        advice = "take it in a transaction, store the payload elsewhere and put a reference to it"
        raise too_large(what, len(data), runtime.max_message, advice)


def _refused(target: str, content: _Content, what: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"{content.title} has {what} and cannot be moved to queue {target!r}: {why}; take it and put its replacement "
        "in one transaction, then move the others"
    )
