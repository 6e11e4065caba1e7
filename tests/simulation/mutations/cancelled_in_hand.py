"""Defects in the cancellation of messages in hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.operations import alter
from aiozkqueue.session.interruptions import Interruptions
from aiozkqueue.zookeeper import Delete, SetData
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_item, is_lock, leave_out
from tests.simulation.stories.cancelled_in_hand import a_message_is_cancelled_while_its_batch_is_collected
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Operation

in_hand = partial(run, feature="cancelled while held")


def _cancels(operations: list[Operation]) -> bool:
    return any(operation.path.endswith("/in-hand/cancelled") for operation in operations)


@mutation(in_hand)
def cancelled_message_not_named_to_its_holder(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, SetData) and operation.path.endswith("/in-hand/cancelled"))


@mutation(a_message_is_cancelled_while_its_batch_is_collected)
def cancelled_message_handled_if_its_handler_has_not_begun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Interruptions, "cancelled_before_start", lambda *_: False)


@mutation(in_hand)
def cancelled_message_keeps_its_item(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Delete) and is_item(operation), when=_cancels)


@mutation(in_hand)
def cancelled_message_keeps_its_lock(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Delete) and is_lock(operation), when=_cancels)


@mutation(in_hand)
def messages_in_hand_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alter, "can_interrupt", lambda found, now: not found.held(now))
