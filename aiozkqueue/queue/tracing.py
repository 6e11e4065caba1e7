"""Who follows messages on their way: what a session tells of them, to OpenTelemetry for one, and how that is found.

A session that nobody follows only asks whether anybody does. `aiozkqueue.tracing` is imported when it is switched on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .commit.puts import Put
    from .commit.write import AtomicWrite
    from .message import Message
    from .outcome import Outcome
    from .state.claim import Claim


class Traced(Protocol):
    """A delivery, as far as a tracer reads it."""

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

    async def commit(self) -> None:
        """Commit it."""
        ...


class Handling(Protocol):
    """A delivery that is being handled by the loop of a consumer."""

    def end(self, error: BaseException | None = None) -> None:
        """The loop has left it, with this error; called where the loop goes on."""
        ...


class Tracing(Protocol):
    """What follows the messages of a session: `connect` takes one."""

    def sending(self, queue: str, count: int | None) -> AbstractContextManager[None]:
        """Around a put of one message (``count`` is None) or of many, until they are stored."""
        ...

    def creating(self, queue: str, message_id: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a put with what its headers are to carry."""
        ...

    def received(self, queue: str, messages: Sequence[Message[Any]], begun: int) -> None:
        """A transaction has taken these; ``begun`` is when it asked for them, ns since 1970."""
        ...

    def settling(
        self,
        operation: Literal["commit", "rollback"],
        work_id: str,
        claims: Iterable[Claim],
        puts: Sequence[Put],
        sent: AtomicWrite,
    ) -> None:
        """A transaction or delivery is being settled; ``sent`` tells when that is over."""
        ...

    def handling(self, delivery: Traced) -> Handling:
        """A consumer's loop begins with a delivery; called where its body is going to run."""
        ...

    async def around(self, delivery: Traced, call_next: Callable[[], Awaitable[None]]) -> None:
        """Around a listener's handler: a middleware."""
        ...
