"""Alarms: the function of a listener that is called with each message that is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from aiozkqueue.queue.commit.dispositions import dead_header
from aiozkqueue.queue.destination import binding_of
from aiozkqueue.queue.message import Content, DeadLetter
from aiozkqueue.runtime.tasks import start_task

from .cancellations import foreign_cancellations

if TYPE_CHECKING:
    import anyio

    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.given_up import GivenUp
    from aiozkqueue.queue.state.queue_state import QueueState

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

OnDead: TypeAlias = Callable[[DeadLetter[T], BaseException | None], Awaitable[None]]
"""``async def alarm(letter, error)``: called with each message that is given up, and the last exception."""


class Alarms(Generic[T]):
    """Calls a function for each message of a queue that is given up, in tasks of their own."""

    def __init__(self, queue: Destination[T], on_dead: OnDead[T]) -> None:
        self._queue = queue
        self._on_dead = on_dead
        self._state: QueueState | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._calling = 0
        self._idle = asyncio.Event()

    def start(self, state: QueueState, tasks: anyio.abc.TaskGroup) -> None:
        """Call the function for messages that are given up from now on."""
        self._state, self._tasks = state, tasks
        state.given_up_callbacks.append(self._given_up)

    def stop(self) -> None:
        """Call the function no more; calls that have begun continue."""
        if self._state is not None:
            self._state.given_up_callbacks.remove(self._given_up)
            self._state = None

    async def drain(self) -> None:
        """Wait for the calls that have begun."""
        while self._calling:
            self._idle.clear()
            await self._idle.wait()

    def _given_up(self, given_up: GivenUp) -> None:
        if self._tasks is not None:
            self._calling += 1
            start_task(self._tasks, self._call, given_up)

    async def _call(self, given_up: GivenUp) -> None:
        try:
            with foreign_cancellations("on_dead"):
                await self._on_dead(_letter(self._queue, given_up), given_up.cause)
        except Exception:
            text = "queue %s: on_dead failed for message %s"
            log.exception(text, self._queue.name, given_up.claim.id, extra=given_up.claim.log_ids())
        finally:
            self._calling -= 1
            self._idle.set()


def _letter(queue: Destination[T], given_up: GivenUp) -> DeadLetter[T]:
    """Return the message as a dead letter."""
    claim = given_up.claim
    header = dead_header(claim, given_up.reason, given_up.moment)
    content = Content(claim.state.name, claim.id, claim.body, header, claim.attempts_made, given_up.moment)
    return DeadLetter(content, binding_of(queue).codec, claim.value)
