"""Puts to queues of other programs. Options that their layout does not support are refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiozkqueue.dialects import PutNames
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import LAST_MOMENT, Header, MalformedError, decode
from aiozkqueue.queue.commit.dispositions import FOREIGN_NAME
from aiozkqueue.queue.commit.put import Put
from aiozkqueue.queue.commit.put_plan import PutPlan
from aiozkqueue.queue.options import schedule_of
from aiozkqueue.runtime.sizes import too_large

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import ItemName
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState

_NEUTRAL: Final[dict[str, object]] = {"priority": 0, "unique": False}


class DueName:
    """The place of one put with a delay. Its name is computed when it is first sent."""

    __slots__ = ("_delay", "_due", "_from", "_runtime", "_state")

    def __init__(self, handle: QueueHandle[Runtime], delay: float) -> None:
        """``delay`` is in seconds from now."""
        self._runtime = handle.runtime
        self._state = handle.state
        self._delay = delay
        self._from = handle.runtime.clock.monotonic()
        self._due: int | None = None

    @property
    def ready(self) -> bool:
        """See `Place`."""
        return self._runtime.server_clock.bounded

    @property
    def needs_time(self) -> bool:
        """See `Place`."""
        return self._due is None

    async def prepare(self) -> None:
        """Learn ZooKeeper's time."""
        await self._runtime.learn_time()

    def path(self, prefix: str) -> str:
        """See `Place`. Every attempt uses the same due time, and never one that is too early."""
        if self._due is None:
            self._due = min(LAST_MOMENT, self._runtime.server_clock.time_at(self._from + self._delay))
        dialect = self._state.dialect
        return f"items/{prefix if dialect is None else dialect.name(PutNames(due=self._due))}"


def prepare_foreign(handle: QueueHandle[Runtime], payload: bytes | Sequence[bytes], options: Mapping[str, Any]) -> Put:
    """Return the put of a payload, or of several that share an item; each must be bytes. Sends nothing.

    Raises:
        MessageTooLargeError, InvalidOptionError.
    """
    dialect = handle.state.dialect
    if dialect is None:
        msg = f"queue {handle.name!r} has no dialect"
        raise AssertionError(msg)
    for option, value in options.items():
        neutral = _NEUTRAL.get(option)
        if option not in dialect.options and value is not None and (type(value), value) != (type(neutral), neutral):
            taken = f"; it supports {', '.join(sorted(dialect.options))}" if dialect.options else ""
            msg = f"queue {handle.name!r}: {dialect.title()} does not support {option}={value!r}{taken}"
            raise InvalidOptionError(msg)
    delay, due = schedule_of(handle.name, options)
    prefix = dialect.name(PutNames(options.get("priority"), due, options.get("key")))
    data = dialect.item([payload] if isinstance(payload, bytes) else payload)
    if len(data) > handle.runtime.max_message:
        raise too_large(f"queue {handle.name!r}: the item", len(data), handle.runtime.max_message)
    plan = None if delay is None else PutPlan(place=DueName(handle, delay))
    return Put(handle.state, handle.runtime.ids.next(), prefix, data, plan)


def restore_foreign(state: QueueState, dialect: Dialect, item: ItemName, data: bytes) -> Put:
    """Return the put that restores a dead letter under its former name, and so with its priority, due time and id.

    A dead letter whose item did not decode is restored with the stored bytes.
    """
    try:
        header, body = decode(data)
    except MalformedError:
        header, body = Header(), data
    name = header.unknown.get(FOREIGN_NAME)
    prefix = dialect.prefix_of(name) if isinstance(name, str) and dialect.is_item(name) else dialect.prefix
    whole = header.dead is not None and header.dead.reason.startswith(UNREADABLE)
    return Put(state, item.id, prefix, body if whole else dialect.item([body]))


#: The start of the reason for a dead letter whose item does not decode.
UNREADABLE: Final = "the stored bytes do not decode"
