"""The part of a put that tags add: a check that the record of its tags exists, so that consumers can filter by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import encode_tags, tags_digest
from aiozkqueue.queue.commit.put_plan import PutHook, PutPlan
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import BadVersionError, Check, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.layout import Tags
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError


class TagsHook(PutHook):
    """The check that the record of a put's tags exists and is not about to be swept."""

    __slots__ = ("_data", "_digest", "_state")

    def __init__(self, state: QueueState, data: bytes) -> None:
        self._state = state
        self._data = data
        self._digest = tags_digest(data)

    @property
    def ready(self) -> bool:
        """Whether the record has been seen or created."""
        return self._state.tags.declared(self._digest)

    async def prepare(self) -> None:
        """Create the record. Raises: AccessDeniedError."""
        with translate_denials(self._state.name):
            await self._state.tags.declare(self._digest, self._data)

    def operation(self, item: str) -> Operation:  # noqa: ARG002 - the same for any item
        """Return the check that the record is unchanged since its creation."""
        return Check(self._state.paths.tags(self._digest), 0)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Create the record again if it is gone or has changed."""
        if isinstance(error, NoNodeError | BadVersionError):
            self._state.tags.forget(self._digest)
            return self.prepare()
        return self._state.repair(operation, error)


def tags_plan(state: QueueState, tags: Tags) -> PutPlan | None:
    """Return the part of a put's plan that its tags add; None without tags."""
    return PutPlan((TagsHook(state, encode_tags(tags)),)) if tags else None
