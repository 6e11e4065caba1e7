"""Defects in pauses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import Check, Create
from tests.simulation.mutations import mutation
from tests.simulation.mutations.sending import is_lock, leave_out
from tests.simulation.stories.pausing import a_queue_is_paused_while_messages_are_taken
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.zookeeper import Operation


def _is_claim(operations: list[Operation]) -> bool:
    return any(isinstance(operation, Create) and operation.ephemeral and is_lock(operation) for operation in operations)


@mutation(a_queue_is_paused_while_messages_are_taken)
def claims_do_not_check_the_configuration(patch: pytest.MonkeyPatch) -> None:
    leave_out(
        patch,
        lambda operation: isinstance(operation, Check) and operation.path == "/zms/a",
        when=_is_claim,
    )


@mutation(partial(run, feature="pausing"))
def claims_do_not_check_the_configuration_under_faults(patch: pytest.MonkeyPatch) -> None:
    leave_out(patch, lambda operation: isinstance(operation, Check) and operation.path == "/zms/paused", when=_is_claim)
