"""Messages as they were put, and dead letters, as users read them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from aiozkqueue.moments import moment_at

from .state.claim import UNDECODED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from aiozkqueue.codec import Codec
    from aiozkqueue.layout import Header

    from .state.claim import Claim

T_co = TypeVar("T_co", covariant=True)


class Content(NamedTuple):
    """A message, as read from its item and its record of attempts."""

    queue: str
    id: str
    body: bytes
    header: Header
    attempt: int
    created: int  # ms, ZooKeeper's time
    error: str | None = None
    due: int | None = None  # ms, ZooKeeper's time


def content_of(claim: Claim) -> Content:
    """Return the content of a claim for its delivery."""
    attempt = claim.attempts if claim.recorded else claim.attempts + 1  # `Claim.attempt`, without a call
    header = claim.header if claim.state.dialect is None else claim.state.dialect.header_of(claim.name)
    return _new_content((claim.state.name, claim.id, claim.body, header, attempt, claim.created, None, None))


#: The constructor of the class, without its Python code.
_new_content: Callable[[tuple[str, str, bytes, Header, int, int, None, None]], Content] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Content,
)


class Message(Generic[T_co]):
    """A message, read only. A message from `Transaction.take` is settled by the transaction."""

    __slots__ = ("__weakref__", "_codec", "_content", "_value")

    def __init__(self, content: Content, codec: Codec[T_co], value: object = UNDECODED) -> None:
        self._content = content
        self._codec = codec
        self._value = value

    @property
    def id(self) -> str:
        """The id that `put` returned."""
        return self._content.id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._content.queue

    @property
    def body(self) -> bytes:
        """The payload, undecoded."""
        return self._content.body

    @property
    def value(self) -> T_co:
        """The payload, decoded to the queue's type.

        Raises:
            PayloadError: it cannot be decoded; only for peeked messages and for queues with ``undecodable="raise"``.
        """
        if self._value is UNDECODED:
            self._value = self._codec.decode(self._content.body, self._content.queue)
        return cast("T_co", self._value)

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1; for a peeked message, the number of attempts counted so far.

        `ConsumeTimes` and `ConsumeOnce` count every attempt before the delivery. `AtLeastOnce` counts an attempt when
        it ends in a rollback or a failure, and a lease when it begins. An attempt that ended with the death of its
        process is not counted.
        """
        return self._content.attempt

    @property
    def error(self) -> str | None:
        """How the last attempt failed, for a peeked message; None for a delivery."""
        return self._content.error

    @property
    def due(self) -> datetime | None:
        """When a peeked message that is delayed, retried or leased can be taken; None: it can be taken now."""
        return None if self._content.due is None else moment_at(self._content.due)

    @property
    def enqueued_at(self) -> datetime:
        """When it was put, in ZooKeeper's time; dead letters and redriven messages keep it."""
        return moment_at(self._content.header.put_at(self._content.created))

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers it was put with."""
        return self._content.header.headers

    @property
    def tags(self) -> Mapping[str, str | int]:
        """The tags it was put with, which consumers filter by."""
        return self._content.header.tags

    @property
    def key(self) -> str | None:
        """The key it was put with."""
        return self._content.header.key

    @property
    def group(self) -> str | None:
        """The group it was put into."""
        return self._content.header.group

    @property
    def priority(self) -> int:
        """The priority it was put with, 0 by default; in a queue of kazoo 100."""
        return self._content.header.priority

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, {len(self.body)} bytes, attempt {self.attempt}>"


class DeadLetter(Message[T_co]):
    """A message that was rejected, or whose attempts were used up."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        """Why it is a dead letter; empty if another program gave no reason."""
        dead = self._content.header.dead
        return "" if dead is None else dead.reason

    @property
    def attempts(self) -> int:
        """The number of attempts counted; see `Message.attempt`."""
        dead = self._content.header.dead
        return 0 if dead is None else dead.attempts

    @property
    def attempt(self) -> int:
        """As `attempts`."""
        return self.attempts

    @property
    def died_at(self) -> datetime:
        """When it became a dead letter, in ZooKeeper's time."""
        return moment_at(self._content.created)
