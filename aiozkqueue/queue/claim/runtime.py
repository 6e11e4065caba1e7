"""The interface of a session for the delivery of claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiozkqueue.queue.commit.runtime import Runtime

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.state.queue_state import QueueState

    from .dispatcher import ClaimDispatcher


class ClaimRuntime(Runtime, Protocol):
    """The services of a session, and its dispatchers."""

    def dispatcher(self, state: QueueState, condition: Condition | None = None) -> ClaimDispatcher:
        """Return the dispatcher of a queue's claims, for one filter or for all messages.

        Raises: InvalidOptionError: a filter on a queue whose messages have no tags.
        """
        ...
