"""The place of a group's messages: one lane, so that their sequence numbers are their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import ItemRef
from aiozkqueue.queue.commit.put_plan import PutPlan

if TYPE_CHECKING:
    from aiozkqueue.queue.state.queue_state import QueueState


class GroupLane:
    """The lane of one group, by the configuration that each attempt of the put checks."""

    __slots__ = ("_group", "_state")

    needs_time = False

    def __init__(self, state: QueueState, group: str) -> None:
        self._state = state
        self._group = group

    @property
    def ready(self) -> bool:
        """See `Place`."""
        self._state.expect_groups()
        return self._state.ready and not self._state.sticky

    async def prepare(self) -> None:
        """Enable groups in the queue's configuration, before the first message of a group is put.

        Raises: ConfigConflictError: the queue is sticky.
        """
        await self._state.open_or_create()
        if self._state.sticky:
            await self._state.refresh()
            await self._state.open_or_create()
        if self._state.sticky:
            msg = (
                f"queue {self._state.name!r} is sticky: a message is taken by the node that put it, so a group has no "
                "order; put without group=, or to another queue"
            )
            raise ConfigConflictError(msg)

    def path(self, prefix: str) -> str:
        """See `Place`."""
        return ItemRef(self._state.snapshot.lanes.of_group(self._group), prefix).path


def group_plan(state: QueueState, group: str | None) -> PutPlan | None:
    """Return the plan of a put to a group, given the group's hash; None: the message is in no group."""
    if group is None:
        return None
    state.expect_groups()
    return PutPlan(place=GroupLane(state, group))
