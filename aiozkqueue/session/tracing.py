"""The tracing interface: the reports of a session about its messages, for OpenTelemetry or another tracer.

A session without a tracer only checks whether there is one. `aiozkqueue.tracing` is imported when it is switched on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.message import Message
    from aiozkqueue.queue.outcome import Outcome
    from aiozkqueue.queue.state.claim import Claim


class Traced(Protocol):
    """The part of a delivery that a tracer reads."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        ...

    @property
    def id(self) -> str:
        """The message's id."""
        ...

    @property
    def body(self) -> bytes:
        """The message's bytes."""
        ...

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's headers."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the delivery, from 1."""
        ...

    @property
    def outcome(self) -> Outcome:
        """How it has ended."""
        ...


class Handling(Protocol):
    """A delivery or a batch that a handler or a loop is handling."""

    def end(self, error: BaseException | None = None) -> None:
        """Called when the handler and its settlement are over; ``error`` is set if they failed.

        A loop calls it in its own task. A commit may still be in flight.
        """
        ...


class Tracing(Protocol):
    """Traces the messages of a session: `connect` takes one."""

    def sending(self, queue: str, count: int | None) -> AbstractContextManager[None]:
        """Return a context manager around a put of one message (``count`` is None) or many, until they are stored."""
        ...

    def creating(self, queue: str, message_id: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a put, with the tracing headers added."""
        ...

    def received(self, queue: str, messages: Sequence[Message[Any]], begun: int) -> None:
        """Called when a transaction has taken these messages; ``begun`` is when it asked for them, ns since 1970."""
        ...

    def settling(
        self,
        operation: Literal["commit", "rollback"],
        work_id: str,
        claims: Mapping[Claim, Disposition],
        puts: Sequence[Put],
        sent: AtomicWrite,
    ) -> None:
        """Called when a transaction or delivery is being settled; ``sent`` completes when that is done."""
        ...

    def handling(self, delivery: Traced) -> Handling:
        """Called when a listener's handler or a loop begins with a delivery, in its task."""
        ...

    def processing(self, queue: str, messages: Sequence[Message[Any]]) -> Handling:
        """Called when a listener's handler begins with a batch, in its task."""
        ...
